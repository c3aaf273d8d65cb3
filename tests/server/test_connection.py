"""A stdio connection in this process: ids of requests, cancellation, limits, handshakes, and a lost client."""

from __future__ import annotations

import gc
import json
import weakref
from typing import Any

import anyio
import pytest

from catalog.forest import load_registry
from mcp_skills_server.access.quota import LOCAL_REQUESTER
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.dialects.jsonrpc import Message
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.dispatch import Answer, McpSession, PendingRequest
from mcp_skills_server.server.eras import MODERN
from mcp_skills_server.server.requests import Settings
from scripted import Script, replies_to, serve_script
from tables import each_row
from web.http_wire import HELLO, MODERN_META
from wire import DEADLINE, FIXTURES

LISTEN = {"notifications": {"skillsListChanged": True}, "_meta": MODERN_META}


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry(FIXTURES / "acme")


def encoded(*messages: dict[str, Any]) -> list[bytes]:
    return [json.dumps({"jsonrpc": "2.0", **each}).encode() for each in messages]


class LeavingClient(Script):
    def __init__(self, lines: list[bytes], *, after: int) -> None:
        super().__init__(lines, patient=False)
        self._after = after

    def send_now(self, raw: bytes) -> bool:
        if len(self.received) >= self._after:
            raise BrokenPipeError
        return super().send_now(raw)


@each_row("after", [0, 1, 2])
def test_lost_client_is_not_logged(registry: Registry, caplog: pytest.LogCaptureFixture, after: int) -> None:
    listen = {"method": "subscriptions/listen", "params": LISTEN}
    lines = encoded(*({"id": number, **listen} for number in range(3)))

    async def connect() -> None:
        with anyio.fail_after(DEADLINE):
            try:
                await serve_script(LeavingClient(lines, after=after), registry, Settings())
            except* BrokenPipeError:
                pass

    anyio.run(connect)
    assert not caplog.records


def test_cancelled_request_gets_no_answer_and_frees_its_id(registry: Registry) -> None:
    listen = {"id": "7", "method": "subscriptions/listen", "params": LISTEN}
    cancel = {"method": "notifications/cancelled", "params": {"requestId": "7"}}
    discover = {"id": 8, "method": "server/discover", "params": {"_meta": MODERN_META}}
    lines = encoded(listen, cancel, listen, discover)
    received = replies_to(lines, registry, Settings(), patient=True)
    acknowledged = "notifications/subscriptions/acknowledged"
    kinds = [each.get("method", each.get("id")) for each in received]
    assert kinds == [acknowledged, acknowledged, 8, "notifications/cancelled", "7"]
    assert received[0]["params"]["notifications"] == LISTEN["notifications"]


def test_cancel_of_another_id_is_ignored(registry: Registry) -> None:
    """Python's `int("1_0")` is 10, but these ids are different."""
    listen = {"id": 10, "method": "subscriptions/listen", "params": LISTEN}
    cancel = {"method": "notifications/cancelled", "params": {"requestId": "1_0"}}
    lines = encoded(listen, cancel, listen, {"id": 8, "method": "server/discover", "params": {"_meta": MODERN_META}})
    received = replies_to(lines, registry, Settings(), patient=True)
    methods = [each.get("method") for each in received]
    # The second `listen` is refused, since the first one still runs.
    assert methods.count("notifications/subscriptions/acknowledged") == 1


def test_at_most_32_short_requests_run_beside_streams(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    running: set[object] = set()
    most = 0
    answer = McpSession.answer

    async def answer_slowly(self: McpSession, request: PendingRequest) -> Answer:
        nonlocal most
        if request.method == "skills/get":
            running.add(request.id)
            most = max(most, len(running))
            await anyio.sleep(0.001)  # lets others start
            running.discard(request.id)
        return await answer(self, request)

    monkeypatch.setattr(McpSession, "answer", answer_slowly)
    listen = [{"id": -number, "method": "subscriptions/listen", "params": LISTEN} for number in range(1, 41)]
    get = {"uri": f"skill://{next(iter(registry.snapshot.skills))}/SKILL.md", "_meta": MODERN_META}
    requests = [{"id": number, "method": "skills/get", "params": get} for number in range(300)]
    received = replies_to(encoded(*listen, *requests), registry, Settings(), patient=False)
    answered = sorted(each["id"] for each in received if each.get("id", -1) >= 0)
    assert answered == list(range(300))
    assert most == 32


def test_legacy_request_before_the_handshake_is_refused(registry: Registry) -> None:
    skills = {"method": "skills/list"}
    handshake = {"id": 2, "method": "initialize", "params": HELLO}
    lines = encoded({"id": 1, **skills}, {"id": 0, "method": "ping"}, handshake, {"id": 3, **skills})
    early, ping, _, late = replies_to(lines, registry, Settings(), patient=True)
    assert early["error"]["code"] == -32602
    assert "send `initialize` first" in early["error"]["message"]
    assert ping["result"] == {}
    assert late["result"]["skills"]


def test_second_handshake_replaces_the_client(registry: Registry) -> None:
    get = {"method": "skills/get", "params": {"uri": f"skill://{next(iter(registry.snapshot.skills))}/SKILL.md"}}
    capabilities = {"extensions": {"io.modelcontextprotocol/skills": {}}}
    extended = {**HELLO, "capabilities": capabilities}
    lines = encoded(
        {"id": 1, "method": "initialize", "params": HELLO}, {"id": 2, **get},
        {"id": 3, "method": "initialize", "params": extended}, {"id": 4, **get},
    )  # fmt: skip
    _, first, _, second = replies_to(lines, registry, Settings(), patient=True)
    assert first["result"] != second["result"]


class WeakParams(dict[str, Any]):
    """Params that a weak reference can watch."""


@pytest.mark.anyio
@each_row(("method", "params"), [("no/such", {}), ("skills/get", {"uri": 5}), ("skills/get", {"uri": "skill://none"})])
async def test_refused_request_is_freed_at_once(registry: Registry, method: str, params: dict[str, Any]) -> None:
    """Its exception would keep it until the next collection of cycles."""
    attachment = Attachment(registry, Settings(), None, Runtime(registry))
    session = McpSession(attachment, era=MODERN)
    sent = WeakParams(params, _meta=MODERN_META)
    is_kept = weakref.ref(sent)
    gc.collect()
    gc.disable()
    try:
        message = Message({"id": 1, "method": method, "params": sent}, "request")
        request = session.start(message, LOCAL_REQUESTER, session.send, is_pipe=True)
        assert isinstance(request, PendingRequest)
        answer = await session.answer(request)
        session.finish(request)
        del message, request, sent
        assert b"error" in answer.raw and is_kept() is None
    finally:
        gc.enable()
