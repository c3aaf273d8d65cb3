"""The two eras of MCP: what opens each, what a request must bring, and what surrounds its result. Pure.

The first request of a connection decides its era. In the legacy era a handshake says who the client is; in the modern
one every request does, in an envelope.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, cast

import mcp_skills_server
from mcp_skills_server.dialects.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from mcp_skills_server.server import parameters
from mcp_skills_server.server.methods import MODERN_VERSIONS, SKILLS, Fault
from mcp_skills_server.server.parameters import Shape

INITIALIZE: Final = "initialize"
DISCOVER: Final = "server/discover"
PING: Final = "ping"
LEGACY_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Revisions that a handshake can settle on; the last where the client asks for none of them."""
_UNSUPPORTED_VERSION: Final = -32022
_SERVER: Final = {"name": "mcp-skills-server", "title": "Agent Skills", "version": mcp_skills_server.__version__}
_SERVER_KEY: Final = "io.modelcontextprotocol/serverInfo"
_ONLY_MODERN: Final = ("resultType", "ttlMs", "cacheScope")
"""Fields of results that revisions of the legacy era do not have."""

_LEGACY_ENVELOPE: Final[Shape] = {"_meta?": parameters.LEGACY_META}
_MODERN_ENVELOPE: Final[Shape] = {"_meta": parameters.MODERN_META}

Params: TypeAlias = Mapping[str, Any]


class McpClient(NamedTuple):
    """The client of a request.

    Attributes:
        extensions: the extensions of MCP that it declared.
        name: what it calls itself, None where it does not say.
        version: the revision of MCP that it speaks; "" where that is not settled.
    """

    extensions: Collection[str] = ()
    name: str | None = None
    version: str = ""


NOBODY: Final = McpClient()


class Era(NamedTuple):
    """One era.

    Attributes:
        name: as events have it.
        modern: whether each request stands alone.
        shapes: by method the shape of its parameters; what is not here is unknown.
    """

    name: str
    modern: bool
    shapes: Mapping[str, Shape]

    def envelope_fault(self, method: str, params: Params | None) -> Fault | None:
        """Return why a request cannot be on a connection of this era, or None. It tells who the client is."""
        return (_not_modern if self.modern else _not_legacy)(method, params or {})

    def params_fault(self, method: str, params: Params | None) -> Fault | None:
        """Return why the parameters of a request are refused, or its method, or None."""
        shape = self.shapes.get(method)
        return unknown(method) if shape is None else _misfit(params or {}, shape)

    def written(self, method: str, result: Mapping[str, Any]) -> dict[str, Any]:
        """Return a handler's result as this era has it."""
        out = dict(result)
        if self.modern:
            out.setdefault("resultType", "complete")
            out["_meta"] = {**(out.get("_meta") or {}), _SERVER_KEY: _SERVER}
        elif method not in SKILLS:  # those are the same in both eras
            for key in _ONLY_MODERN:
                out.pop(key, None)
        return out


LEGACY: Final = Era("legacy", False, parameters.LEGACY)
MODERN: Final = Era("modern", True, parameters.MODERN)


def unknown(method: str) -> Fault:
    """Return the fault of a method that is not served."""
    return Fault(METHOD_NOT_FOUND, "Method not found", method)


def era_of(method: str, params: Params | None) -> Era:
    """Return the era that the first request of a connection opens."""
    return MODERN if method != INITIALIZE and _has_envelope(params) else LEGACY


def _has_envelope(params: Params | None) -> bool:
    meta = params.get("_meta") if params else None
    return isinstance(meta, dict) and parameters.VERSION in meta


def _misfit(value: Any, shape: Shape, name: str = "params") -> Fault | None:
    reason = parameters.wrong(value, shape, name)
    return None if reason is None else Fault(INVALID_PARAMS, f"Invalid params: {reason}")


def _not_legacy(method: str, params: Params) -> Fault | None:
    if method == INITIALIZE or not _has_envelope(params):
        return _misfit(params, _LEGACY_ENVELOPE)
    return Fault(
        INVALID_REQUEST,
        "this connection serves the handshake protocol era; requests carrying the 2026-07-28 envelope are not accepted "
        "on it",
    )


def _not_modern(method: str, params: Params) -> Fault | None:
    if method == INITIALIZE:
        asked = params.get("protocolVersion")
        data = {"supported": list(MODERN_VERSIONS), **({"requested": asked} if isinstance(asked, str) else {})}
        return Fault(
            _UNSUPPORTED_VERSION,
            "connection is serving the 2026-07-28 protocol; the initialize handshake is not accepted",
            data,
        )
    meta: object = params.get("_meta")
    version = cast(Params, meta).get(parameters.VERSION) if isinstance(meta, dict) else None
    if isinstance(version, str) and version not in MODERN_VERSIONS:  # whose envelope may have another shape
        data = {"supported": list(MODERN_VERSIONS), "requested": version}
        return Fault(_UNSUPPORTED_VERSION, "Unsupported protocol version", data)
    return _misfit(params, _MODERN_ENVELOPE)


def client_of_handshake(params: Params) -> McpClient:
    """Return the client whose `initialize` has these parameters, which have their shape."""
    extensions: Params = params["capabilities"].get("extensions") or {}
    return McpClient(extensions, params["clientInfo"]["name"], settled(params["protocolVersion"]))


def client_of_envelope(params: Params) -> McpClient:
    """Return the client of a modern request whose parameters have a whole envelope."""
    meta = params["_meta"]
    info: Params = meta.get(parameters.CLIENT) or {}
    return McpClient(meta[parameters.CAPABILITIES].get("extensions") or {}, info.get("name"), meta[parameters.VERSION])


def settled(asked: str) -> str:
    """Return the revision that a handshake settles on, for the one that the client asks for."""
    return asked if asked in LEGACY_VERSIONS else LEGACY_VERSIONS[-1]


def handshake(params: Params, capabilities: Params) -> dict[str, Any]:
    """Return the result of `initialize`, but for what the skills add."""
    version = settled(params["protocolVersion"])
    return {"capabilities": capabilities, "protocolVersion": version, "serverInfo": _SERVER}


def discovery(capabilities: Params) -> dict[str, Any]:
    """Return the result of `server/discover`, but for what the skills add."""
    return {
        "cacheScope": "private",
        "capabilities": capabilities,
        "resultType": "complete",
        "supportedVersions": list(MODERN_VERSIONS),
        "ttlMs": 0,
    }
