"""Pagination: cursors, and the number of entries that fit on a page.

A cursor holds the last key of its page, not a position, so it survives a change of the catalogue.
It also names its list, and no other list accepts it.

A page is limited by bytes, because a frontmatter may take a megabyte once its aliases are expanded.
A page has at least one entry, so that paging always advances.
"""

from __future__ import annotations

import binascii
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from mcp_skills_server.errors import RequestError
from mcp_skills_server.model import Skill
from mcp_skills_server.model.decoding import load_json

MAX_BYTES: Final = 4 << 20
"""Approximate limit of a page in bytes: as much as SDKs accept in one message."""
_FILE: Final = 160
"""Bytes of a file in an entry without its URI: digest, size and field names."""
_MAX_LENGTH: Final = 65_536
"""Most characters of a cursor. The longest key is the path of a directory (4,096 characters, six
each in JSON) and a name in it, a third longer in base64; the rest is margin."""
_T = TypeVar("_T")


def encode(kind: str, key: str | None) -> str | None:
    """Return the cursor that continues the list `kind` after `key`, or None if `key` is None."""
    if key is None:
        return None
    raw = json.dumps([kind, key], separators=(",", ":")).encode("utf-8")
    return urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def decode(cursor: object) -> tuple[str, str]:
    """Return (list, key) of a cursor.

    Raises:
        RequestError: `encode` cannot have made the cursor.
    """
    try:
        if not isinstance(cursor, str) or len(cursor) > _MAX_LENGTH:
            raise ValueError
        kind, key = load_json(urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)))
        if not isinstance(kind, str) or not isinstance(key, str) or encode(kind, key) != cursor:
            raise ValueError
    except (ValueError, TypeError, binascii.Error):
        shown = repr(cursor)
        raise RequestError(
            f"Invalid cursor: {shown[:100]}; use the nextCursor of an earlier page"
        ) from None
    return kind, key


def start_key(params: Mapping[str, Any], kind: str) -> str | None:
    """Return the key after which a request continues the list `kind`, or None for its beginning.

    Raises:
        RequestError: the cursor is invalid, or belongs to another list.
    """
    cursor = params.get("cursor")
    if cursor is None:
        return None
    cursor_kind, key = decode(cursor)
    if cursor_kind != kind:
        raise RequestError(f"Invalid cursor: {cursor[:100]!r} belongs to another list")
    return key


def entry_bytes(skill: Skill) -> int:
    """Return the approximate bytes of a skill's entry: its frontmatter and its file URIs."""
    # thrice: percent-encoding triples a byte
    files = len(skill.files) * (_FILE + 3 * len(skill.path)) + 3 * sum(map(len, skill.files))
    return len(json.dumps(dict(skill.frontmatter))) + files


def first_page(entries: Iterable[_T], weigh: Callable[[_T], int]) -> list[_T]:
    """Return the first entries that fit in a page by their bytes (`weigh`), at least one."""
    out: list[_T] = []
    left = MAX_BYTES
    for entry in entries:
        left -= weigh(entry)
        if out and left < 0:
            break
        out.append(entry)
    return out
