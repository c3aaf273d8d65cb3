"""Legacy sessions: their credentials, their end, and checks of messages before the SDK."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from web.http_wire import HELLO, MCP_HEADERS, HttpClient, Target, client, startup_error, token_file, wait_until
from web.in_process import app_serving
from wire import DEADLINE, FIXTURES, Era, write_skill

ALPHA = "made-up-token-of-alpha-000001"
BETA = "made-up-token-of-beta-0000002"
TOKEN_LINES = ("# a comment", "", f"alpha={ALPHA}", f"beta = {BETA}")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    path = token_file(tmp_path_factory.mktemp("tokens"), *TOKEN_LINES)
    config = path.with_name("config.toml")
    config.write_text("[quota]\nfailed-authentications-per-minute = 10000\n")
    with app_serving(FIXTURES, "--token-file", path, "--config", config) as started:
        yield started


def with_session(sender: HttpClient, session: str | None) -> dict[str, str | None]:
    return {**sender.headers(), "Mcp-Session-Id": session}


REQUESTS = (("POST", b'{"jsonrpc":"2.0","id":1,"method":"ping"}'), ("GET", None), ("DELETE", None))


@pytest.mark.parametrize("name", ["gemini-cli-mcp-client", "qwen-cli-mcp-client-skills"])
def test_client_that_keeps_lost_session_works_after_restart(server: Target, name: str) -> None:
    with app_serving(FIXTURES) as before, client(before, "legacy", opened=False) as caller:
        caller.request("initialize", {**HELLO, "clientInfo": {"name": name, "version": "0.61.0"}})
        caller.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert caller.request("tools/list")["tools"]
        headers = with_session(caller, caller.session)

    def call(tool: str, **arguments: Any) -> dict[str, Any]:
        message = caller.message("tools/call", {"name": tool, "arguments": arguments})
        (answer,) = server.send(body=json.dumps(message).encode(), headers=headers).messages
        return answer["result"]

    session = call("skills_load", names=["csv-profiling"])["structuredContent"]["session"]
    assert "isError" not in call("skills_read", session=session, path="SKILL.md")
    assert server.send("GET", headers=headers).status == 405
    assert server.send("DELETE", headers=headers).error == (404, -32001, None)


def test_subscriptions_of_lost_session_are_forgotten(server: Target) -> None:
    """Each of its requests has a session of its own, which would keep them for ever."""
    params = {"uri": "skill://csv-profiling/SKILL.md"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe", "params": params})
    sent = {**MCP_HEADERS, "Mcp-Session-Id": "kept-" + "0" * 32}
    for _ in range(1000):
        (answer,) = server.send(body=body.encode(), headers=sent).messages
        assert answer == {"jsonrpc": "2.0", "id": 1, "result": {}}


def test_delete_ends_own_session_only(server: Target) -> None:
    with client(server, "legacy") as leaving, client(server, "legacy") as other:
        stream = leaving.follow()
        reply = leaving.delete()
        assert (reply.status, reply.body) == (200, b"")
        assert stream.rest() == [] and stream.whole
        assert leaving.post(leaving.message("skills/list")).error == (404, -32001, None)
        assert leaving.delete().status == 404
        assert other.request("skills/list")["skills"]


def test_failed_handshake_leaves_no_session() -> None:
    with app_serving(FIXTURES, "--max-sessions", "1") as server, client(server, "legacy", opened=False) as sender:
        hello = sender.message("initialize", HELLO)
        for _ in range(3):
            assert sender.post({"jsonrpc": "2.0", "id": 1, "method": "skills/list"}).status == 400
            assert sender.post([]).status == 400
            assert sender.post(hello, {"Accept": "text/html"}).status == 406
        sender.open()
        assert sender.request("skills/list")["skills"]


def test_idle_session_is_closed_unless_it_has_stream(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    with (
        app_serving(tmp_path, "--session-idle", "1") as server,
        client(server, "legacy") as idle,
        client(server, "legacy") as held,
    ):
        held.every_skill()
        stream = held.follow()
        server.wait_for_log("a session of a legacy client ended")
        assert idle.post(idle.message("skills/list")).error == (404, -32001, None)
        assert held.request("skills/list")["skills"]
        write_skill(tmp_path / "b")
        stream.until("notifications/resources/list_changed")
        stream.close()
        server.wait_for_log("a session of a legacy client ended", times=2)
        assert held.delete().status == 404


def test_session_is_bound_to_token_that_opened_it(guarded: Target) -> None:
    with client(guarded, "legacy", token=ALPHA) as owner, client(guarded, "legacy", token=BETA) as thief:
        for method, body in REQUESTS:
            reply = guarded.send(method, body=body, headers=with_session(thief, owner.session))
            assert reply.error == (404, -32001, None)
            # The response does not reveal that the session exists.
            unknown = guarded.send(method, body=body, headers=with_session(thief, "0" * 32))
            assert (reply.status, reply.body) == (unknown.status, unknown.body)
        assert owner.request("skills/list")["skills"]
        guarded.wait_for_log("does not match the one that created the session")
        assert str(owner.session) not in guarded.stderr
        without_token = {**owner.headers(), "Authorization": None}
        assert guarded.send("DELETE", headers=without_token).status == 401
        assert owner.delete().status == 200


def test_tokens_from_two_sources_are_usage_error(tmp_path: Path) -> None:
    options = ("--token-file", token_file(tmp_path, *TOKEN_LINES))
    message = startup_error(FIXTURES, *options, environment={"MCP_SKILLS_TOKENS": f"alpha={ALPHA}"})
    assert "--token-file" in message and "MCP_SKILLS_TOKENS" in message
    assert ALPHA not in message


def load(caller: HttpClient, name: str) -> str:
    return caller.call("skills_load", names=[name])["structuredContent"]["session"]


def read(caller: HttpClient, handle: str | None) -> str:
    """Read the SKILL.md of the skill that was loaded last."""
    result = caller.call("skills_read", path="SKILL.md", session=handle)
    return result["content"][0]["text"]


@pytest.mark.requirement("MCP-11", "X-15")
def test_handle_works_only_with_token_of_same_principal(guarded: Target, era: Era) -> None:
    with (
        client(guarded, era, token=ALPHA) as owner,
        client(guarded, era, token=BETA) as thief,
        client(guarded, era, token=ALPHA) as second,
    ):
        handle = load(owner, "commit-messages")
        unknown = "x" * len(handle)
        refusal = read(thief, handle)
        assert "Commit messages" not in refusal and "begin a new one" in refusal
        assert refusal.replace(handle, unknown) == read(thief, unknown)  # reveals nothing
        assert "Commit messages" in read(owner, handle)
        assert "Commit messages" in read(second, handle)


def test_id_is_reusable_once_its_request_has_ended() -> None:
    """A request whose first scan waits is in progress; "7" is another id than 7."""
    gate = threading.Event()
    with (
        app_serving(FIXTURES, gate=gate) as server,
        client(server, "legacy") as sender,
        client(server, "legacy") as other,
        ThreadPoolExecutor(5) as pool,
    ):
        listing = {"jsonrpc": "2.0", "method": "skills/list"}
        senders = (sender, 7), (sender, 7), (sender, "7"), (sender, "7"), (other, 7)
        replies = [pool.submit(each.post, {**listing, "id": id_}) for each, id_ in senders]
        wait_until(lambda: sum(reply.done() for reply in replies) == 2)  # whichever of two with one ID was later
        refused = [reply.result().error for reply in replies if reply.done()]
        assert refused == [(400, -32600, 7), (400, -32600, "7")]
        gate.set()
        assert sorted(reply.result(DEADLINE).status for reply in replies) == [200, 200, 200, 400, 400]
        assert sender.post({**listing, "id": 7}).status == 200


def test_cancelled_request_is_answered_and_frees_its_id() -> None:
    gate = threading.Event()
    with app_serving(FIXTURES, gate=gate) as server, client(server, "legacy") as sender, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(sender.post, {"jsonrpc": "2.0", "method": "skills/list", "id": 7})

        def is_cancelled() -> bool:
            sender.notify("notifications/cancelled", {"requestId": 7})
            return waiting.done()

        wait_until(is_cancelled)
        assert waiting.result().error == (200, -32800, 7)
        gate.set()
        assert sender.post({"jsonrpc": "2.0", "method": "skills/list", "id": 7}).status == 200
