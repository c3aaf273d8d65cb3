"""The two eras of MCP: their requests' parameter shapes, errors, and result envelopes.

The first request of a connection decides its era. In the legacy era a handshake identifies the
client; in the modern era every request does, in an envelope.

A shape is a type, a tuple of alternatives, a set of words, `[shape]` for an array, or a mapping for
an object. A key that ends with `?` may be absent or null, because many clients write null for an
absent field. The key `*` stands for all other keys, which are otherwise unchecked. A shape has the
fields that this server reads.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias, cast

import mcp_skills_server
from mcp_skills_server.access.quota import QuotaError
from mcp_skills_server.dialects.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    QUOTA_EXCEEDED,
)
from mcp_skills_server.errors import REPEATS, NotServedError, RequestError, SkillsServerError
from mcp_skills_server.format.fields import mapping
from mcp_skills_server.telemetry.events import Outcome

logger = logging.getLogger(__name__)

MODERN_VERSIONS: Final = ("2026-07-28",)
"""Protocol revisions in which every request has its own envelope."""
LEGACY_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Revisions for the handshake; the last one is the default for an unknown request."""
HEADER_MISMATCH: Final = -32020
UNSUPPORTED_VERSION: Final = -32022
_LEGACY_NOT_FOUND: Final = -32002
"""The code of an unknown resource in the legacy era."""
SKILLS: Final = frozenset({"skills/list", "skills/get", "resources/directory/read"})
"""Extension methods. Each dialect checks their params other than `_meta`."""

Shape: TypeAlias = "type | tuple[Shape, ...] | frozenset[str] | list[Shape] | Mapping[str, Shape]"

Params: TypeAlias = Mapping[str, Any]

INITIALIZE: Final = "initialize"
DISCOVER: Final = "server/discover"
PING: Final = "ping"
CALL: Final = "tools/call"
LISTEN: Final = "subscriptions/listen"
_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
_CLIENT: Final = "io.modelcontextprotocol/clientInfo"

_TYPE_NAMES: Final[Mapping[type, str]] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    dict: "an object",
}


def shape_error(value: Any, shape: Shape, name: str = "params") -> str | None:
    """Return an error message that names the value, or None if it has the shape."""
    if isinstance(shape, type):
        if type(value) is shape or (shape is int and type(value) is float and value.is_integer()):
            return None
        return f"{name} must be {_TYPE_NAMES[shape]}"
    if isinstance(shape, tuple):
        reasons = [shape_error(value, option, name) for option in shape]
        if None in reasons:
            return None
        return " or ".join(dict.fromkeys(filter(None, reasons)))
    if isinstance(shape, frozenset):
        if isinstance(value, str) and value in shape:
            return None
        return f"{name} must be one of {', '.join(sorted(shape))}"
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{name} must be an array"
        items = cast("list[Any]", value)
        return _first(shape_error(item, shape[0], f"{name}[{i}]") for i, item in enumerate(items))
    if not isinstance(value, dict):
        return f"{name} must be an object"
    fields = cast("dict[str, Any]", value)
    return _first(_field_error(fields, key, inner, name) for key, inner in shape.items())


def _field_error(fields: Mapping[str, Any], key: str, shape: Shape, name: str) -> str | None:
    plain = key.removesuffix("?")
    if plain == "*":
        is_optional = plain != key  # then null counts as absent
        return _first(
            shape_error(value, shape, f"{name}.{field[:100]}")
            for field, value in fields.items()
            if not (is_optional and value is None)
        )
    if plain != key and fields.get(plain) is None:
        return None
    if plain in fields:
        return shape_error(fields[plain], shape, f"{name}.{plain}")
    return f"{name}.{key} is missing"


def _first(reasons: Any) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)


_CLIENT_INFO: Final[Shape] = {"name": str, "version": str}
_CLIENT_CAPABILITIES: Final[Shape] = {"extensions?": {"*": dict}}
_TOKEN: Final[Mapping[str, Shape]] = {"progressToken?": (str, int)}
_LEGACY_ENVELOPE: Final[Shape] = {"_meta?": _TOKEN}
_MODERN_ENVELOPE: Final[Shape] = {
    "_meta": {
        _VERSION: str,
        _CAPABILITIES: _CLIENT_CAPABILITIES,
        f"{_CLIENT}?": _CLIENT_INFO,
        **_TOKEN,
    }
}
_REFERENCE: Final[Shape] = (
    {"type": frozenset({"ref/prompt"}), "name": str},
    {"type": frozenset({"ref/resource"}), "uri": str},
)

_BOTH: Final[Mapping[str, Shape]] = {
    **{method: {} for method in SKILLS},
    "tools/list": {"cursor?": str},
    "tools/call": {"name": str, "arguments?": dict},
    "prompts/list": {"cursor?": str},
    "prompts/get": {"name": str, "arguments?": {"*?": str}},
    "resources/list": {"cursor?": str},
    "resources/templates/list": {"cursor?": str},
    "resources/read": {"uri": str},
    "completion/complete": {"argument": {"name": str, "value": str}, "ref": _REFERENCE},
}
_LEGACY: Final[Mapping[str, Shape]] = {
    **_BOTH,
    INITIALIZE: {
        "capabilities": _CLIENT_CAPABILITIES,
        "clientInfo": _CLIENT_INFO,
        "protocolVersion": str,
    },
    PING: {},
    "resources/subscribe": {"uri": str},
    "resources/unsubscribe": {"uri": str},
}
_MODERN: Final[Mapping[str, Shape]] = {
    **_BOTH,
    DISCOVER: {},
    "subscriptions/listen": {
        "notifications": {
            "toolsListChanged?": bool,
            "promptsListChanged?": bool,
            "resourcesListChanged?": bool,
            "resourceSubscriptions?": [str],
        }
    },
}

_SERVER: Final = {
    "name": "mcp-skills-server",
    "title": "Agent Skills",
    "version": mcp_skills_server.__version__,
}
_OWN_CAPABILITIES: Final[Params] = {"completions": {}}
_SERVER_KEY: Final = "io.modelcontextprotocol/serverInfo"
_ONLY_MODERN: Final = ("resultType", "ttlMs", "cacheScope")
"""Result fields that the legacy era does not have."""


class FaultError(SkillsServerError):
    """The error response to a request; its message is one line for people."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


def outcome_of_error(code: int) -> Outcome:
    """Return the event outcome of an error response with this code."""
    if code == INTERNAL_ERROR:
        return "failed"
    return "refused"


def outcome_of_result(result: Mapping[str, Any]) -> Outcome | None:
    """Return the event outcome of a result: "refused" for `isError`, else None."""
    if result.get("isError"):
        return "refused"
    return None


class McpClient(NamedTuple):
    """The client of a request.

    Attributes:
        extensions: the MCP extensions that it declared, with its settings.
        version: its protocol revision, or "" before negotiation.
    """

    extensions: Mapping[str, Any] = MappingProxyType({})
    name: str | None = None
    version: str = ""


UNKNOWN_CLIENT: Final = McpClient()


class Era(NamedTuple):
    """One era.

    Attributes:
        name: in events.
        modern: whether requests are stateless.
        shapes: shapes of the params other than `_meta`, by method; other methods are unknown.
    """

    name: str
    modern: bool
    shapes: Mapping[str, Shape]

    def check_envelope(self, method: str, params: Params) -> None:
        """Raise FaultError for an invalid envelope of a request."""
        if self.modern:
            _check_modern(method, params)
        else:
            _check_legacy(method, params)

    def check_params(self, method: str, params: Params) -> None:
        """Raise FaultError for an unknown method, or invalid params, of a request."""
        shape = self.shapes.get(method)
        if shape is None:
            raise unknown(method)
        _check_shape(params, shape)

    def fault_of(self, error: Exception, method: str) -> FaultError:
        """Map a handler's exception to a fault: client errors by code, bugs as -32603, logged."""
        if isinstance(error, FaultError):
            return error
        if isinstance(error, NotServedError):
            code = INVALID_PARAMS if self.modern else _LEGACY_NOT_FOUND
            return FaultError(code, str(error), {"uri": error.uri})
        if isinstance(error, QuotaError):
            return FaultError(QUOTA_EXCEEDED, str(error), {"quota": error.quota})
        if isinstance(error, RequestError):
            return FaultError(INVALID_PARAMS, str(error))
        logger.error("%s failed", method, exc_info=error, extra=REPEATS)
        return FaultError(INTERNAL_ERROR, "Internal error")

    def in_era(self, method: str, result: Mapping[str, Any]) -> dict[str, Any]:
        """Convert a handler's result to the form of this era."""
        out = dict(result)
        if self.modern:
            out.setdefault("resultType", "complete")
            out["_meta"] = {**(out.get("_meta") or {}), _SERVER_KEY: _SERVER}
        elif method not in SKILLS:
            # The extension requires these fields without naming an era, and nothing forbids them
            # in a legacy result. Clients must not rely on them: other servers leave them out.
            for key in _ONLY_MODERN:
                out.pop(key, None)
        return out


LEGACY: Final = Era("legacy", False, _LEGACY)
MODERN: Final = Era("modern", True, _MODERN)


def unknown(method: str) -> FaultError:
    """Return the fault of an unknown method."""
    return FaultError(METHOD_NOT_FOUND, "Method not found", method)


def era_of_version(version: str) -> Era:
    """Return the era of a revision of the protocol."""
    if version in MODERN_VERSIONS:
        return MODERN
    return LEGACY


def era_of(method: str, params: Params | None) -> Era:
    """Return the era that the first request of a connection opens."""
    if method != INITIALIZE and envelope_version(params) is not None:
        return MODERN
    return LEGACY


def envelope_version(params: Params | None) -> object:
    """Return the version in a request's envelope, of any type; None without one."""
    return mapping((params or {}).get("_meta")).get(_VERSION)


def _check_shape(params: Params, shape: Shape) -> None:
    reason = shape_error(params, shape)
    if reason is not None:
        raise FaultError(INVALID_PARAMS, f"Invalid params: {reason}")


def _check_legacy(method: str, params: Params) -> None:
    if method != INITIALIZE and envelope_version(params) not in (None, *LEGACY_VERSIONS):
        raise FaultError(
            INVALID_REQUEST,
            "this connection serves the handshake protocol era; requests carrying the 2026-07-28 "
            "envelope are not accepted on it",
        )
    _check_shape(params, _LEGACY_ENVELOPE)


def _check_modern(method: str, params: Params) -> None:
    if method == INITIALIZE:
        raise _unsupported(
            "connection is serving the 2026-07-28 protocol; the initialize handshake is not "
            "accepted",
            params.get("protocolVersion"),
        )
    version = envelope_version(params)
    # checked first, because another revision may have another envelope
    if isinstance(version, str) and version not in MODERN_VERSIONS:
        raise unsupported_version(version)
    _check_shape(params, _MODERN_ENVELOPE)


def unsupported_version(version: str) -> FaultError:
    """Return the fault of a request in a revision that the modern era does not have."""
    return _unsupported("Unsupported protocol version", version)


def _unsupported(message: str, requested: object) -> FaultError:
    data: dict[str, Any] = {"supported": list(MODERN_VERSIONS)}
    if isinstance(requested, str):
        data["requested"] = requested
    return FaultError(UNSUPPORTED_VERSION, message, data)


def client_of_handshake(params: Params) -> McpClient:
    """Return the client of an `initialize` request with valid params."""
    extensions: Params = params["capabilities"].get("extensions") or {}
    version = _negotiate(params["protocolVersion"])
    return McpClient(extensions, params["clientInfo"]["name"], version)


def client_of_envelope(params: Params) -> McpClient:
    """Return the client of a modern request with a valid envelope."""
    meta = params["_meta"]
    info: Params = meta.get(_CLIENT) or {}
    return McpClient(meta[_CAPABILITIES].get("extensions") or {}, info.get("name"), meta[_VERSION])


def _negotiate(asked: str) -> str:
    """Negotiate a legacy revision: the requested one if it is supported, else the latest."""
    if asked in LEGACY_VERSIONS:
        return asked
    return LEGACY_VERSIONS[-1]


def handshake(params: Params) -> dict[str, Any]:
    """Return the result of `initialize`, without the additions for skills."""
    version = _negotiate(params["protocolVersion"])
    return {"capabilities": _OWN_CAPABILITIES, "protocolVersion": version, "serverInfo": _SERVER}


def discovery() -> dict[str, Any]:
    """Return the result of `server/discover`, without the additions for skills."""
    return {
        "cacheScope": "private",
        "capabilities": _OWN_CAPABILITIES,
        "resultType": "complete",
        "supportedVersions": list(MODERN_VERSIONS),
        "ttlMs": 0,
    }
