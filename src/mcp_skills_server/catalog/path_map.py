"""Sorted map by root-relative path, and path arithmetic. Pure: paths are text."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, TypeVar

_V = TypeVar("_V")

_FEW: Final = 32
"""Most paths that are inserted into the order or deleted from it one by one, without sorting."""


class PathMap(dict[str, _V]):
    """Dict keyed by root-relative path, such as skills by directory, with a query by prefix."""

    _order: list[str] | None = None

    def below(self, subtree: str) -> list[str]:
        """Return the paths at or below `subtree`, in code point order. Do not change or keep it."""
        order = self._order
        if order is None:
            order = self._order = sorted(self)
        if not subtree:
            return order
        # '0' is the code point after '/', so it ends the range
        start, end = bisect_left(order, subtree + "/"), bisect_left(order, subtree + "0")
        if subtree in self:
            return [subtree, *order[start:end]]
        return order[start:end]

    def replace_below(self, subtree: str, came: Mapping[str, _V]) -> None:
        """Replace all paths at or below `subtree`."""
        self.replace(self.below(subtree), came)

    def replace(self, gone: Iterable[str], came: Mapping[str, _V]) -> None:
        """Delete some paths and insert others. Nothing else may change the map."""
        removed = [path for path in gone if path not in came]
        added = [path for path in came if path not in self]
        for path in removed:
            del self[path]
        self |= came
        if len(removed) + len(added) > _FEW:
            self._order = None  # `below` sorts anew
        if self._order is not None:
            for path in removed:
                del self._order[bisect_left(self._order, path)]
            for path in added:
                insort(self._order, path)


def above(location: str) -> Iterator[str]:
    """Yield the ancestors of a location, the root ("") first, then the location itself."""
    yield ""
    end = -1
    while location and (end := location.find("/", end + 1)) >= 0:
        yield location[:end]
    if location:
        yield location


def outermost(paths: Collection[str]) -> list[str]:
    """Return these paths without those below another."""
    out: list[str] = []
    # by segments: as text, "a-b" sorts between "a" and "a/b"
    for path in sorted(paths, key=lambda path: path.split("/")):
        if not out or not within(path, out[-1]):
            out.append(path)
    return out


def join(directory: str, name: str) -> str:
    """Return the path of a name in a directory, "" for the root."""
    if directory:
        return f"{directory}/{name}"
    return name


def within(location: str, subtree: str) -> bool:
    """Tell whether `location` is `subtree` or lies below it; everything lies below ""."""
    return not subtree or location == subtree or location.startswith(subtree + "/")


def levels(location: str) -> int:
    """Return the depth of a root-relative path; 0 for the root."""
    return location.count("/") + bool(location)
