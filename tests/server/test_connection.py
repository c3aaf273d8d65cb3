"""What one client may do to its connection, beside asking."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from catalog.forest import loaded
from conversations import ENVELOPE, HANDSHAKE
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.server.stdio import Connection, PendingRequest
from scripted import Script, hold, talk
from tables import each_row
from wire import DEADLINE, FIXTURES

LISTEN = {"notifications": {"skillsListChanged": True}, "_meta": ENVELOPE}


@pytest.fixture(scope="module")
def registry() -> Registry:
    return loaded(FIXTURES / "acme")


def said(*messages: dict[str, Any]) -> list[bytes]:
    return [json.dumps({"jsonrpc": "2.0", **each}).encode() for each in messages]


class Deaf(Script):
    """A client that goes once it has heard so many messages."""

    def __init__(self, lines: list[bytes], *, after: int) -> None:
        super().__init__(lines, patient=False)
        self._after = after

    def send_now(self, raw: bytes) -> bool:
        if len(self.said) >= self._after:
            raise BrokenPipeError
        return super().send_now(raw)


@each_row("after", [0, 1, 2])
def test_a_client_that_went_is_no_bug_of_ours(registry: Registry, caplog: pytest.LogCaptureFixture, after: int) -> None:
    lines = said(*[{"id": number, "method": "subscriptions/listen", "params": LISTEN} for number in range(3)])

    async def held() -> None:
        with anyio.fail_after(DEADLINE):
            try:
                await hold(Deaf(lines, after=after), registry, Settings())
            except* BrokenPipeError:
                pass

    anyio.run(held)
    assert not caplog.records


def test_a_request_that_is_taken_back_has_no_answer_and_leaves_its_id_free(registry: Registry) -> None:
    listen = {"id": "7", "method": "subscriptions/listen", "params": LISTEN}
    back = {"method": "notifications/cancelled", "params": {"requestId": "7"}}
    lines = said(listen, back, listen, {"id": 8, "method": "server/discover", "params": {"_meta": ENVELOPE}})
    heard = talk(lines, registry, Settings(), patient=True)
    said_to_it = [each.get("method", each.get("id")) for each in heard]
    assert said_to_it == [*["notifications/subscriptions/acknowledged"] * 2, 8, "notifications/cancelled", "7"]
    assert heard[0]["params"]["notifications"] == LISTEN["notifications"]


def test_few_answers_are_made_at_once_beside_streams(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way: set[object] = set()
    most = 0
    real = Connection.answer

    async def slowly(self: Connection, request: PendingRequest) -> bytes:
        nonlocal most
        if request.method == "skills/get":
            under_way.add(request.id)
            most = max(most, len(under_way))
            await anyio.sleep(0.001)  # so that more could begin
            under_way.discard(request.id)
        return await real(self, request)

    monkeypatch.setattr(Connection, "answer", slowly)
    listen = [{"id": -number, "method": "subscriptions/listen", "params": LISTEN} for number in range(1, 41)]
    get = {"uri": f"skill://{next(iter(registry.snapshot.skills))}/SKILL.md", "_meta": ENVELOPE}
    asked = [{"id": number, "method": "skills/get", "params": get} for number in range(300)]
    heard = talk(said(*listen, *asked), registry, Settings(), patient=False)
    assert sorted(each["id"] for each in heard if each.get("id", -1) >= 0) == list(range(300))
    assert most == 32


def test_a_legacy_client_shakes_hands_before_it_asks(registry: Registry) -> None:
    ask = {"method": "skills/list"}
    hello = {"id": 2, "method": "initialize", "params": HANDSHAKE}
    lines = said({"id": 1, **ask}, {"id": 0, "method": "ping"}, hello, {"id": 3, **ask})
    early, ping, _, late = talk(lines, registry, Settings(), patient=True)
    assert early["error"]["code"] == -32602 and "send `initialize` first" in early["error"]["message"]
    assert ping["result"] == {} and late["result"]["skills"]


def test_an_id_that_is_under_way_is_refused_whatever_is_asked(registry: Registry) -> None:
    listen = {"id": 5, "method": "subscriptions/listen", "params": LISTEN}
    get = {"method": "skills/list", "params": {"_meta": ENVELOPE}}
    heard = talk(said(listen, {"id": 5, **get}, {"id": "5", **get}), registry, Settings(), patient=True)
    (refused,) = [each["error"] for each in heard if "error" in each and each["id"] == 5]
    assert refused["code"] == -32600 and "the id 5 is already in progress" in refused["message"]
    assert [each for each in heard if each.get("id") == "5" and "result" in each]


def test_after_another_handshake_it_is_another_client_that_asks(registry: Registry) -> None:
    get = {"method": "skills/get", "params": {"uri": f"skill://{next(iter(registry.snapshot.skills))}/SKILL.md"}}
    knowing = {**HANDSHAKE, "capabilities": {"extensions": {"io.modelcontextprotocol/skills": {}}}}
    lines = said(
        {"id": 1, "method": "initialize", "params": HANDSHAKE}, {"id": 2, **get},
        {"id": 3, "method": "initialize", "params": knowing}, {"id": 4, **get},
    )  # fmt: skip
    _, first, _, second = talk(lines, registry, Settings(), patient=True)
    assert first["result"] != second["result"]
