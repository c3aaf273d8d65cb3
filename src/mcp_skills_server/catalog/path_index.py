"""Sorted index of root-relative paths, and path arithmetic. Pure: paths are text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeVar

_V = TypeVar("_V")


class PathIndex(dict[str, _V]):
    """Dict keyed by root-relative path, such as skills by directory, with a query by prefix."""

    _order: list[str] | None = None

    def below(self, part: str) -> list[str]:
        """Return the paths at or below `part`, in code point order. Do not change the list."""
        order = self._order
        if order is None or len(order) != len(self):
            order = self._order = sorted(self)
        if not part:
            return order
        # '0' is the code point after '/', so it ends the range
        start, end = bisect_left(order, part + "/"), bisect_left(order, part + "0")
        if part in self:
            return [part, *order[start:end]]
        return order[start:end]

    def replace(self, gone: Iterable[str], came: Mapping[str, _V]) -> None:
        """Delete some paths and insert others."""
        if set(gone) != set(came):
            self._order = None
        for place in gone:
            del self[place]
        self |= came


def above(location: str) -> Iterator[str]:
    """Yield the ancestors of a location, the root ("") first, then the location itself."""
    yield ""
    end = -1
    while location and (end := location.find("/", end + 1)) >= 0:
        yield location[:end]
    if location:
        yield location


def outermost(parts: Collection[str]) -> list[str]:
    """Return these directories without those inside another."""
    out: list[str] = []
    # by segments: as text, "a-b" sorts between "a" and "a/b"
    for part in sorted(parts, key=lambda part: part.split("/")):
        if not out or not within(part, out[-1]):
            out.append(part)
    return out


def join(directory: str, name: str) -> str:
    """Return the path of a name in a directory, "" for the root."""
    if directory:
        return f"{directory}/{name}"
    return name


def within(location: str, part: str) -> bool:
    """Tell whether `location` is `part` or lies below it; everything lies below ""."""
    return not part or location == part or location.startswith(part + "/")
