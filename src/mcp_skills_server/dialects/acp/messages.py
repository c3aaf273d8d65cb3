"""What is read of a conversation: the requests that open and end sessions, and their answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

from mcp_skills_server.dialects.acp.fields import SETUPS, Params, as_dict, as_version, messages_of

_MAY_ASK: Final = re.compile(rb'"(?:initialize|session\\?/(?:new|load|resume|fork|close|delete))"')
_MAY_ANSWER: Final = re.compile(rb'"(?:result|error)"')
_MAY_UPDATE: Final = re.compile(rb'["/]available_(?:commands|skills)_update"')
_MAKE_NEW: Final = frozenset(("session/new", "session/fork"))
_ENDINGS: Final = frozenset(("session/close", "session/delete"))

Key: TypeAlias = tuple[str, object]
"""A request's id so that 1, "1", true and null differ, and 1 and 1.0 do not: what a peer in JavaScript sends back."""


@dataclass(frozen=True, slots=True)
class Hello:
    """`initialize`: the version that the client asks for and its capabilities, as they came."""

    key: Key | None
    version: int
    capabilities: object


@dataclass(frozen=True, slots=True)
class Setup:
    """A request that makes a session or takes one up again; `session_id` is None where the answer brings it."""

    key: Key | None
    session_id: str | None


@dataclass(frozen=True, slots=True)
class Ending:
    """A request that ends a session."""

    key: Key | None
    session_id: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: `result` is None where it is an error."""

    key: Key
    result: Params | None


def may_ask(raw: bytes) -> bool:
    """Whether a request that `asked` knows may be in these bytes, without parsing them."""
    return _MAY_ASK.search(raw) is not None  # some writers of JSON put a backslash before a slash


def may_answer(raw: bytes) -> bool:
    """Whether an answer may be in these bytes."""
    return _MAY_ANSWER.search(raw) is not None


def may_update(raw: bytes) -> bool:
    """Whether a notification that `updated` knows may be in these bytes."""
    return b"available_" in raw and _MAY_UPDATE.search(raw) is not None


def asked(message: object) -> list[Hello | Setup | Ending]:
    """The requests of a client that matter here, of one message or a batch."""
    out: list[Hello | Setup | Ending] = []
    for each in messages_of(message):
        method, params = each.get("method"), as_dict(each.get("params"))
        if "id" not in each or not isinstance(method, str):
            continue
        key, given = _key(each["id"]), params.get("sessionId")
        session_id = given if isinstance(given, str) else None
        if method == "initialize":
            announced = params.get("capabilities", params.get("clientCapabilities"))
            out.append(Hello(key, as_version(params.get("protocolVersion")) or 1, announced))
        elif method in SETUPS:
            out.append(Setup(key, None if method in _MAKE_NEW else session_id))
        elif method in _ENDINGS:
            out.append(Ending(key, session_id))
    return out


def answered(message: object) -> list[Answer]:
    """The answers of an agent, of one message or a batch."""
    out: list[Answer] = []
    for each in messages_of(message):
        key = _key(each.get("id"))
        if "method" in each or key is None or not ("result" in each or "error" in each):
            continue
        failed = "error" in each and each["error"] is not None
        # An error without an id is about a message that nobody could read, and not about the request of id null.
        if not failed or key[1] is not None:
            out.append(Answer(key, None if failed else as_dict(each.get("result"))))
    return out


def opened(setup: Setup, answer: Answer) -> str | None:
    """The session that an answer to a setup opens."""
    if answer.result is None:
        return None
    session_id = answer.result.get("sessionId")
    return session_id if isinstance(session_id, str) else setup.session_id


def spoken(hello: Hello, answer: Answer) -> int:
    """The version that client and agent agreed on."""
    return as_version((answer.result or {}).get("protocolVersion")) or hello.version


def starts_servers(version: int, result: Params) -> bool:
    """Whether the agent that answered `initialize` so can start MCP servers: all of version 1 do."""
    if version < 2:
        return True
    capabilities = as_dict(result.get("capabilities"))
    places = (as_dict(capabilities.get("session")), capabilities)
    return any(as_dict(place.get("mcp")).get("stdio") not in (None, False) for place in places)


def _key(identifier: object) -> Key | None:
    if isinstance(identifier, bool):
        return "bool", identifier
    if isinstance(identifier, int | float):
        return "number", identifier
    return (type(identifier).__name__, identifier) if identifier is None or isinstance(identifier, str) else None
