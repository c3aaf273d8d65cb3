"""The protocols for skills over MCP that a server can speak, and how it speaks several at once.

A new one is its own module, a row here and a test of the module. Nothing else names one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from mcp_skills_server.dialects import sep2076, sep2640
from mcp_skills_server.dialects.dialect import Dialect, Entry, Result
from mcp_skills_server.errors import RequestError, UsageError, quoted
from mcp_skills_server.model import Json, Standing
from mcp_skills_server.model.clients import client_of

AUTO: Final = "auto"
"""Every row at once, to each client what it can take."""

TABLE: Final[dict[str, Dialect]] = {row.name: row for row in (sep2640.DIALECT, sep2076.DIALECT)}
"""By name. The order counts: where a `skills/get` could be meant for several, it is for the first;
where an entry is that of several, a key has the value of the last."""


def names() -> list[str]:
    """Return what an operator may choose."""
    return [AUTO, *sorted(TABLE)]


class Spoken(NamedTuple):
    """The dialects that one server speaks.

    Attributes:
        dialects: one at least, in the order of the table.
        least: the standing that a skill needs to be served: that of the strictest.
        notifications: their notifications by the key of the filter that asks for them.
    """

    dialects: tuple[Dialect, ...]
    least: Standing
    notifications: Mapping[str, str]

    def for_client(self, extensions: Collection[str]) -> tuple[Dialect, ...]:
        """Return the one whose extension a client declares, else all."""
        for each in self.dialects:
            if not each.extensions.keys().isdisjoint(extensions):
                return (each,)
        return self.dialects

    def shown_by(self, client: str | None, extensions: Collection[str]) -> Standing | None:
        """Return the standing from which a host of this name shows skills by itself, None where it
        does not."""
        declared = any(not each.extensions.keys().isdisjoint(extensions) for each in self.dialects)
        if declared and client_of(client).shows_skills:
            return self.least
        return None

    def asked(self, params: Mapping[str, Any]) -> tuple[Dialect, str]:
        """Return the dialect that a `skills/get` is meant for, and what it asks for.

        Raises:
            RequestError: its parameter is missing or no string.
        """
        for each in self.dialects:
            if each.parameter in params:
                target = params[each.parameter]
                if not isinstance(target, str):
                    raise RequestError(f"Parameter {each.parameter!r} must be a string")
                return each, target
        parameters = " or ".join(repr(each.parameter) for each in reversed(self.dialects))
        raise RequestError(f"Parameter {parameters} is missing")

    def declared(self, capabilities: Mapping[str, Json]) -> dict[str, Json]:
        """Return the capabilities of a server with those of these dialects."""
        out = dict(capabilities)
        for each in self.dialects:
            out |= each.capabilities
        extensions = {
            key: value for each in self.dialects for key, value in each.extensions.items()
        }
        if extensions:
            there = out.get("extensions")
            out["extensions"] = {**(there if isinstance(there, dict) else {}), **extensions}
        return out

    def framed(self, result: Result, ttl_ms: int) -> Result:
        """Return a result of `skills/list` as it is sent."""
        for each in self.dialects:
            if each.framed is not None:
                result = each.framed(result, ttl_ms)
        return result


def spoken(name: str) -> Spoken:
    """Return the dialects that a choice of the operator stands for.

    Raises:
        UsageError: it is none of `names()`.
    """
    if name != AUTO and name not in TABLE:
        raise UsageError(f"there is no dialect {quoted(name)}; give one of {', '.join(names())}")
    if name == AUTO:
        dialects = tuple(TABLE.values())
    else:
        dialects = (TABLE[name],)
    notifications = {key: method for each in dialects for key, method in each.notifications.items()}
    return Spoken(dialects, max(each.least for each in dialects), notifications)


def union(entries: Iterable[Entry]) -> Entry:
    """Return one entry that has what each of several dialects says of the same skill."""
    out: Entry = {}
    for each in entries:
        out |= each
    return out


def listing(entries: list[Json], next_cursor: str | None) -> Result:
    """Return the result of `skills/list` before it is framed, the same in every dialect."""
    if next_cursor is None:
        return {"skills": entries}
    return {"skills": entries, "nextCursor": next_cursor}
