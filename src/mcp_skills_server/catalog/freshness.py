"""Freshness of skills: compare what they rely on in their repository with what was confirmed.

Only skills of the operator's own folders are judged: one that was fetched was written for another
repository. Patterns never leave the repository, follow no link, and read a bounded amount.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.path_map import join
from mcp_skills_server.catalog.reader import SkillReader
from mcp_skills_server.errors import quoted
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
_MAX_FILE: Final = 1 << 16
_MAX_ENTRIES: Final = 50_000
_MAX_BYTES: Final = 64 << 20
_MAX_DEPTH: Final = 64
_MAX_LOCK: Final = 32 << 20
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
        problems = (_problem(*pair) for pair in self.states.items())
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
            if file.size > _MAX_FILE:
                raise ValueError(f"it has more than {_MAX_FILE:,} bytes")
            text = self._reader.read(file).decode()
            entries = parse_reliances(text)
            located = root.locate(skill.directory)
            tree = _Tree(*_repository_of(located.base, located.rest))
            states = {entry: tree.state(entry) for entry in entries if entry.is_local}
        except (ValueError, OSError) as error:
            return Judgement(skill, shown, fault=str(error))
        return Judgement(skill, shown, text, entries, states)


def _problem(entry: Reliance, state: str) -> Problem | None:
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
    return Problem(code, severity, f"{entry.key}: {text}", hint, entry.line)


class _Tree:
    """The files of a repository around a folder, read within one bound for all of a skill."""

    def __init__(self, top: str, folder: str) -> None:
        self._top = top
        self._folder = folder
        self._entries = _MAX_ENTRIES
        self._bytes = _MAX_BYTES

    def state(self, entry: Reliance) -> str:
        """Return one digest of the paths and contents of files, or the version of a package.

        CRLF counts as LF, so that a checkout has the same digest on every platform.
        """
        if entry.kind == "packages":
            return _locked_version(self._top, self._folder, entry.requirement[0])
        combined = hashlib.sha256()
        paths = sorted({*self._matching("", entry.target.split("/"))})
        for path in paths:
            try:
                with disk.open_directory(self._top, os.path.dirname(path)) as handle:
                    raw, _ = disk.read(os.path.basename(path), self._bytes, handle)
            except OSError as error:
                raise ValueError(f"{quoted(path)} cannot be read ({error.strerror})") from None
            self._bytes -= len(raw)
            digest = digest_of(raw.replace(b"\r\n", b"\n"))
            combined.update(os.fsencode(path) + b"\0" + digest.encode() + b"\n")
        return f"sha256:{combined.hexdigest()}" if paths else ""

    def _matching(self, folder: str, steps: Sequence[str]) -> Iterator[str]:
        """Yield the files below a folder that match; `**` stands for any number of folders.

        Wildcards pass over names that are never served, such as `.venv`.
        """
        step, rest = steps[0], steps[1:]
        if step == "**" and rest:
            yield from self._matching(folder, rest)
        for name, mode in self._children(folder, step):
            path = join(folder, name)
            if stat.S_ISREG(mode) and not rest and name != FRESHNESS_FILE:
                yield path
            elif stat.S_ISDIR(mode) and (rest or step == "**") and path.count("/") < _MAX_DEPTH:
                yield from self._matching(path, steps if step == "**" else rest)

    def _children(self, folder: str, step: str) -> list[tuple[str, int]]:
        """Return the names in a folder that match one step of a pattern, with their modes."""
        children: list[tuple[str, int]] = []
        is_plain = not any(sign in step for sign in "*?[")
        with suppress(OSError), disk.open_directory(self._top, folder) as handle:
            for name in [step] if is_plain else os.listdir(handle):
                self._entries -= 1
                if self._entries < 0:
                    raise ValueError(f"the patterns pass {_MAX_ENTRIES:,} names; name fewer")
                if is_plain or (not is_ignored(name) and fnmatch.fnmatchcase(name, step)):
                    children.append((name, disk.lstat(handle, name).st_mode))
        return children


def _repository_of(base: str, rest: str) -> tuple[str, str]:
    """Return the top of the git repository around a folder, else `base`, and the rest of it."""
    folder = top = os.path.join(base, rest).rstrip(os.sep)
    while not os.path.lexists(os.path.join(top, ".git")):
        top, below = os.path.dirname(top), top
        if top == below:
            return base, rest
    return top, "" if top == folder else os.path.relpath(folder, top).replace(os.sep, "/")


def _locked_version(top: str, folder: str, package: str) -> str:
    """Return the locked version of a package, several joined by commas, "" if there is none.

    The lock file nearest to a folder that has the package decides, up to the top.
    """
    while True:
        for name in _LOCKS:
            try:
                with disk.open_directory(top, folder) as handle:
                    raw, _ = disk.read(name, _MAX_LOCK, handle)
            except OSError:
                continue
            try:
                packages = _packages_in(name, raw)
            except (ValueError, LookupError, TypeError, AttributeError):
                known = ", ".join(_LOCKS)
                raise ValueError(f"{join(folder, name)} has no known form of {known}") from None
            if versions := packages.get(package) or packages.get(_normal_name(package)):
                return ", ".join(sorted(versions))
        if not folder:
            return ""
        folder = folder.rpartition("/")[0]


@lru_cache(8)  # of at most `_MAX_LOCK` bytes
def _packages_in(name: str, raw: bytes) -> Mapping[str, set[str]]:
    """Return the versions of the packages in a lock file, by name."""
    text = raw.decode()
    pairs: list[tuple[str, Any]] = []
    if name.endswith(".json"):
        rows = cast("dict[str, dict[str, Any]]", load_json(text)["packages"])
        own = ((path.removeprefix("node_modules/"), row) for path, row in rows.items())
        # deeper ones are those of packages
        pairs += [(path, row.get("version")) for path, row in own if "node_modules/" not in path]
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
