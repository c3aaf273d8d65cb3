"""Freshness of skills: compare what they rely on in their repository with what was confirmed.

Only skills of the operator's own folders are judged: one that was fetched was written for another
repository. Patterns never leave the repository, follow no link, and read a bounded amount.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.path_map import join
from mcp_skills_server.catalog.reader import SkillReader
from mcp_skills_server.format.ignored import is_ignored
from mcp_skills_server.format.reliance import (
    FRESHNESS_FILE,
    Reliance,
    parse_reliances,
)
from mcp_skills_server.model import Problem, Skill
from mcp_skills_server.model.decoding import load_json, load_toml
from mcp_skills_server.model.digests import digest_of

CHANGED: Final = "relies-on-changed"
UNSEEN: Final = "relies-on-unconfirmed"
FAULTY: Final = "relies-on-form"
_MAX_FILES: Final = 10_000
_MAX_BYTES: Final = 64 << 20
_KNOWN_S: Final = 10.0
"""How long a verdict is reused for the order of search results."""
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
        metadata = self.skill.frontmatter.get("metadata")
        verified = metadata.get("verified") if isinstance(metadata, dict) else None
        since = f", verified on {verified}" if verified else ""
        problems = (_problem(entry, state, since) for entry, state in self.states.items())
        return [problem.at(self.shown, path) for problem in problems if problem is not None]


class Freshness:
    """Judge of what skills rely on. Thread-safe."""

    def __init__(self, reader: SkillReader) -> None:
        self._reader = reader
        self._known: WeakKeyDictionary[Skill, tuple[float, bool]] = WeakKeyDictionary()

    def is_stale(self, skill: Skill) -> bool:
        """Tell whether something that a skill relies on has changed, as of some seconds ago."""
        if FRESHNESS_FILE not in skill.files:
            return False
        now = time.monotonic()
        until, stale = self._known.get(skill, (now, False))
        if until <= now:
            stale = any(problem.code == CHANGED for problem in self.judge(skill).problems)
            self._known[skill] = now + _KNOWN_S, stale
        return stale

    def judge(self, skill: Skill) -> Judgement:
        """Compare what a skill relies on with its repository; nothing of one that was fetched."""
        root, file = self._reader.roots[skill.root], skill.files.get(FRESHNESS_FILE)
        if file is None or root.origin is not None or skill.origin is not None:
            return Judgement(skill)
        shown = root.show(join(skill.directory, FRESHNESS_FILE))
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
        self._files = _MAX_FILES
        self._bytes = _MAX_BYTES

    def state(self, entry: Reliance) -> str:
        """Return one digest of the paths and contents of files, or the version of a package.

        CRLF counts as LF, so that a checkout has the same digest on every platform.
        """
        if entry.kind == "packages":
            return self._locked_version(entry.requirement[0])
        combined = hashlib.sha256()
        paths = sorted({*self._matching(entry.target)})
        for path in paths:
            try:
                raw, _ = disk.read(str(self._top / path), self._bytes)
            except OSError as error:
                raise ValueError(f"{path} cannot be read ({error.strerror})") from None
            self._bytes -= len(raw)
            digest = digest_of(raw.replace(b"\r\n", b"\n"))
            combined.update(os.fsencode(path) + b"\0" + digest.encode() + b"\n")
        return f"sha256:{combined.hexdigest()}" if paths else ""

    def _matching(self, pattern: str) -> Iterator[str]:
        """Yield the files that match; wildcards pass over names that are never served."""
        steps = pattern.split("/")
        if steps[-1] == "**":  # which means folders alone before Python 3.13
            steps.append("*")
        for path in self._top.glob("/".join(steps)):
            location = path.relative_to(self._top).as_posix()
            is_open = all(name in steps or not is_ignored(name) for name in location.split("/"))
            is_own = is_open and path.is_file() and os.path.realpath(path) == str(path)
            if is_own and path.name != FRESHNESS_FILE:
                self._files -= 1
                if self._files < 0:
                    raise ValueError(f"the patterns match {_MAX_FILES:,} files; name fewer")
                yield location

    def _locked_version(self, package: str) -> str:
        """Return the locked version of a package, several joined by commas, "" if there is none.

        The lock file that is nearest above the skill and has the package decides.
        """
        for folder in (self._folder, *self._folder.parents):
            for lock in filter(os.path.isfile, (folder / name for name in _LOCKS)):
                try:
                    packages = _packages_in(lock.name, disk.read(str(lock), _MAX_BYTES)[0])
                except (ValueError, LookupError, TypeError, AttributeError):
                    raise ValueError(f"{lock.name} is no lock file of a known form") from None
                versions = packages.get(package) or packages.get(_normal_name(package))
                if versions:
                    return ", ".join(sorted(versions))
            if folder == self._top:
                break
        return ""


@lru_cache(8)  # of at most `_MAX_BYTES`
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
