"""Table of the dialects, and a server's set of dialects spoken at once.

To add one, write its module and the module's test, and add a row here; nothing else names dialects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from mcp_skills_server.dialects import sep2076, sep2640
from mcp_skills_server.dialects.dialect import Dialect, Entry, EntryContext, Result, is_initial
from mcp_skills_server.errors import RequestError, UsageError, quoted
from mcp_skills_server.format.fields import mapping
from mcp_skills_server.model import Json, Standing
from mcp_skills_server.model.clients import NativeLimits, client_of

AUTO: Final = "auto"
"""All dialects at once; each client gets those that it can use."""

TABLE: Final[dict[str, Dialect]] = {row.name: row for row in (sep2640.DIALECT, sep2076.DIALECT)}
"""Dialects by name, in order of precedence.

The first one that fits handles an ambiguous `skills/get`. In a merged entry, the last one's value
of a key wins.
"""


def names() -> list[str]:
    """Return the valid values of `--dialect`."""
    return [AUTO, *sorted(TABLE)]


class DialectSet(NamedTuple):
    """The dialects that one server speaks.

    Attributes:
        dialects: at least one, in the order of the table.
        least: the lowest standing of a served skill, from the strictest dialect.
        notifications: their methods, by key in the filter of `subscriptions/listen`.
    """

    dialects: tuple[Dialect, ...]
    least: Standing
    notifications: Mapping[str, str]

    def for_client(self, extensions: Mapping[str, Any]) -> tuple[Dialect, ...]:
        """Return the dialect whose extension the client declares, or all dialects if none is.

        An extension of an unknown revision does not count as declared.
        """
        return self._declared(extensions)[:1] or self.dialects

    def _declared(self, extensions: Mapping[str, Any]) -> tuple[Dialect, ...]:
        names = {name for name, settings in extensions.items() if is_initial(settings)}
        return tuple(dialect for dialect in self.dialects if names & dialect.extensions.keys())

    def native_limits(
        self, client: str | None, extensions: Mapping[str, Any]
    ) -> NativeLimits | None:
        """Return the part of `skills/list` that a host shows by itself; None if it shows none."""
        if self._declared(extensions):
            return client_of(client).native
        return None

    def dialect_of(self, params: Mapping[str, Any]) -> tuple[Dialect, str]:
        """Return the dialect of a `skills/get` from its parameter, and the parameter's value.

        Raises:
            RequestError: the parameter is missing or not a string.
        """
        for dialect in self.dialects:
            target = params.get(dialect.parameter)
            if target is not None:
                if not isinstance(target, str):
                    raise RequestError(f"Parameter {dialect.parameter!r} must be a string")
                return dialect, target
        parameters = " or ".join(repr(dialect.parameter) for dialect in reversed(self.dialects))
        raise RequestError(f"Parameter {parameters} is missing")

    def with_capabilities(self, capabilities: Mapping[str, Json]) -> dict[str, Json]:
        """Merge the capabilities and extensions of these dialects into a server's capabilities."""
        out = dict(capabilities)
        for dialect in self.dialects:
            out |= dialect.capabilities
        extensions = {
            key: value for dialect in self.dialects for key, value in dialect.extensions.items()
        }
        if extensions:
            out["extensions"] = mapping(out.get("extensions")) | extensions
        return out


def select_dialects(name: str) -> DialectSet:
    """Return the dialects for a value of `--dialect`.

    Raises:
        UsageError: it is not in `names()`.
    """
    if name not in names():
        raise UsageError(f"unknown dialect {quoted(name)}; give one of {', '.join(names())}")
    dialects = tuple(dialect for dialect in TABLE.values() if name in (AUTO, dialect.name))
    notifications = {
        key: method for dialect in dialects for key, method in dialect.notifications.items()
    }
    return DialectSet(dialects, max(dialect.least for dialect in dialects), notifications)


def entry(context: EntryContext, dialects: Iterable[Dialect]) -> Entry:
    """Return the entry of a skill in `skills/list`, merged from those of the dialects."""
    merged: Entry = {}
    for dialect in dialects:
        merged |= dialect.entry(context)
    return merged


def with_envelope(dialects: Iterable[Dialect], result: Result, ttl_ms: int) -> Result:
    """Add the envelope of each dialect to a result of `skills/list` or `skills/get`."""
    for dialect in dialects:
        if dialect.with_envelope is not None:
            result = dialect.with_envelope(result, ttl_ms)
    return result


def listing(entries: list[Json], next_cursor: str | None) -> Result:
    """Return the result of `skills/list` without envelope, the same in every dialect."""
    out: Result = {"skills": entries}
    if next_cursor is not None:
        out["nextCursor"] = next_cursor
    return out
