"""Exchanges over HTTP whose answers are recorded in `recorded.json`; `make golden` writes it anew.

An answer is recorded as what a client can rely on: status, headers, the kind of body, and errors word by word. Results
have their keys alone: what they hold is compared with stdio, and by the golden files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from web.http_wire import HELLO, MODERN_META, HttpClient, Reply
from web.http_wire import client as connected
from web.in_process import app_serving
from wire import FIXTURES, META, VERSIONS, Era

OPTIONS: Final = ("--max-body", str(1 << 16))
FILE: Final = Path(__file__).with_name("recorded.json")
URI: Final = "skill://commit-messages/SKILL.md"
HEADERS: Final = (
    "Content-Type", "Allow", "Cache-Control", "X-Accel-Buffering", "Retry-After", "WWW-Authenticate", "Mcp-Session-Id",
)  # fmt: skip
CALLS: Final[list[tuple[str, dict[str, Any]]]] = [
    ("skills/list", {}), ("skills/list", {"cursor": "x"}), ("skills/list", {"cursor": 5}), ("skills/get", {"uri": URI}),
    ("skills/get", {"name": "commit-messages"}), ("skills/get", {"name": "none"}), ("skills/get", {}),
    ("skills/get", {"uri": "skill://none/SKILL.md"}), ("resources/list", {}), ("resources/templates/list", {}),
    ("resources/read", {"uri": URI}), ("resources/read", {"uri": "skill://none/SKILL.md"}), ("resources/read", {}),
    ("resources/read", {"uri": "file:///etc/passwd"}), ("resources/directory/read", {"uri": "skill://acme"}),
    ("resources/directory/read", {"uri": "skill://none"}), ("tools/list", {}),
    ("tools/call", {"name": "skills_list", "arguments": {}}), ("tools/call", {"name": "none", "arguments": {}}),
    ("tools/call", {"name": "skills_search", "arguments": {"query": "commit"}}),
    ("tools/call", {"name": "skills_search", "arguments": {}}), ("tools/call", {"arguments": {}}),
    ("prompts/list", {}), ("prompts/get", {"name": "commit-messages"}), ("prompts/get", {"name": "none"}),
    ("prompts/get", {"name": "x", "arguments": {"a": 5}}), ("completion/complete", {}),
    ("completion/complete", {"argument": {"name": "a", "value": ""}, "ref": {"type": "ref/prompt", "name": "none"}}),
    ("completion/complete", {"argument": {"name": "path", "value": "c"},
                             "ref": {"type": "ref/resource", "uri": "skill://{+path}"}}),
    ("none", {}), ("", {}), ("logging/setLevel", {"level": "info"}), ("ping", {}), ("server/discover", {}),
    ("resources/unsubscribe", {"uri": URI}), ("resources/subscribe", {"uri": "skill://none/SKILL.md"}),
    ("resources/subscribe", {"uri": URI}), ("resources/subscribe", {}), ("subscriptions/listen", {}),
    ("subscriptions/listen", {"notifications": {"toolsListChanged": 1}}), ("tasks/list", {}),
]  # fmt: skip
"""Requests that are sent in both eras."""
WRONG_HEADERS: Final[list[dict[str, str | None]]] = [
    {"Mcp-Method": "skills/get"}, {"Mcp-Method": "RESOURCES/READ"}, {"Mcp-Method": ""}, {"Mcp-Method": None},
    {"MCP-Protocol-Version": "2031-01-01"}, {"MCP-Protocol-Version": VERSIONS["legacy"]},
    {"MCP-Protocol-Version": ""}, {"MCP-Protocol-Version": None},
    {"MCP-Protocol-Version": None, "Mcp-Method": None}, {"MCP-Protocol-Version": None, "Mcp-Session-Id": "0" * 32},
    {"Mcp-Name": "skill://commit-messages/other.md"}, {"Mcp-Name": ""}, {"Mcp-Name": None},
    {"Mcp-Name": "=?base64?eA==?="}, {"Mcp-Name": "=?base64?not base64?="}, {"Mcp-Name": "=?base64?/w==?="},
    {"Mcp-Name": "=?base64?c2tpbGw6Ly9jb21taXQtbWVzc2FnZXMvU0tJTEwubWQ=?="}, {"Mcp-Session-Id": "0" * 32},
    {"Last-Event-ID": "7"}, {"Mcp-Param-Name": "x"},
]  # fmt: skip
NEGOTIATION: Final[list[dict[str, str | None]]] = [
    *({"Accept": accept} for accept in (
        None, "", "application/json", "text/event-stream", "text/html", "*/*", "application/*, text/*",
        "text/event-stream;q=0.5 , APPLICATION/JSON",
    )),
    *({"Content-Type": kind} for kind in (
        None, "", "text/plain", "application/json; charset=utf-8", "APPLICATION/JSON",
        "application/x-www-form-urlencoded",
    )),
]  # fmt: skip
BODIES: Final[list[bytes]] = [
    b"", b" ", b"{", b"nonsense", b"[]", b"5", b"null", b'"text"', b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]',
    b'{"jsonrpc":"2.0","id":1}', b'{"jsonrpc":"1.0","id":1,"method":"ping"}', b'{"id":1,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":null,"method":"ping"}', b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":true,"method":"ping"}', b'{"jsonrpc":"2.0","id":[1],"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,"method":7}', b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}',
    b'{"jsonrpc":"2.0","id":1,"result":{}}', b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}',
    b'{"jsonrpc":"2.0","id":1,"result":5}', b'{"jsonrpc":"2.0","method":"notifications/anything"}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}',
    b'{"jsonrpc":"2.0","method":"skills/list"}', b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":1e999}}', b"\xff\xfe",
    b'{"jsonrpc":"2.0","id":1,"method":"skills/list","params":' + b'{"a":' * 150 + b"1" + b"}" * 151,
    b'{"jsonrpc":"2.0","id":1,"method":"skills/list","params":{"cursor":"' + b"x" * (1 << 16) + b'"}}',
]  # fmt: skip
"""Bodies that are no valid request of either era, and a body over the limit of 64 KiB."""
ENVELOPES: Final[list[Any]] = [
    None, {}, [], 5, {**MODERN_META, META + "protocolVersion": "2031-01-01"},
    {key: value for key, value in MODERN_META.items() if key != META + "clientCapabilities"},
    {key: value for key, value in MODERN_META.items() if key != META + "protocolVersion"},
    {key: value for key, value in MODERN_META.items() if key != META + "clientInfo"},
    {**MODERN_META, META + "clientInfo": {"name": 5}}, {**MODERN_META, META + "clientCapabilities": []},
    {**MODERN_META, "progressToken": {}},
]  # fmt: skip
HANDSHAKES: Final[list[dict[str, Any]]] = [
    {}, {**HELLO, "protocolVersion": "2024-11-05"}, {**HELLO, "protocolVersion": "1999-01-01"},
    {**HELLO, "capabilities": 5}, {**HELLO, "clientInfo": {"name": "x"}}, {**HELLO, "_meta": MODERN_META},
    {**HELLO, "clientInfo": {"name": "x" * (1 << 15) * 2, "version": "1"}},
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request to send; `headers` add to those that its era prescribes."""

    name: str
    era: Era
    method: str
    body: bytes | None
    headers: Mapping[str, str | None]
    message: Mapping[str, Any] | None = None


def _posted(client: HttpClient, name: str, message: Mapping[str, Any], **headers: str | None) -> Exchange:
    return Exchange(f"{client.era} {name}", client.era, "POST", json.dumps(message).encode(), headers, message)


def exchanges(client: HttpClient) -> Iterator[Exchange]:
    """Yield all exchanges of a client, which has done the handshake of its era."""
    era = client.era
    for method, params in CALLS:
        yield _posted(client, f"{method} {json.dumps(params)}", client.message(method, params))
    read = client.message("resources/read", {"uri": URI})
    for headers in (*NEGOTIATION, *(WRONG_HEADERS if era == "modern" else ())):
        yield _posted(client, f"resources/read with {headers}", read, **headers)
    for body in BODIES:
        yield Exchange(f"{era} body {body[:80]!r}", era, "POST", body, {}, {"method": "ping"})
    for method in ("GET", "DELETE", "PUT", "HEAD", "PATCH", "OPTIONS"):
        yield Exchange(f"{era} {method} without session", era, method, None, {"Mcp-Session-Id": None})
        yield Exchange(f"{era} {method} of unknown session", era, method, None, {"Mcp-Session-Id": "0" * 32})
    if era == "modern":
        for meta in ENVELOPES:
            message = {"jsonrpc": "2.0", "id": 1, "method": "skills/list", "params": {"_meta": meta}}
            yield _posted(client, f"envelope {json.dumps(meta)[:300]}", message)
        for version in ("2031-01-01", "draft"):
            message = client.message("skills/list", {"_meta": {META + "protocolVersion": version}})
            yield _posted(client, f"version {version}", message, **{"MCP-Protocol-Version": version})
        yield _posted(client, "no params", {"jsonrpc": "2.0", "id": 1, "method": "skills/list"})
        yield _posted(client, "initialize", client.message("initialize", HELLO))
        return
    for session in (None, "0" * 32, "kept-" + "0" * 32):
        listing = client.message("skills/list")
        yield _posted(client, f"skills/list of session {session}", listing, **{"Mcp-Session-Id": session})
    for params in HANDSHAKES:
        hello = client.message("initialize", params)
        yield _posted(client, f"initialize {json.dumps(params)[:300]}", hello, **{"Mcp-Session-Id": None})
    yield _posted(client, "second initialize", client.message("initialize", HELLO))
    for version in ("2024-11-05", "1999-01-01", "", None):
        yield _posted(client, f"ping of version {version}", client.message("ping"), **{"MCP-Protocol-Version": version})
    yield Exchange("legacy GET for JSON", era, "GET", None, {"Accept": "application/json"})
    for method in ("PUT", "HEAD", "PATCH", "OPTIONS"):
        yield Exchange(f"legacy {method}", era, method, None, {})
    yield Exchange("legacy DELETE", era, "DELETE", None, {})
    yield Exchange("legacy DELETE again", era, "DELETE", None, {})


def recorded(reply: Reply) -> dict[str, Any]:
    headers = {name: reply.headers[name] for name in HEADERS if name in reply.headers}
    if "Mcp-Session-Id" in headers:
        headers["Mcp-Session-Id"] = "present"
    out: dict[str, Any] = {"status": reply.status, "headers": headers}
    if not reply.body:
        return out
    if reply.headers.get_content_type() not in {"application/json", "text/event-stream"}:
        return {**out, "text": reply.body.decode()}
    for message in reply.messages:
        if "result" in message:
            message["result"] = sorted(message["result"])
        out.setdefault("messages", []).append(message)
    return out


def record() -> str:
    """Return the answers of a server of this code to all exchanges."""
    answers: dict[str, Any] = {}
    with app_serving(FIXTURES, *OPTIONS) as server:
        for era in ("legacy", "modern"):
            with connected(server, era) as client:
                client.every_skill()
                answers |= {exchange.name: recorded(send(client, exchange)) for exchange in exchanges(client)}
    return json.dumps(answers, indent=1, ensure_ascii=False) + "\n"


def send(client: HttpClient, exchange: Exchange) -> Reply:
    headers = {**client.headers(exchange.message), **exchange.headers}
    return client.server.send(exchange.method, body=exchange.body, headers=headers)
