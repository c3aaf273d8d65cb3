"""Cursors: opaque to clients, and a key of our own to us.

A cursor holds the last key of its page, not a position, so it survives a change of the catalogue. It also holds the
list that it belongs to, so that it is refused elsewhere.
"""

from __future__ import annotations

import binascii
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Final, overload

from mcp_skills_server.errors import RequestError

_LONGEST: Final = 65_536
"""Characters of the longest cursor that is made here, and some more: that of a directory, whose key is its path (4,096
characters, six each in JSON) and a name in it, a third longer in base64."""


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
        kind, key = json.loads(urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)))
        if not isinstance(kind, str) or not isinstance(key, str) or encode(kind, key) != cursor:
            raise ValueError
    except (ValueError, TypeError, RecursionError, binascii.Error):
        shown = repr(cursor)
        raise RequestError(f"Invalid cursor: {shown[:100]}; use the nextCursor of an earlier page") from None
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
