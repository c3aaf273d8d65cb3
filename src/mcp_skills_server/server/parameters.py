"""The shapes of request parameters, as the schemas of MCP have them, and the check of a value against a shape. Pure.

A shape is a type, a tuple of alternatives, a set of words, `[shape]` for an array, or a mapping for an object. A key
of such a mapping that ends with `?` may be absent, or null: many clients write null for what they leave out. The key
`*` stands for all others, which are otherwise not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast

Shape: TypeAlias = "type | tuple[Shape, ...] | frozenset[str] | list[Shape] | Mapping[str, Shape]"

VERSION: Final = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
CLIENT: Final = "io.modelcontextprotocol/clientInfo"
_LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"

_NAMES: Final[Mapping[type, str]] = {str: "a string", bool: "a boolean", int: "an integer", dict: "an object"}


def wrong(value: Any, shape: Shape, name: str = "params") -> str | None:
    """Return what is wrong with a value, by its name; None if it has the shape."""
    if isinstance(shape, type):
        if type(value) is shape or (shape is int and type(value) is float and value.is_integer()):
            return None
        return f"{name} must be {_NAMES[shape]}"
    if isinstance(shape, tuple):
        reasons = [wrong(value, each, name) for each in shape]
        return None if None in reasons else reasons[0]
    if isinstance(shape, frozenset):
        if isinstance(value, str) and value in shape:
            return None
        return f"{name} must be one of {', '.join(sorted(shape))}"
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{name} must be an array"
        items = cast("list[Any]", value)
        return _first(wrong(each, shape[0], f"{name}[{place}]") for place, each in enumerate(items))
    if not isinstance(value, dict):
        return f"{name} must be an object"
    return _first(_wrong_field(cast("dict[str, Any]", value), key, inner, name) for key, inner in shape.items())


def _wrong_field(fields: Mapping[str, Any], key: str, shape: Shape, name: str) -> str | None:
    if key == "*":
        return _first(wrong(each, shape, f"{name}.{other}") for other, each in fields.items())
    if key.endswith("?"):
        key = key[:-1]
        return None if fields.get(key) is None else wrong(fields[key], shape, f"{name}.{key}")
    return wrong(fields[key], shape, f"{name}.{key}") if key in fields else f"{name}.{key} is missing"


def _first(reasons: Any) -> str | None:
    return next((each for each in reasons if each is not None), None)


_LEVEL: Final = frozenset({"alert", "critical", "debug", "emergency", "error", "info", "notice", "warning"})
_ICON: Final[Shape] = {"src": str, "mimeType?": str, "sizes?": [str], "theme?": frozenset({"light", "dark"})}
CLIENT_INFO: Final[Shape] = {
    "name": str, "version": str, "title?": str, "description?": str, "websiteUrl?": str, "icons?": [_ICON],
}  # fmt: skip
_OBJECTS: Final[Shape] = {"*": dict}
_TASKS: Final[Shape] = {
    "list?": dict,
    "cancel?": dict,
    "requests?": {"sampling?": {"createMessage?": dict}, "elicitation?": {"create?": dict}},
}
_BOTH_CAPABILITIES: Final[Mapping[str, Shape]] = {
    "experimental?": _OBJECTS,
    "extensions?": _OBJECTS,
    "sampling?": {"context?": dict, "tools?": dict},
    "elicitation?": {"form?": dict, "url?": dict},
}
_LEGACY_CAPABILITIES: Final[Shape] = {**_BOTH_CAPABILITIES, "roots?": {"listChanged?": bool}, "tasks?": _TASKS}
_MODERN_CAPABILITIES: Final[Shape] = {**_BOTH_CAPABILITIES, "roots?": dict}

LEGACY_META: Final[Mapping[str, Shape]] = {"progressToken?": (str, int)}
"""The shape of `_meta`, which may be absent."""
MODERN_META: Final[Mapping[str, Shape]] = {
    VERSION: str,
    CAPABILITIES: _MODERN_CAPABILITIES,
    f"{CLIENT}?": CLIENT_INFO,
    f"{_LOG_LEVEL}?": _LEVEL,
    **LEGACY_META,
}
"""The shape of `_meta` in the modern era, the envelope that every request carries."""
_ANSWERED: Final[Mapping[str, Shape]] = {"inputResponses?": dict, "requestState?": str}
_REFERENCE: Final[Shape] = (
    {"type": frozenset({"ref/prompt"}), "name": str, "title?": str},
    {"type": frozenset({"ref/resource"}), "uri": str},
)

_BOTH: Final[Mapping[str, Mapping[str, Shape]]] = {
    # What these three take beside `_meta` depends on the dialect and is checked there.
    "skills/list": {},
    "skills/get": {},
    "resources/directory/read": {},
    "tools/list": {"cursor?": str},
    "tools/call": {"name": str, "arguments?": dict, "task?": {"ttl?": int}, **_ANSWERED},
    "prompts/list": {"cursor?": str},
    "prompts/get": {"name": str, "arguments?": {"*": str}, **_ANSWERED},
    "resources/list": {"cursor?": str},
    "resources/templates/list": {"cursor?": str},
    "resources/read": {"uri": str, **_ANSWERED},
    "completion/complete": {
        "argument": {"name": str, "value": str},
        "ref": _REFERENCE,
        "context?": {"arguments?": {"*": str}},
    },
}
_LEGACY: Final[Mapping[str, Mapping[str, Shape]]] = {
    "initialize": {"capabilities": _LEGACY_CAPABILITIES, "clientInfo": CLIENT_INFO, "protocolVersion": str},
    "ping": {},
    "resources/subscribe": {"uri": str},
    "resources/unsubscribe": {"uri": str},
}
_MODERN: Final[Mapping[str, Mapping[str, Shape]]] = {
    "server/discover": {},
    "subscriptions/listen": {
        "notifications": {
            "toolsListChanged?": bool,
            "promptsListChanged?": bool,
            "resourcesListChanged?": bool,
            "resourceSubscriptions?": [str],
        }
    },
}

LEGACY: Final[Mapping[str, Shape]] = {**_BOTH, **_LEGACY}
"""The methods of the legacy era, whose revisions share one table, and the shapes of their parameters beside `_meta`."""
MODERN: Final[Mapping[str, Shape]] = {**_BOTH, **_MODERN}
"""The same of the modern era."""
