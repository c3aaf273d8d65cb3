"""The methods of each era, and what their parameters have to look like. Pure tables.

The revisions of the legacy era share one table, as in the SDK.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mcp_skills_server.server.front.shapes import (
    Check,
    dict_of,
    either,
    flag,
    list_of,
    mapping,
    one_of,
    or_null,
    record,
    remembered,
    text,
    token,
    whole,
)

VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
CLIENT_KEY: Final = "io.modelcontextprotocol/clientInfo"
_LOG_LEVEL_KEY: Final = "io.modelcontextprotocol/logLevel"

_LEVEL: Final = one_of("alert", "critical", "debug", "emergency", "error", "info", "notice", "warning")
_ICON: Final = record({"src": text}, mimeType=text, sizes=list_of(text), theme=one_of("light", "dark"))
CLIENT: Final = record(
    {"name": text, "version": text}, title=text, description=text, websiteUrl=text, icons=list_of(_ICON)
)
"""What a client says of itself."""
_OBJECTS: Final = dict_of(mapping)
_TASKS: Final = record(
    list=mapping,
    cancel=mapping,
    requests=record(sampling=record(createMessage=mapping), elicitation=record(create=mapping)),
)
_CAPABILITIES: Final[Mapping[str, Check]] = {
    "experimental": _OBJECTS,
    "extensions": _OBJECTS,
    "sampling": record(context=mapping, tools=mapping),
    "elicitation": record(form=mapping, url=mapping),
}
CAPABILITIES: Final = record(**_CAPABILITIES, roots=record(listChanged=flag), tasks=_TASKS)
"""What a client can do, as it is remembered. One that does not fit counts as one that declares nothing."""
_MODERN_CAPABILITIES: Final = record(**_CAPABILITIES, roots=mapping)


def _present(key: str, check: Check) -> Check:
    """A field that may be absent, but not null."""
    return lambda value: key not in value or check(value[key])


_HAS_TOKEN: Final = _present("progressToken", token)


def _legacy_meta(value: Any) -> bool:
    return isinstance(value, dict) and _HAS_TOKEN(value)


_MODERN_META_FIELDS: Final = record(
    {CAPABILITIES_KEY: _MODERN_CAPABILITIES, VERSION_KEY: text}, **{CLIENT_KEY: CLIENT, _LOG_LEVEL_KEY: _LEVEL}
)


_modern_meta: Final = remembered(lambda value: _MODERN_META_FIELDS(value) and _HAS_TOKEN(value))


_CURSOR: Final[Mapping[str, Check]] = {"cursor": text}
_ANSWERED: Final[Mapping[str, Check]] = {"inputResponses": mapping, "requestState": text}
_REFERENCE: Final = either(
    record({"type": one_of("ref/prompt"), "name": text}, title=text),
    record({"type": one_of("ref/resource"), "uri": text}),
)
_FILTER: Final = record(
    toolsListChanged=flag, promptsListChanged=flag, resourcesListChanged=flag, resourceSubscriptions=list_of(text)
)

_Fields = tuple[Mapping[str, Check], Mapping[str, Check]]
_BOTH: Final[Mapping[str, _Fields]] = {
    "tools/list": ({}, _CURSOR),
    "tools/call": ({"name": text}, {"arguments": mapping, "task": record(ttl=whole), **_ANSWERED}),
    "prompts/list": ({}, _CURSOR),
    "prompts/get": ({"name": text}, {"arguments": dict_of(text), **_ANSWERED}),
    "resources/list": ({}, _CURSOR),
    "resources/templates/list": ({}, _CURSOR),
    "resources/read": ({"uri": text}, _ANSWERED),
    "completion/complete": (
        {"argument": record({"name": text, "value": text}), "ref": _REFERENCE},
        {"context": record(arguments=dict_of(text))},
    ),
}
"""By method the fields of its parameters: those that must be there, and those that may."""
_LEGACY: Final[Mapping[str, _Fields]] = {
    "initialize": ({"capabilities": CAPABILITIES, "clientInfo": CLIENT, "protocolVersion": text}, {}),
    "logging/setLevel": ({"level": _LEVEL}, {}),
    "ping": ({}, {}),
    "resources/subscribe": ({"uri": text}, {}),
    "resources/unsubscribe": ({"uri": text}, {}),
}
_MODERN: Final[Mapping[str, _Fields]] = {
    "server/discover": ({}, {}),
    "subscriptions/listen": ({"notifications": _FILTER}, {}),
}
OURS: Final = ("skills/list", "skills/get", "resources/directory/read")
"""Methods that MCP does not have: only `_meta` is looked at, the rest by their handlers."""


def _params(needed: Mapping[str, Check], given: Mapping[str, Check]) -> Check:
    """Parameters that may be left out where no field must be there."""
    fits = record({**needed}, **given)
    return fits if needed else or_null(fits)


LEGACY: Final[Mapping[str, Check]] = {
    **{
        method: _params(needed, {**given, "_meta": _legacy_meta})
        for method, (needed, given) in {**_BOTH, **_LEGACY}.items()
    },
    **{method: _params({}, {"_meta": _legacy_meta}) for method in OURS},
}
"""By method of the legacy era what fits as its parameters."""
MODERN: Final[Mapping[str, Check]] = {
    **{
        method: _params({**needed, "_meta": _modern_meta}, given)
        for method, (needed, given) in {**_BOTH, **_MODERN}.items()
    },
    **{method: _params({}, {"_meta": _legacy_meta}) for method in OURS},
}
"""The same of the modern era, where every request carries its envelope in `_meta`."""
