"""Freshness of skills: compare what they rely on in their repository with what was confirmed.

Only skills of the operator's own folders are judged: one that was fetched was written for another
repository. Patterns never leave the repository, follow no link, and read a bounded amount. Requests
to a server never wait for it: one thread judges for all of them, a tenth of the time at most.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.path_map import join
from mcp_skills_server.catalog.reader import SkillReader
from mcp_skills_server.catalog.tree import MAX_LEVELS
from mcp_skills_server.errors import clipped
from mcp_skills_server.format.fields import mapping
from mcp_skills_server.format.ignored import is_ignored
from mcp_skills_server.format.reliance import (
    FRESHNESS_FILE,
    Reliance,
    parse_reliances,
)
from mcp_skills_server.model import Problem, Skill
from mcp_skills_server.model.decoding import load_json, load_toml
from mcp_skills_server.model.digests import digest_of
from mcp_skills_server.model.skill import combined_digest

logger = logging.getLogger(__name__)

CHANGED: Final = "relies-on-changed"
UNSEEN: Final = "relies-on-unconfirmed"
FAULTY: Final = "relies-on-form"
_MAX_TEXT: Final = 64 << 10
"""The maximum size of a `freshness.toml`."""
_MAX_NAMES: Final = 100_000
"""The maximum number of names in the folders that the patterns of one skill enter."""
_MAX_BYTES: Final = 64 << 20
_MAX_LOCK: Final = 16 << 20
_RECENT_S: Final = 60.0
_PAUSE_FACTOR: Final = 9
"""The pause after a judgement, relative to its duration: a tenth of the time at most."""
_LOCKS: Final = (
    "uv.lock", "poetry.lock", "pylock.toml", "Cargo.lock", "package-lock.json",
    "requirements.txt", "constraints.txt",
)  # fmt: skip
_PIN: Final = re.compile(
    r"(?m)^[ \t]*+([A-Za-z0-9][\w.-]*+)(?:\[[^\]\n]*+\])?+ *+===?+ *+([^\s;#]++)"
)


class Judgement(NamedTuple):
    """Things a skill relies on, and the present state of those that were asked.

    Attributes:
        shown: the path of its `freshness.toml`, as the operator would type it.
        text: the content of the file.
        fault: why it cannot be judged, or "".
    """

    skill: Skill
    shown: str = ""
    text: str = ""
    entries: Sequence[Reliance] = ()
    states: Mapping[Reliance, str] = {}
    fault: str = ""

    @property
    def problems(self) -> Sequence[Problem]:
        """A problem for each state that is not as it was confirmed."""
        path = self.skill.path
        if self.fault:
            hint = "docs/freshness.md has its form"
            return [Problem(FAULTY, "error", self.fault, hint, None, self.shown, path)]
        verified = mapping(self.skill.frontmatter.get("metadata")).get("verified")
        since = f", verified on {clipped(str(verified))}" if verified else ""
        problems = (_problem(entry, state, since) for entry, state in self.states.items())
        return [problem.at(self.shown, path) for problem in problems if problem is not None]

    @property
    def is_stale(self) -> bool:
        """True if something has changed since it was confirmed."""
        return _has_change(self.problems)


class Freshness:
    """Judge of what skills rely on. Thread-safe."""

    def __init__(self, reader: SkillReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._recent: WeakKeyDictionary[Skill, tuple[float, Sequence[Problem]]] = (
            WeakKeyDictionary()
        )
        self._waiting: dict[Skill, None] = {}
        self._is_judging = False

    def is_stale(self, skill: Skill) -> bool:
        """Tell whether something that a skill relies on had changed, as `recent` knows."""
        return _has_change(self.recent(skill))

    def recent(self, skill: Skill) -> Sequence[Problem]:
        """Return the problems of about a minute ago, and have a thread judge the skill anew.

        Reads no file. There are none before the first judgement.
        """
        if FRESHNESS_FILE not in skill.files:
            return ()
        with self._lock:
            due, problems = self._recent.get(skill, (0.0, ()))
            if time.monotonic() >= due:
                self._waiting[skill] = None
                if not self._is_judging:
                    self._is_judging = True
                    target = self._judge_waiting
                    threading.Thread(target=target, name="skills-freshness", daemon=True).start()
        return problems

    def _judge_waiting(self) -> None:
        while True:
            with self._lock:
                skill = next(iter(self._waiting), None)
                if skill is None:
                    self._is_judging = False
                    return
            begun = time.monotonic()
            problems: Sequence[Problem] = ()
            try:
                problems = self.judge(skill).problems
            except Exception:  # a bug must not end the judging of other skills
                logger.exception("the freshness of %s cannot be judged", skill.path)
            with self._lock:
                now = time.monotonic()
                self._recent[skill] = now + _RECENT_S, problems
                del self._waiting[skill]
            time.sleep(_PAUSE_FACTOR * (now - begun))

    def judge(self, skill: Skill) -> Judgement:
        """Compare what a skill relies on with its repository; nothing of one that was fetched."""
        root, file = self._reader.roots[skill.root], skill.files.get(FRESHNESS_FILE)
        if file is None or root.origin is not None or skill.origin is not None:
            return Judgement(skill)
        shown = root.show(join(skill.directory, FRESHNESS_FILE))
        if file.size > _MAX_TEXT:
            return Judgement(skill, shown, fault=f"it has more than {_MAX_TEXT:,} bytes")
        try:
            text = self._reader.read(file).decode()
            entries = parse_reliances(text)
            located = root.locate(skill.directory)
            repository = _Repository(located.base, located.rest)
            states = {entry: repository.state(entry) for entry in entries if entry.is_local}
        except OSError as error:  # whose text has the path on this machine
            return Judgement(skill, shown, fault=f"it cannot be read ({error.strerror})")
        except ValueError as error:
            return Judgement(skill, shown, fault=str(error))
        return Judgement(skill, shown, text, entries, states)


def _has_change(problems: Sequence[Problem]) -> bool:
    return any(problem.code == CHANGED for problem in problems)


def _problem(entry: Reliance, state: str, since: str) -> Problem | None:
    if entry.is_met(state):
        return None
    code, severity, text = CHANGED, "warning", "changed since it was confirmed"
    if not state:
        text = "not there"
    elif entry.requirement[1]:
        text = f"version {state} is locked, out of the bounds"
    elif not entry.seen:
        code, severity, text = UNSEEN, "note", "never confirmed"
    elif entry.kind == "packages":
        text = f"changed from {entry.seen} to {state}"
    hint = "compare the skill with it, then run 'freshness --update'"
    return Problem(code, severity, f"{entry.key}: {text}{since}", hint, entry.line)


class _Repository:
    """The files of a repository, read within one bound for all entries of a skill."""

    def __init__(self, base: str, rest: str) -> None:
        """Find the top of the git repository around a folder, else take `base`."""
        self._folder = Path(base, rest)
        parents = (self._folder, *self._folder.parents)
        tops = (folder for folder in parents if os.path.lexists(folder / ".git"))
        self._top = next(tops, Path(base))
        self._names = _MAX_NAMES
        self._bytes = _MAX_BYTES
        self._locks: dict[Path, Mapping[str, set[str]]] = {}

    def state(self, entry: Reliance) -> str:
        """Return one digest of the paths and contents of files, or the version of a package.

        CRLF counts as LF, so that a checkout has the same digest on every platform.
        """
        if entry.kind == "packages":
            return self._locked_version(entry.requirement[0])
        digests: dict[str, str] = {}
        steps = entry.target.split("/")
        if steps[-1] == "**":
            steps.append("*")
        with disk.open_directory(str(self._top), "") as top:
            self._collect(top, steps, "", digests)
        return combined_digest(digests) if digests else ""

    def _collect(
        self, folder: disk.Handle, steps: Sequence[str], above: str, digests: dict[str, str]
    ) -> None:
        """Add the digests of the files that match; wildcards pass over names never served."""
        step, rest = steps[0], steps[1:]
        if step == "**":
            self._collect(folder, rest, above, digests)
        with os.scandir(folder) as listing:
            entries = [*islice(listing, self._names + 1)]
        self._names -= len(entries)
        if self._names < 0 or above.count("/") > MAX_LEVELS:
            raise ValueError(f"its patterns enter folders with over {_MAX_NAMES:,} names; be exact")
        for entry in entries:
            name, path = entry.name, above + entry.name
            if name != step and (is_ignored(name) or not fnmatchcase(name, step)):
                continue
            if rest and entry.is_dir(follow_symlinks=False):
                inner = disk.enter(folder, name)
                try:
                    self._collect(inner, steps if step == "**" else rest, f"{path}/", digests)
                finally:
                    disk.close(inner)
            elif not rest and entry.is_file(follow_symlinks=False) and name != FRESHNESS_FILE:
                try:
                    raw, _ = disk.read(name, self._bytes, folder)
                except OSError as error:
                    raise ValueError(f"{path} cannot be read ({error.strerror})") from None
                self._bytes -= len(raw)
                digests[disk.to_utf8(path)] = digest_of(raw.replace(b"\r\n", b"\n"))

    def _locked_version(self, package: str) -> str:
        """Return the locked version of a package, several joined by commas, "" if there is none.

        The lock file that is nearest above the skill and has the package decides.
        """
        for folder in (self._folder, *self._folder.parents):
            for lock in filter(os.path.isfile, (folder / name for name in _LOCKS)):
                packages = self._packages_of(lock)
                versions = packages.get(package) or packages.get(_normal_name(package))
                if versions:
                    return clipped(", ".join(sorted(versions)))
            if folder == self._top:
                break
        return ""

    def _packages_of(self, lock: Path) -> Mapping[str, set[str]]:
        if lock not in self._locks:
            raw, _ = disk.read(str(lock), min(self._bytes, _MAX_LOCK))
            self._bytes -= len(raw)
            try:
                self._locks[lock] = _packages_in(lock.name, raw)
            except (ValueError, LookupError, TypeError, AttributeError):
                raise ValueError(f"{lock.name} is no lock file of a known form") from None
        return self._locks[lock]


@lru_cache(4)  # of at most `_MAX_LOCK`
def _packages_in(name: str, raw: bytes) -> Mapping[str, set[str]]:
    """Return the versions of the packages in a lock file, by name."""
    text = raw.decode()
    pairs: list[tuple[str, Any]] = []
    if name.endswith(".json"):
        rows = cast("dict[str, dict[str, Any]]", load_json(text)["packages"])
        # deeper ones, which only packages use, keep their path as their name
        pairs += [
            (path.removeprefix("node_modules/"), row.get("version")) for path, row in rows.items()
        ]
    elif name.endswith((".lock", ".toml")):
        tables = load_toml(text)
        for row in tables.get("package") or tables["packages"]:
            pairs.append((_normal_name(row["name"]), row.get("version")))
    else:
        pairs += [(_normal_name(package), version) for package, version in _PIN.findall(text)]
    packages: dict[str, set[str]] = {}
    for package, version in pairs:
        packages.setdefault(package, set()).add(str(version or ""))
    return packages


def _normal_name(package: str) -> str:
    """Return the name of a Python package or a crate in the form that its lock file has."""
    return re.sub(r"[-_.]+", "-", package).lower()
