"""What a scan found otherwise, skill by skill, as people read it.

Of files only those are named that are the skill's own: whoever reads a skill need not be let read those inside it. So
what grants leave of a scan is what is about the paths that they leave.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from typing import Final, Literal, NamedTuple, TypeAlias

from mcp_skills_server.catalog.nested import nested_in
from mcp_skills_server.errors import clipped
from mcp_skills_server.model import Changes, Skill, Snapshot

MOST: Final = 1000
"""Differences that are kept of all skills together."""
_FILES: Final = 5

Kind: TypeAlias = Literal["appeared", "changed", "vanished"]


class Difference(NamedTuple):
    """One skill that differs.

    Attributes:
        kind: what happened.
        path: the skill path.
        name: what the skill is or was called, at most 200 characters.
        files: paths of those that differ, some of them where there are many; only of a skill that changed.
        more: how many more there are.
    """

    kind: Kind
    path: str
    name: str
    files: tuple[str, ...] = ()
    more: int = 0


class Scan(NamedTuple):
    """What one scan found.

    Attributes:
        number: about the milliseconds since 1970, and higher than that of each scan before.
        time: when, in seconds since 1970.
        differences: by path; of more than `MOST` the last ones.
    """

    number: int
    time: float
    differences: tuple[Difference, ...]


class Scans:
    """The latest scans that found something. Whoever calls it sees to it that nobody else does meanwhile.

    Args:
        now: seconds since 1970.

    Attributes:
        since: when the first could be, in seconds since 1970.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._kept: deque[Scan] = deque()
        self._weight = 0
        self.since = now()

    def latest(self) -> list[Scan]:
        """The scans, the last one at the end."""
        return [*self._kept]

    def note(self, changes: Changes, snapshot: Snapshot) -> Scan | None:
        """Keep what a scan found, after which the skills are these; None where that is nothing to show."""
        found, now = _differences(changes, snapshot), self._now()
        if not found:
            return None
        last = self._kept[-1].number if self._kept else 0
        scan = Scan(max(int(now * 1000), last + 1), now, found)
        self._kept.append(scan)
        self._weight += len(scan.differences)
        while self._weight > MOST and len(self._kept) > 1:
            self._weight -= len(self._kept.popleft().differences)
        return scan


def _differences(changes: Changes, snapshot: Snapshot) -> tuple[Difference, ...]:
    paths = sorted(changes.before.keys() | changes.after.keys())
    found = (_difference(path, paths, changes, snapshot) for path in paths[-MOST:])
    return tuple(each for each in found if each is not None)


def _difference(path: str, paths: Sequence[str], changes: Changes, snapshot: Snapshot) -> Difference | None:
    """What is different of one of the skills that differ; None where that is about skills inside it alone."""
    before, after = changes.before.get(path), changes.after.get(path)
    if before is None or after is None:
        there = after or before
        name = clipped(there.name if there is not None else path)
        return Difference("vanished" if after is None else "appeared", path, name)
    old, new = before.files, after.files
    files = sorted(each for each in old.keys() | new.keys() if old.get(each) is not new.get(each))
    inside = _inside(before, after, paths, snapshot)
    own = [each for each in files if not each.startswith(inside)]
    if inside and not own:
        return None  # each of those is a difference of its own
    shown = tuple(own[:_FILES])
    return Difference("changed", path, clipped(after.name), shown, len(own) - len(shown))


def _inside(before: Skill, after: Skill, paths: Sequence[str], snapshot: Snapshot) -> tuple[str, ...]:
    """Below which places of a skill other skills are, or were until now. `paths` are those that differ, sorted."""
    below = f"{after.path}/"
    differing = takewhile(lambda each: each.startswith(below), islice(paths, bisect_left(paths, below), None))
    found = {each.removeprefix(below) for each in differing} | nested_in(snapshot, before) | nested_in(snapshot, after)
    return tuple(f"{each}/" for each in found)
