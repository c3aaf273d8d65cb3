"""Addresses of the page: paths of its views, and fields of their queries."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextvars import ContextVar
from typing import Final
from urllib.parse import quote, urlencode

BASE: Final = "/ui"
"""The path of the page below the application's root path."""
prefix: Final[ContextVar[str]] = ContextVar("prefix", default="")
"""The path prefix that clients see before `BASE`, from `--root-path`."""


def start_of(query: Mapping[str, str]) -> int:
    """Return the list offset in a query; 0 without a valid one."""
    start = query.get("from", "")
    if start.isascii() and start.isdigit() and len(start) < 7:
        return int(start)
    return 0


def choice_of(
    query: Mapping[str, str], field: str, choices: Collection[str], default: str = ""
) -> str:
    """Return a field of a query if it is one of the choices, else the default."""
    named = query.get(field, "")
    if named in choices:
        return named
    return default


def list_address(view: str, fields: Mapping[str, str], start: int = 0) -> str:
    """Return the address of a list from offset `start` on, with these filters."""
    given = {key: value.encode("utf-8", "replace") for key, value in fields.items() if value}
    if start:
        given["from"] = b"%d" % start
    return f"{base()}/{view}?{urlencode(given)}".rstrip("?")


def base() -> str:
    """Return the page's path as the browser sees it, the start of every address."""
    return prefix.get() + BASE


def skill_address(path: str, view: str = "skills") -> str:
    """Return the address of a view of the skill at this path."""
    return f"{base()}/{view}/{quote(path)}"


def file_address(path: str, file: str, view: str = "files") -> str:
    """Return the address of a view of one file of the skill at this path."""
    return f"{skill_address(path, view)}?file={quote(file)}"
