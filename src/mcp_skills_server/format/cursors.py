"""Pages of a list: cursors, and how many entries one page holds.

A cursor holds the last key of its page, not a position, so it survives a change of the catalogue.
It also holds the list that it belongs to, so that it is refused elsewhere.

The number of entries alone bounds nothing: a frontmatter may take a megabyte once its aliases are
written out, and a page of fifty such skills fifty. The first entry is always there, so that every
page goes on.
"""

from __future__ import annotations

import binascii
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, overload

from mcp_skills_server.errors import RequestError
from mcp_skills_server.model import Skill

MOST_BYTES: Final = 4 << 20
"""About how many bytes of skills one answer holds; what SDKs take in one message."""
_FILE: Final = 160
"""Bytes of a file in an entry beside its paths: a digest, a size and names of fields."""
_LONGEST: Final = 65_536
"""Characters of the longest cursor that is made here, and some more: that of a directory, whose key
is its path (4,096 characters, six each in JSON) and a name in it, a third longer in base64."""
_T = TypeVar("_T")


@overload
def encode(kind: str, key: str) -> str: ...
@overload
def encode(kind: str, key: None) -> None: ...
def encode(kind: str, key: str | None) -> str | None:
    """Return the cursor that goes on after `key` in the list `kind`; None for no key."""
    if key is None:
        return None
    raw = json.dumps([kind, key], separators=(",", ":")).encode("utf-8")
    return urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def decode(cursor: object) -> tuple[str, str]:
    """Return the list and the key of a cursor.

    Raises:
        RequestError: it is none of ours.
    """
    try:
        if not isinstance(cursor, str) or len(cursor) > _LONGEST:
            raise ValueError
        kind, key = json.loads(
            urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        )
        if not isinstance(kind, str) or not isinstance(key, str) or encode(kind, key) != cursor:
            raise ValueError
    except (ValueError, TypeError, RecursionError, binascii.Error):
        shown = repr(cursor)
        raise RequestError(
            f"Invalid cursor: {shown[:100]}; use the nextCursor of an earlier page"
        ) from None
    return kind, key


def key_of(params: Mapping[str, Any], kind: str) -> str | None:
    """Return the key to go on after in the list `kind`, None for its beginning.

    Raises:
        RequestError: the cursor is none of ours, or one of another list.
    """
    cursor = params.get("cursor")
    if cursor is None:
        return None
    found, key = decode(cursor)
    if found != kind:
        raise RequestError(f"Invalid cursor: {cursor[:100]!r} belongs to another list")
    return key


def weight(skill: Skill) -> int:
    """Return about how many bytes an entry of the skill takes: its frontmatter, and its files by
    their URIs."""
    files = len(skill.files) * (_FILE + 3 * len(skill.path)) + 3 * sum(map(len, skill.files))
    return len(json.dumps(dict(skill.frontmatter))) + files


def portion(entries: Iterable[_T], weigh: Callable[[_T], int]) -> list[_T]:
    """Return the first of these entries, as many as fit; one at least. `weigh` returns the bytes of
    one."""
    out: list[_T] = []
    left = MOST_BYTES
    for entry in entries:
        left -= weigh(entry)
        if out and left < 0:
            break
        out.append(entry)
    return out
