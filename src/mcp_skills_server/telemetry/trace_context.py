"""W3C Trace Context of a request, from its message and from HTTP headers.

It is looked at only where a reader of events wants it (`Events.wants_traces`). What clients send is bounded here and
judged by its reader; baggage is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, cast

from mcp_skills_server.errors import clipped

_PARENT: Final = "traceparent"
_STATE: Final = "tracestate"
_LONGEST: Final = 512
"""Characters of either, which every implementation must take; longer ones are none."""
_TARGETED: Final = frozenset(("tools/call", "prompts/get"))

Carrier = dict[str, str]
"""`traceparent`, and `tracestate` where there is one; empty where there is neither."""


class Trace(NamedTuple):
    """The trace context and attributes of a request, beside its event.

    Attributes:
        message: what `_meta` of the message says of the span that it belongs to.
        http: what the headers of its HTTP request say.
        id: of the message, at most 200 characters; "" where there is none.
        target: the name of the tool or prompt that is asked for, at most 200 characters; "" where there is none.
        version: the revision of MCP that is spoken; "" where none is settled.
    """

    message: Carrier
    http: Carrier
    id: str = ""
    target: str = ""
    version: str = ""


of_http: Final[ContextVar[Carrier | None]] = ContextVar("of_http", default=None)
"""What the headers of the HTTP request say that is being answered here."""


def of_headers(headers: Iterable[tuple[bytes, bytes]]) -> Carrier:
    """Return the trace context of the headers of an HTTP request, whose names are in lower case."""
    return _carrier({name.decode("latin-1"): value.decode("latin-1") for name, value in headers})


def trace_of(
    method: str,
    params: Mapping[str, Any] | None = None,
    id_: object = None,
    http: Carrier | None = None,
    *,
    version: str = "",
) -> Trace:
    """Return where a request belongs in a trace.

    Args:
        method: which one is called.
        params: as the client sent them.
        id_: of the message.
        http: what the headers say, where they are not those of the request that is being answered here.
        version: the revision of MCP that is spoken; "" where none is settled.
    """
    given = params or {}
    meta, name = given.get("_meta"), given.get("name")
    message: Carrier = {}
    if isinstance(meta, Mapping):
        message = _carrier(cast("Mapping[str, Any]", meta))
    if http is None:
        http = of_http.get() or {}
    id_text = target = ""
    if id_ is not None:
        id_text = clipped(str(id_))
    if method in _TARGETED and isinstance(name, str):
        target = clipped(name)
    return Trace(message, http, id_text, target, version)


def _carrier(found: Mapping[str, Any]) -> Carrier:
    parent, state = found.get(_PARENT), found.get(_STATE)
    if not isinstance(parent, str) or len(parent) > _LONGEST:
        return {}
    if not isinstance(state, str) or len(state) > _LONGEST:
        return {_PARENT: parent}
    return {_PARENT: parent, _STATE: state}
