"""Answers that are given again, to a request that says the same as an earlier one but for its id.

The earlier one was read, checked and answered; that this one is the same its bytes alone say. The answer holds while
the snapshot is the same one, and each file that was read for it still is the one that was read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias
from weakref import ReferenceType, ref

from mcp_skills_server.catalog.reader import BoundedCache
from mcp_skills_server.catalog.view import View
from mcp_skills_server.model import SkillFile, Snapshot
from mcp_skills_server.telemetry import events

Words: TypeAlias = tuple[bytes, bytes]
"""A request without its id: what is said before it, and what after it."""

_LONGEST: Final = 1 << 10
"""Bytes of a request that is remembered."""
_LARGEST: Final = 1 << 14
"""Bytes of an answer that is kept: of a larger one, most of the time goes into writing it."""
_MOST: Final = 1 << 10
_SIZE: Final = 1 << 22
"""How many answers are kept, and bytes of them all. There is one such client in a process."""
_MOST_SEEN: Final = _MOST
"""How many requests are known to have been asked once, by which alone nothing is kept. With more of them, those that
are asked in turn would each drive out one that is asked again sooner."""
_ID: Final = re.compile(rb'"id": ?(0|[1-9][0-9]{0,14})(?=[,}])')
_QUOTED_ID: Final = b'"id"'


class _Answer(NamedTuple):
    body: bytes
    files: Sequence[SkillFile]


def parted(line: bytes) -> tuple[Words, int] | None:
    """A request without its id, and the id; None where the bytes do not say for certain which that is.

    Whether it is a request at all is not asked. Where the one place that reads `"id"` is followed by a colon, and
    nothing in the line is escaped, it is a key of an object: whichever digits stand there, the rest means the same.
    """
    if len(line) > _LONGEST or b"\\" in line:
        return None
    found = _ID.search(line)
    if found is None or line.count(_QUOTED_ID) != 1:
        return None
    return (line[: found.start(1)], line[found.end(1) :]), int(found[1])


class Repeats:
    """The last answers of one connection by what was asked.

    Args:
        view: makes the view that a request is answered from.
    """

    def __init__(self, view: Callable[[], View]) -> None:
        self._view = view
        self._snapshot: ReferenceType[Snapshot] | None = None
        self._seen: set[int] = set()
        self._kept: BoundedCache[Words, _Answer] = BoundedCache(_MOST, _SIZE, lambda answer: answer.body)

    def find(self, words: Words) -> bytes | None:
        """What the same request was answered; None where it has to be answered anew."""
        kept = self._kept.get(words)
        if kept is None or events.has_readers():
            return None
        view = self._view()
        if not self._holds(view):
            self.clear()
            return None
        if kept.files and not view.still_has(kept.files):
            self._kept.drop(words)
            return None
        return kept.body

    def keep(self, words: Words, view: View, body: bytes) -> None:
        """Keep an answer that was made from a view, and from nothing else, where it was asked for before."""
        if len(body) > _LARGEST:
            return
        mark = hash(words)  # of two requests with one mark the second is kept too soon, which does no harm
        if mark not in self._seen:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen.add(mark)
            return
        if not self._holds(view):
            self.clear()
            self._snapshot = ref(view.snapshot)
        self._kept.put(words, _Answer(body, view.files))

    def clear(self) -> None:
        """Forget every answer: the client is another from here on."""
        self._kept.clear()

    def _holds(self, view: View) -> bool:
        return self._snapshot is not None and self._snapshot() is view.snapshot
