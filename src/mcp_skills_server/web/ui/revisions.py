"""The changes of skills since the server started, as differences of their text files.

What a skill was before is known only where its files were kept: a thread reads them once after the start, and again
when they change, within a bound. A difference beyond it names files, and shows no lines.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import nested_in
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.format import media
from mcp_skills_server.model import Changes, Skill, SkillFile, Standing
from mcp_skills_server.provenance.difference import Difference, compare

logger = logging.getLogger(__name__)

_MOST_KEPT: Final = 32 << 20
"""Bytes of all files that are kept to be compared."""
_MOST_OF_ONE: Final = 256 << 10
"""Bytes of one file that is kept."""
_MOST_REVISIONS: Final = 20
_MOST_SKILLS: Final = 1_000
"""Revisions of one skill, and skills that have some, that are remembered."""
_MOST_LINES: Final = 500
_PAUSE_EVERY: Final = 50

_State = Mapping[str, tuple[bytes, bool]]


@dataclass(frozen=True, slots=True)
class SkillRevision:
    """One change of a skill.

    Attributes:
        time: when it was seen, in seconds since 1970.
        kind: "added", "removed" or "changed".
        first: what a reviewer must see first, one line each.
        lines: the remaining lines: other fields, files, unified diffs.
        is_whole: whether there are no more lines.
    """

    time: float
    kind: str
    first: Sequence[str]
    lines: Sequence[str]
    is_whole: bool = True


class Revisions:
    """Remembers the changes of a registry's skills.

    Args:
        registry: whose skills they are.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._states: OrderedDict[str, tuple[_State, int]] = OrderedDict()
        """The last seen texts of each skill, and the bytes that are kept for them."""
        self._kept = 0
        self._found: OrderedDict[str, deque[SkillRevision]] = OrderedDict()
        self._changes: queue.SimpleQueue[tuple[float, Changes]] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Follow the registry from now on, in a thread that ends with the process."""
        self._registry.subscribe(lambda changes: self._changes.put((time.time(), changes)))
        threading.Thread(target=self._follow, name="skills-revisions", daemon=True).start()

    def of(self, path: str) -> list[SkillRevision]:
        """Return the changes of a skill, the newest first."""
        with self._lock:
            return [*reversed(self._found.get(path, ()))]

    def _follow(self) -> None:
        self._registry.loaded.wait()
        begun = self._registry.snapshot
        for number, path in enumerate(begun.paths(Standing.LENIENT)):
            if self._kept >= _MOST_KEPT:
                break
            self._keep(path, self._read(begun.skills[path]))
            if number % _PAUSE_EVERY == 0:
                time.sleep(0.01)  # background work yields
        while True:
            when, changes = self._changes.get()
            came = changes.after.items()
            if not changes.before and all(begun.skills.get(path) is skill for path, skill in came):
                continue  # the first scan
            for path in sorted({*changes.before, *changes.after}):
                try:
                    self._note(when, path, changes)
                except Exception:  # a bug here must not end what follows
                    logger.exception("a change of %s could not be compared", path)

    def _note(self, when: float, path: str, changes: Changes) -> None:
        after, before = changes.after.get(path), changes.before.get(path)
        was = self._states.get(path, (None, 0))[0]
        now = None if after is None else self._read(after)
        if was is None and before is not None:  # its bytes were not kept
            known, files = self._names(before, after)
            found: Difference | None = Difference(path, known, (), files)
        else:
            found = compare(path, was, now)
        if now is None:
            self._kept -= self._states.pop(path, ({}, 0))[1]
        else:
            self._keep(path, now)
        if found is None:
            return
        made = SkillRevision(
            when, found.kind, found.first[:_MOST_LINES], found.rest[:_MOST_LINES], len(found.rest) <= _MOST_LINES
        )
        with self._lock:
            self._found.setdefault(path, deque(maxlen=_MOST_REVISIONS)).append(made)
            self._found.move_to_end(path)
            while len(self._found) > _MOST_SKILLS:
                self._found.popitem(last=False)

    def _keep(self, path: str, state: _State) -> None:
        size = sum(len(raw) for raw, _ in state.values())
        self._kept += size - self._states.pop(path, ({}, 0))[1]
        self._states[path] = state, size
        while self._kept > _MOST_KEPT:
            self._kept -= self._states.popitem(last=False)[1][1]

    def _read(self, skill: Skill) -> _State:
        """Read the text files of a skill that are not too large; other files are represented by their digests."""
        out: dict[str, tuple[bytes, bool]] = {}
        for path, file in self._own_files(skill).items():
            try:
                if file.size <= _MOST_OF_ONE and media.is_text(media.media_type(path)):
                    raw = self._registry.read(file)
                else:
                    raw = f"\0{file.digest}".encode()
            except (SkillsServerError, OSError):
                continue  # it changes again; the next look has it
            out[path] = raw, file.executable
        return out

    def _names(self, before: Skill, after: Skill | None) -> tuple[str, tuple[str, ...]]:
        if after is None:
            return "removed", ()
        old, new = self._own_files(before), self._own_files(after)
        lines = [f"file added: {each}" for each in new if each not in old]
        lines += [f"file removed: {each}" for each in old if each not in new]
        lines += [f"file changed: {each}" for each in new if each in old and new[each] is not old[each]]
        return "changed", tuple(lines)

    def _own_files(self, skill: Skill) -> dict[str, SkillFile]:
        """Return the files of a skill without those of nested skills, which may have other readers."""
        nested = tuple(f"{each}/" for each in nested_in(self._registry.snapshot, skill))
        return {path: file for path, file in skill.files.items() if not path.startswith(nested)}
