"""Recent changes of skills since the server started, with text diffs.

A diff needs the files from before the change. A thread reads them once after startup, and again
when they change, within a limit of memory. Beyond it a revision names the changed files only.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.format import media
from mcp_skills_server.model import Changes, Skill, SkillFile, Standing
from mcp_skills_server.provenance.difference import Difference, Files, compare
from mcp_skills_server.sources.git.history import commit_times

logger = logging.getLogger(__name__)

_MAX_KEPT: Final = 32 << 20
"""Bytes of all files kept for diffs."""
_MAX_OF_ONE: Final = 256 << 10
"""Bytes of the largest file kept."""
_MAX_REVISIONS: Final = 20
_MAX_SKILLS: Final = 1_000
"""Revisions kept of one skill, and skills with revisions kept."""
_MAX_LINES: Final = 500
_PAUSE_EVERY: Final = 50


class SkillRevision(NamedTuple):
    """One change of a skill: its time in seconds since 1970, and its diff, cut if long."""

    time: float
    kind: str
    important: Sequence[str]  # of the diff, the lines that matter most to a reviewer
    others: Sequence[str]
    is_whole: bool  # whether `others` are all of them


class Revisions:
    """Recent changes of a registry's skills, with diffs."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._kept: OrderedDict[str, Files] = OrderedDict()
        """The files of each skill as last seen."""
        self._size = 0
        self._revisions: OrderedDict[str, deque[SkillRevision]] = OrderedDict()
        self._changes: queue.SimpleQueue[tuple[float, Changes]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._times: dict[str, float] = {}
        """When each skill changed last: as seen here, else by git, else by its files."""

    def start(self) -> None:
        """Track changes of the registry from now on, in a daemon thread."""

        def note(changes: Changes) -> None:
            if self._registry.loaded.is_set():  # the first scan is not a change
                self._changes.put((time.time(), changes))

        self._registry.subscribe(note)
        threading.Thread(target=self._follow, name="skills-revisions", daemon=True).start()

    def latest(self, path: str) -> list[SkillRevision]:
        """Return the changes of a skill, newest first."""
        with self._lock:
            return [*reversed(self._revisions.get(path, ()))]

    def changed(self, path: str) -> float | None:
        """Return when a skill changed last; None if it is not known yet."""
        return self._times.get(path)

    def _follow(self) -> None:
        self._registry.loaded.wait()
        self._times = self._first_times()
        self._read_known()
        while True:
            when, changes = self._changes.get()
            for path in sorted({*changes.before, *changes.after}):
                try:
                    self._note(when, path, changes.before.get(path), changes.after.get(path))
                except Exception:  # a bug here must not end the thread
                    logger.exception("a change of %s could not be compared", path)

    def _first_times(self) -> dict[str, float]:
        times: dict[str, float] = {}
        by_root = {
            root.index: commit_times(Path(root.path))
            for root in self._registry.roots
            if root.origin is None
        }
        for path, skill in self._registry.snapshot.skills.items():
            folder, files = self._registry.place(skill), self._own_files(skill)
            known = by_root.get(skill.root, {})
            seen = [known[file.location] for file in files.values() if file.location in known]
            for name in () if seen else files:
                with suppress(OSError):
                    seen.append(os.lstat(os.path.join(folder, name)).st_mtime)
            if seen:
                times[path] = max(seen)
        return times

    def _read_known(self) -> None:
        """Read the files of skills until memory is full, beyond which `_keep` evicts the first."""
        known = self._registry.snapshot
        for number, path in enumerate(known.paths(Standing.LENIENT)):
            files = self._read(known.skills[path])
            if files is not None:
                if self._size + _size(files) > _MAX_KEPT:
                    break
                self._keep(path, files)
            if number % _PAUSE_EVERY == 0:
                time.sleep(0.01)  # let requests run

    def _note(self, when: float, path: str, before: Skill | None, after: Skill | None) -> None:
        kept, now = self._drop(path), None
        self._times.pop(path, None)
        if after is not None:
            self._times[path] = when
            now = self._read(after)
            if now is not None:
                self._keep(path, now)
        difference = None
        if (before is None or kept is not None) and (after is None or now is not None):
            difference = compare(path, kept, now)
        if difference is None:  # not comparable, or what is kept was read after the change
            names = self._names(before, after)
            if not names:
                return
            difference = Difference(path, _kind(before, after), (), names)
        important, others = difference.important[:_MAX_LINES], difference.others[:_MAX_LINES]
        is_whole = len(others) == len(difference.others)
        revision = SkillRevision(when, difference.kind, important, others, is_whole)
        with self._lock:
            self._revisions.setdefault(path, deque(maxlen=_MAX_REVISIONS)).append(revision)
            self._revisions.move_to_end(path)
            if len(self._revisions) > _MAX_SKILLS:
                self._revisions.popitem(last=False)

    def _drop(self, path: str) -> Files | None:
        kept = self._kept.pop(path, None)
        self._size -= _size(kept or {})
        return kept

    def _keep(self, path: str, files: Files) -> None:
        self._kept[path] = files
        self._size += _size(files)
        while self._size > _MAX_KEPT:
            self._size -= _size(self._kept.popitem(last=False)[1])

    def _read(self, skill: Skill) -> Files | None:
        """Read the text files of a skill; large and other files are represented by digests.

        Return None if one cannot be read, as when it has changed since the scan.
        """
        out: dict[str, tuple[bytes, bool]] = {}
        for path, file in self._own_files(skill).items():
            try:
                if file.size <= _MAX_OF_ONE and media.is_text(media.media_type(path)):
                    raw = self._registry.read(file)
                else:
                    raw = f"\0{file.digest}".encode()
            except (SkillsServerError, OSError):
                return None
            out[path] = raw, file.executable
        return out

    def _names(self, before: Skill | None, after: Skill | None) -> tuple[str, ...]:
        old, new = self._own_files(before), self._own_files(after)
        names: list[str] = []
        for path in sorted(old.keys() | new.keys()):
            if path not in old:
                names.append(f"file added: {path}")
            elif path not in new:
                names.append(f"file removed: {path}")
            elif new[path] != old[path]:
                names.append(f"file changed: {path}")
        return tuple(names)

    def _own_files(self, skill: Skill | None) -> dict[str, SkillFile]:
        """Return a skill's files without nested skills, which may have other readers."""
        if skill is None:
            return {}
        nested = tuple(f"{path}/" for path in skill.nested)
        return {path: file for path, file in skill.files.items() if not path.startswith(nested)}


def _kind(before: Skill | None, after: Skill | None) -> str:
    if before is None:
        return "added"
    return "removed" if after is None else "changed"


def _size(files: Files) -> int:
    return sum(len(raw) for raw, _ in files.values())
