"""The two eras of MCP as rows: what opens one, what a request must bring, and what surrounds its result.

The first request of a connection decides its era. In the legacy era a handshake says who the client is; in the modern
one each request does. Nothing outside this module asks which era it is but for what a row says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, cast

import mcp_skills_server
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from mcp_skills_server.server.fragments import Sieve
from mcp_skills_server.server.front import parameters, results
from mcp_skills_server.server.front.parameters import CAPABILITIES, CAPABILITIES_KEY, CLIENT, CLIENT_KEY, VERSION_KEY
from mcp_skills_server.server.front.shapes import Check
from mcp_skills_server.server.methods import MODERN_VERSIONS, Fault

INITIALIZE: Final = "initialize"
DISCOVER: Final = "server/discover"
PING: Final = "ping"
LEGACY_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Revisions that a handshake can settle on; the last where the client asks for none of them."""
_UNSUPPORTED_VERSION: Final = -32022
_SERVER: Final = {"name": "mcp-skills-server", "title": "Agent Skills", "version": mcp_skills_server.__version__}
_SERVER_KEY: Final = "io.modelcontextprotocol/serverInfo"
UNFIT: Final = Fault(INVALID_PARAMS, "Invalid request parameters", "")
"""What a request is refused with whose parameters do not fit, or that comes before the handshake."""

Params: TypeAlias = Mapping[str, Any]


class Client(NamedTuple):
    """Who asks.

    Attributes:
        extensions: that it declared.
        name: what it calls itself, None where it does not say.
        version: the revision of MCP that it speaks; "" where that is not settled.
    """

    extensions: Params
    name: str | None
    version: str = ""


NOBODY: Final = Client({}, None)


class Era(NamedTuple):
    """One era.

    Attributes:
        name: as events have it.
        modern: whether each request stands alone.
        fits: by method what its parameters have to look like; what is not here is unknown.
        sieves: by method what is sent of its result.
        stamp: what is added to `_meta` of each result; nothing where that is empty.
        refusal: why a request cannot be on a connection of this era at all, None where it can.
        stamped: a `_meta` that has nothing but the stamp, as JSON.
    """

    name: str
    modern: bool
    fits: Mapping[str, Check]
    sieves: Mapping[str, Sieve]
    stamp: Params
    refusal: Callable[[str, Params | None], Fault | None]
    stamped: bytes

    def refused(self, method: str, params: Params | None) -> Fault | None:
        """Why a request is not handed to the handler of its method, None where it is."""
        fits = self.fits.get(method)
        if fits is None:
            return unknown(method)
        return None if fits(params) else UNFIT

    def written(self, method: str, result: dict[str, Any]) -> dict[str, Any]:
        """A handler's result as this era has it."""
        sieve = self.sieves.get(method)
        out: dict[str, Any] = dict(result) if sieve is None else sieve(result)
        if self.stamp:
            if out.get("resultType") is None:
                out["resultType"] = "complete"
            meta = out.get("_meta")
            out["_meta"] = {**meta, **self.stamp} if meta else self.stamped
        return out


def unknown(method: str) -> Fault:
    """What a method is refused with that is not served."""
    return Fault(METHOD_NOT_FOUND, "Method not found", method)


def opens_modern(method: str, params: Params | None) -> bool:
    """Whether the first request of a connection makes it one of the modern era."""
    return method != INITIALIZE and _has_envelope(params)


def _has_envelope(params: Params | None) -> bool:
    meta = params.get("_meta") if params else None
    return isinstance(meta, dict) and VERSION_KEY in meta


def _not_legacy(method: str, params: Params | None) -> Fault | None:
    if method == INITIALIZE or not _has_envelope(params):
        return None
    return Fault(
        INVALID_REQUEST,
        "this connection serves the handshake protocol era; requests carrying the 2026-07-28 envelope are not accepted "
        "on it",
    )


def _not_modern(method: str, params: Params | None) -> Fault | None:
    given = params or {}
    if method == INITIALIZE:
        asked = given.get("protocolVersion")
        data = {"supported": list(MODERN_VERSIONS), **({"requested": asked} if isinstance(asked, str) else {})}
        return Fault(
            _UNSUPPORTED_VERSION,
            "connection is serving the 2026-07-28 protocol; the initialize handshake is not accepted",
            data,
        )
    there: object = given.get("_meta")
    keys = (VERSION_KEY, CAPABILITIES_KEY)
    if not isinstance(there, dict):
        needed = " and ".join(map(repr, keys))
        return Fault(INVALID_PARAMS, f"params._meta must be an object carrying the required {needed} envelope keys")
    meta = cast(Params, there)
    missing = [key for key in keys if key not in meta]
    if missing:
        return Fault(INVALID_PARAMS, f"params._meta is missing the required envelope key(s): {', '.join(missing)}")
    version: Any = meta[VERSION_KEY]
    if version in MODERN_VERSIONS:
        return None
    if not isinstance(version, str):
        return Fault(INVALID_PARAMS, "the protocol-version envelope value must be a string")
    data = {"supported": list(MODERN_VERSIONS), "requested": version}
    return Fault(_UNSUPPORTED_VERSION, "Unsupported protocol version", data)


LEGACY: Final = Era("legacy", False, parameters.LEGACY, results.LEGACY, {}, _not_legacy, b"{}")
_STAMP: Final = {_SERVER_KEY: _SERVER}
MODERN: Final = Era("modern", True, parameters.MODERN, results.MODERN, _STAMP, _not_modern, jsonrpc.dump(_STAMP))


def client_of(client: Any, capabilities: Any, version: str) -> Client:
    """A client by what it says of itself and of what it can do; what does not fit counts as not said."""
    if not CAPABILITIES(capabilities):
        return NOBODY._replace(version=version)
    return Client(capabilities.get("extensions") or {}, client["name"] if CLIENT(client) else None, version)


def settled(asked: str) -> str:
    """The revision that a handshake settles on, for the one that the client asks for."""
    return asked if asked in LEGACY_VERSIONS else LEGACY_VERSIONS[-1]


class Clients:
    """Tells the clients of modern requests. One says the same of itself every time, so the last is remembered."""

    def __init__(self) -> None:
        self._meta: Params | None = None
        self._client = NOBODY

    def of(self, params: Params) -> Client:
        """The client of a request whose `_meta` has the envelope's keys."""
        meta = params["_meta"]
        if meta != self._meta:
            self._meta = meta
            self._client = client_of(meta.get(CLIENT_KEY), meta[CAPABILITIES_KEY], meta[VERSION_KEY])
        return self._client


def handshake(params: Params, capabilities: dict[str, Any]) -> dict[str, Any]:
    """The answer to `initialize`, but for what the skills add."""
    version = settled(params["protocolVersion"])
    return {"capabilities": capabilities, "protocolVersion": version, "serverInfo": dict(_SERVER)}


def discovery(capabilities: dict[str, Any]) -> dict[str, Any]:
    """The answer to `server/discover`, but for what the skills add."""
    return {
        "cacheScope": "private",
        "capabilities": capabilities,
        "resultType": "complete",
        "supportedVersions": list(MODERN_VERSIONS),
        "ttlMs": 0,
    }
