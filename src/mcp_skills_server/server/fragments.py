"""Parts of results that are the same from one request to the next: each is written once, and joined into answers.

A fragment belongs to a skill and outlives the snapshots in which that skill is the same. A page is no more than a row
of fragments, so it costs next to nothing to keep, and an edit has one fragment written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, cast
from weakref import WeakKeyDictionary

from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.model import Json, Skill, Snapshot

Sieve: TypeAlias = Callable[[Any], Any]
_MOST_PAGES: Final = 256
"""Pages that are kept of one snapshot: those of the longest lists, and no more for a client that makes up cursors."""
_WORD: Final = 40
"""Characters of a value of a field that may be worth keeping as it is written."""
_LONG: Final = 256
"""Characters of a text that is written by itself."""
_MOST_KEPT: Final = 100
"""Fragments of a page whose bytes are kept as a whole."""


class Fragment:
    """A value of a result; once it is written, its bytes alone.

    Args:
        value: belongs to the fragment from then on.
    """

    __slots__ = ("_raw", "_sieve", "_value")

    def __init__(self, value: Json) -> None:
        self._value = value
        self._raw: bytes | None = None
        self._sieve: Sieve | None = None

    def value(self) -> Any:
        """The value. Do not change it."""
        return self._value if self._raw is None else jsonrpc.parse(self._raw)

    def raw(self, sieve: Sieve | None = None) -> bytes:
        """Its JSON.

        Args:
            sieve: what leaves out of the value that the receiver does not know. All receivers of one kind of value
                know the same.
        """
        if self._raw is None or self._sieve is not sieve:
            value = self.value()
            self._raw, self._sieve = _dumped(value if sieve is None else sieve(value)), sieve
            self._value = None
        return self._raw


class Fragments(tuple[Fragment, ...]):
    """Several of them, which are an array in a result."""

    __slots__ = ()

    def values(self) -> list[Any]:
        """The values. Do not change them."""
        return [each.value() for each in self]

    def raw(self, sieve: Sieve | None = None) -> bytes:
        """The JSON of the array; `sieve` is for each of them."""
        # What stands alone may be a file of megabytes.
        return (_kept if 1 < len(self) <= _MOST_KEPT else _joined)(self, sieve)


def _joined(fragments: Fragments, sieve: Sieve | None) -> bytes:
    # Of many sets of grants most pages are joined anew: a call for each fragment would take twice as long.
    kept = [each._raw if each._sieve is sieve else None for each in fragments]  # pyright: ignore[reportPrivateUsage]
    return b"[%b]" % b",".join([raw or each.raw(sieve) for raw, each in zip(kept, fragments, strict=True)])


_kept: Final = lru_cache(maxsize=4)(_joined)
"""The same of pages, since the first of a list is what every client asks for."""


class Page(NamedTuple):
    """Some fragments of a list, and the key to go on from, None at its end."""

    fragments: Fragments
    more: str | None


_pages: Final[WeakKeyDictionary[Snapshot, dict[Hashable, Page]]] = WeakKeyDictionary()


def kept_page(snapshot: Snapshot, key: Hashable) -> Page | None:
    """A page of this snapshot if it was made before."""
    pages = _pages.get(snapshot)
    return None if pages is None else pages.get(key)


def keep_page(snapshot: Snapshot, key: Hashable, page: Page) -> Page:
    """Keep a page for as long as there is the snapshot; returns it."""
    pages = _pages.setdefault(snapshot, {})
    if len(pages) >= _MOST_PAGES:
        pages.clear()
    pages[key] = page
    return page


class BySkill:
    """The fragments of one kind, by skill, for as long as there is the skill."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Skill, tuple[Hashable, Fragment]] = WeakKeyDictionary()

    def get(self, skill: Skill, varies: Hashable) -> Fragment | None:
        """The fragment of a skill if it was written before, and what it varies with beside the skill is the same."""
        kept = self._kept.get(skill)
        return kept[1] if kept is not None and kept[0] == varies else None

    def put(self, skill: Skill, varies: Hashable, value: Json) -> Fragment:
        """Keep the value of a skill; returns its fragment."""
        fragment = Fragment(value)
        self._kept[skill] = varies, fragment
        return fragment


def dump(result: Mapping[str, Any], before: bytes = b"") -> bytes:
    """The JSON of a result, in whose fields fragments may stand, or bytes that are JSON; `before` comes before it."""
    if not result:
        return before + b"{}"
    parts = [before]
    for key, value in result.items():
        kind: type[Any] = value.__class__
        if kind is bool or kind is int or (kind is str and len(value) <= _WORD):
            parts.append(_word(key, value))  # most say the same in every result
        elif kind is bytes:
            parts += (_name(key), value)
        elif kind is Fragments or kind is Fragment:
            parts += (_name(key), value.raw())
        else:
            parts.append(_field(key, value))
    parts[1] = b"{" + parts[1][1:]
    parts.append(b"}")
    return b"".join(parts)


def _dumped(value: Json) -> bytes:
    """The JSON of a value. In an object each long text is written by itself: that is what a file is served as."""
    if not isinstance(value, dict) or not any(type(each) is str and len(each) > _LONG for each in value.values()):
        return jsonrpc.dump(value)
    return b"{%b}" % b",".join([_field(key, each)[1:] for key, each in value.items()])


@lru_cache(maxsize=64)
def _name(key: str) -> bytes:
    """A key and what is around it; those of results are plain words."""
    return b',"%b":' % key.encode()


def _field(key: str, value: Any) -> bytes:
    return _name(key) + jsonrpc.dump(value)


_word: Final = lru_cache(maxsize=64, typed=True)(_field)
"""The same of a short value."""


def plain(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result without fragments, for who writes it by other means. Do not change what is in it."""
    return {key: _plain(value) for key, value in result.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Fragment):
        return value.value()
    return cast(Any, value.values()) if isinstance(value, Fragments) else value
