"""POSTs to the application, in one process: what clients send and what comes back."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio
from starlette.types import ASGIApp, Message, Scope

from conversations import HANDSHAKE
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.telemetry.events import Reader
from mcp_skills_server.web.app import make_app
from mcp_skills_server.web.guards import Token, make_policy
from mcp_skills_server.web.settings import HttpSettings
from scripted import HANDLE, Loaded

DEADLINE: Final = 20.0
SESSION: Final = b"mcp-session-id"
NAMED: Final = {"resources/read": "uri", "prompts/get": "name", "tools/call": "name"}
_RANDOM: Final = re.compile(r"\b(?:[0-9a-f]{32}|[0-9a-f]{16})\b")
"""What a legacy session is called, and a request."""


@dataclass(frozen=True)
class Post:
    """A request of HTTP with a message for its body."""

    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    method: str = "POST"


@dataclass(frozen=True)
class Reply:
    """What came back, without what is drawn by lot.

    Attributes:
        status: of HTTP.
        headers: those that say what it is.
        messages: of JSON-RPC, whether in one JSON or in a stream; other text as it is.
        whole: whether it came to its end.
    """

    status: int
    headers: dict[str, str]
    messages: list[str]
    whole: bool


Ends = Any


@asynccontextmanager
async def serving(
    registry: Registry,
    chosen: Settings,
    *,
    tokens: Sequence[Token] = (),
    max_sessions: int = 1000,
    reader: Reader | None = None,
) -> AsyncGenerator[tuple[ASGIApp, Ends]]:
    """The application as `serve` makes it, and what ends its streams."""
    policy = make_policy("127.0.0.1", (), (), tokens)
    http = HttpSettings("127.0.0.1", 0, policy, max_body=1 << 16, max_sessions=max_sessions)
    runtime = Runtime(registry)
    if reader is not None:
        runtime.events.subscribe(reader)
    app, end = make_app(runtime, chosen, http, Loaded(registry))
    async with app.router.lifespan_context(app):
        yield app, end


def scope_of(post: Post) -> Scope:
    """What an application is called with for it."""
    return {
        "type": "http",
        "http_version": "1.1",
        "method": post.method,
        "scheme": "http",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "query_string": b"",
        "root_path": "",
        "headers": list(post.headers),
        "client": ("127.0.0.1", 40_000),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }


async def ask(app: ASGIApp, post: Post, *, stays: bool) -> Reply:
    """Send it, and read what comes. Who does not stay leaves a stream after its first message."""
    return _reply(await _said(app, post, stays=stays))


async def open_session(app: ASGIApp, *headers: tuple[bytes, bytes]) -> bytes:
    """Shake hands, with these headers beside the usual; what the legacy session is called."""
    start, *_ = await _said(app, handshake(), stays=True, headers=headers)
    (session,) = [value for name, value in start["headers"] if name == SESSION]
    await _said(app, initialized(session), stays=True, headers=headers)
    return session


async def _said(app: ASGIApp, post: Post, *, stays: bool, headers: Sequence[tuple[bytes, bytes]] = ()) -> list[Message]:
    seen: list[Message] = []
    heard = anyio.Event()
    body: bytes | None = post.body

    async def receive() -> Message:
        nonlocal body
        if body is None:
            await heard.wait()
            return {"type": "http.disconnect"}
        whole, body = body, None
        return {"type": "http.request", "body": whole, "more_body": False}

    async def send(message: Message) -> None:
        seen.append(message)
        if not stays and b"subscriptions/acknowledged" in message.get("body", b""):
            heard.set()

    with anyio.fail_after(DEADLINE):
        await app({**scope_of(post), "headers": [*post.headers, *headers]}, receive, send)
    return seen


def _reply(seen: list[Message]) -> Reply:
    start, *parts = seen
    assert start["type"] == "http.response.start"
    assert all(each["type"] == "http.response.body" for each in parts)
    headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    raw = b"".join(each.get("body", b"") for each in parts)
    length = headers.pop("content-length", None)
    assert length is None or int(length) == len(raw)
    whole = bool(parts) and not parts[-1].get("more_body", False)
    text = HANDLE.sub("HANDLE", raw.decode())
    if headers.get("content-type", "").startswith("text/event-stream"):
        messages = [_alike(event.partition("data: ")[2]) for event in text.split("\r\n\r\n") if event]
        assert all(
            event.startswith(("event: message\r\ndata: ", ": ping")) for event in text.split("\r\n\r\n") if event
        )
    else:
        messages = [_alike(text)]
    return Reply(start["status"], {name: _RANDOM.sub("ID", value) for name, value in headers.items()}, messages, whole)


def _alike(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return text


# What clients send


def headers_of(message: Any) -> list[tuple[bytes, bytes]]:
    """What a modern client sends beside a message."""
    out = [
        (b"host", b"localhost"),
        (b"accept", b"application/json, text/event-stream"),
        (b"content-type", b"application/json"),
        (b"mcp-protocol-version", b"2026-07-28"),
    ]
    if isinstance(message, dict) and isinstance(message.get("method"), str):
        out.append((b"mcp-method", message["method"].encode()))
        given = message.get("params")
        name = given.get(NAMED.get(message["method"], "none")) if isinstance(given, dict) else None
        if isinstance(name, str):
            out.append((b"mcp-name", name.encode("utf-8", "replace")))
    return out


def handshake() -> Post:
    """What opens a legacy session."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HANDSHAKE}).encode()
    return Post(tuple(headers_of(None)[:3]), body)


def initialized(session: bytes) -> Post:
    """What ends the handshake of a legacy session."""
    body = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
    return Post((*headers_of(None)[:3], (SESSION, session)), body)


def look(session: bytes, *headers: tuple[bytes, bytes], id_: int | str = 2) -> Post:
    """A request of a legacy session."""
    body = json.dumps({"jsonrpc": "2.0", "id": id_, "method": "skills/list"}).encode()
    return Post((*headers_of(None)[:3], (SESSION, session), *headers), body)
