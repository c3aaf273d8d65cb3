"""Legacy sessions and bearer tokens: who may use which, how many there may be, and how they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.types import Message, Receive, Scope, Send

from malformed import CALL, HALVES, MALFORMED
from mcp_skills_server.web import sessions
from mcp_skills_server.web.sessions import Messages
from tables import each_row
from web.http_wire import BOTH, HELLO, JSON, HttpClient, Reply, Server, client, http_serving, refused, token_file
from wire import DEADLINE, FIXTURES, VERSIONS, Era, write_skill

ALPHA = "made-up-token-of-alpha-000001"
BETA = "made-up-token-of-beta-0000002"
LINES = ("# who=what", "", f"alpha={ALPHA}", f"beta = {BETA}")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that wants a token of a file, at its most talkative."""
    path = token_file(tmp_path_factory.mktemp("tokens"), *LINES)
    config = path.with_name("config.toml")
    config.write_text("[quota]\nfailed-authentications-per-minute = 10000\n")
    with http_serving(FIXTURES, "--token-file", path, "--log-level", "debug", "--config", config) as started:
        yield started


def with_session(one: HttpClient, session: str | None) -> dict[str, str | None]:
    """The headers of this client with another session, or without."""
    return {**one.headers(), "Mcp-Session-Id": session}


CALLS = (("POST", b'{"jsonrpc":"2.0","id":1,"method":"ping"}'), ("GET", None), ("DELETE", None))


@each_row("session", [None, "0" * 32, "x", "../etc", "x" * 4000])
def test_a_session_that_does_not_exist_is_not_found(server: Server, session: str | None) -> None:
    with client(server, "legacy") as one:
        for method, body in CALLS:
            reply = server.send(method, body=body, headers=with_session(one, session))
            assert reply.error == ((400, -32600, None) if session is None else (404, -32001, None))
        assert one.request("skills/list")["skills"]


@pytest.mark.parametrize("name", ["gemini-cli-mcp-client", "qwen-cli-mcp-client-skills"])
def test_a_client_that_never_opens_another_session_works_after_a_restart(server: Server, name: str) -> None:
    with http_serving(FIXTURES) as before, client(before, "legacy", opened=False) as one:
        one.request("initialize", {**HELLO, "clientInfo": {"name": name, "version": "0.61.0"}})
        one.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert one.request("tools/list")["tools"]
        headers = with_session(one, one.session)

    def call(tool: str, **arguments: Any) -> dict[str, Any]:
        message = one.message("tools/call", {"name": tool, "arguments": arguments})
        (answer,) = server.send(body=json.dumps(message).encode(), headers=headers).messages
        return answer["result"]

    session = call("skills_load", names=["csv-profiling"])["structuredContent"]["session"]
    assert "isError" not in call("skills_read", session=session, path="SKILL.md")
    assert server.send("GET", headers=headers).status == 405
    assert server.send("DELETE", headers=headers).error == (404, -32001, None)


def test_the_client_ends_its_session_with_delete_and_no_other(server: Server) -> None:
    with client(server, "legacy") as one, client(server, "legacy") as other:
        stream = one.follow()
        reply = one.delete()
        assert (reply.status, reply.body) == (200, b"")
        assert stream.rest() == [] and stream.whole
        assert one.post(one.message("skills/list")).error == (404, -32001, None)
        assert one.delete().status == 404
        assert other.request("skills/list")["skills"]


def test_a_handshake_that_fails_leaves_no_session_behind() -> None:
    with http_serving(FIXTURES, "--max-sessions", "1") as server, client(server, "legacy", opened=False) as one:
        for _ in range(3):
            assert one.post({"jsonrpc": "2.0", "id": 1, "method": "skills/list"}).status == 400
            assert one.post([]).status == 400
            assert one.post(one.message("initialize", HELLO), {"Accept": "text/html"}).status == 406
        one.open()
        assert one.request("skills/list")["skills"]


@each_row("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
@pytest.mark.requirement("MCP-8")
def test_every_older_version_is_spoken(server: Server, version: str) -> None:
    with client(server, "legacy", opened=False) as one:
        assert one.request("initialize", {**HELLO, "protocolVersion": version})["protocolVersion"] == version
        one.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        for headers in ({}, {"MCP-Protocol-Version": version}, {"MCP-Protocol-Version": None}):
            reply = one.post(one.message("skills/list"), headers)
            assert reply.messages[0]["result"]["skills"]


def test_a_session_that_nobody_uses_is_closed_and_one_with_a_stream_is_not(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    with http_serving(tmp_path, "--session-idle", "1", "--log-level", "debug") as server, ExitStack() as stack:
        idle, held = (stack.enter_context(client(server, "legacy")) for _ in range(2))
        held.every_skill()
        stream = held.follow()
        server.said("a session of a legacy client ended")
        assert idle.post(idle.message("skills/list")).error == (404, -32001, None)
        assert held.request("skills/list")["skills"]
        write_skill(tmp_path / "b")
        stream.until("notifications/resources/list_changed")
        stream.close()
        server.said("a session of a legacy client ended", times=2)
        assert held.delete().status == 404


@each_row("authorization", [None, "Bearer wrong-token-0123456789", f"Bearer {ALPHA[:-1]}"])
@each_row("version", VERSIONS.values())
def test_anything_else_is_unauthorised(guarded: Server, version: str, authorization: str | None) -> None:
    headers = {**JSON, "Accept": BOTH, "MCP-Protocol-Version": version, "Authorization": authorization}
    for method, body in CALLS:
        reply = guarded.send(method, body=body, headers=headers)
        assert reply.error == (401, -32600, None)
        assert reply.headers["WWW-Authenticate"].startswith("Bearer ") and "Mcp-Session-Id" not in reply.headers


def test_a_session_can_be_used_with_the_token_that_opened_it_alone(guarded: Server) -> None:
    with client(guarded, "legacy", token=ALPHA) as one, client(guarded, "legacy", token=BETA) as thief:
        for method, body in CALLS:
            reply = guarded.send(method, body=body, headers=with_session(thief, one.session))
            # As if there were no such session, so that nothing can be learned by guessing.
            assert reply.error == (404, -32001, None)
            unknown = guarded.send(method, body=body, headers=with_session(thief, "0" * 32))
            assert (reply.status, reply.body) == (unknown.status, unknown.body)
        assert one.request("skills/list")["skills"]
        nobody = {**with_session(one, one.session), "Authorization": None}
        assert guarded.send("DELETE", headers=nobody).status == 401
        assert one.delete().status == 200


def test_no_session_id_is_logged(tmp_path: Path) -> None:
    """A session that is used with another token is a warning, which must not name the session."""
    with (
        http_serving(FIXTURES, "--token-file", token_file(tmp_path, *LINES)) as server,
        client(server, "legacy", token=ALPHA) as one,
        client(server, "legacy", token=BETA) as thief,
    ):
        assert server.send("DELETE", headers=with_session(thief, one.session)).status == 404
        server.said("does not match the one that created the session")
    assert str(one.session) not in server.stderr


def test_the_log_has_the_names_of_tokens_and_never_a_token(guarded: Server, era: Era) -> None:
    with client(guarded, era, token=BETA) as one:
        one.every_skill()
        with client(guarded, era, opened=False, token="a-wrong-token-0123456789") as stranger:
            assert stranger.post(stranger.message("ping")).status == 401
    guarded.said("authenticated as beta")
    guarded.said("refused a request without a valid token")
    for secret in (ALPHA, BETA, "a-wrong-token"):
        assert secret not in guarded.stderr


def test_tokens_from_two_places_are_wrong_usage(tmp_path: Path) -> None:
    path = token_file(tmp_path, *LINES)
    seen = refused(FIXTURES, "--token-file", path, environment={"MCP_SKILLS_TOKENS": f"alpha={ALPHA}"})
    assert "--token-file" in seen and "MCP_SKILLS_TOKENS" in seen and ALPHA not in seen


def load(one: HttpClient, name: str) -> str:
    """Load a skill and return the handle."""
    return one.call("skills_load", names=[name])["structuredContent"]["session"]


def read(one: HttpClient, handle: str | None) -> str:
    """What is answered to who reads the SKILL.md that was loaded last."""
    result = one.call("skills_read", path="SKILL.md", session=handle)
    return result["content"][0]["text"]


@pytest.mark.requirement("MCP-11", "X-15")
def test_what_was_loaded_is_found_with_the_token_that_loaded_it_alone(guarded: Server, era: Era) -> None:
    with client(guarded, era, token=ALPHA) as one, client(guarded, era, token=BETA) as thief:
        handle = load(one, "commit-messages")
        unknown = "x" * len(handle)
        refusal = read(thief, handle)
        assert "Commit messages" not in refusal and "begin a new one" in refusal
        assert refusal.replace(handle, unknown) == read(thief, unknown), "nobody can probe for handles"
        assert "Commit messages" in read(one, handle)
        with client(guarded, era, token=ALPHA) as again:
            assert "Commit messages" in read(again, handle)


@pytest.mark.requirement("X-15", "MCP-10")
def test_clients_do_not_see_each_other_s_skills(server: Server, era: Era) -> None:
    with client(server, era) as one, client(server, era) as other:
        handle = load(one, "commit-messages")
        load(other, "meeting-notes")
        assert "Commit messages" in read(one, handle if era == "modern" else None)


def send(http_client: HttpClient, body: bytes) -> Reply:
    """Send a body with the headers of a call of `skills/list`."""
    return http_client.server.send(body=body, headers=http_client.headers(CALL))


def test_every_malformed_message_is_answered_as_over_stdio(http_client: HttpClient) -> None:
    for case in MALFORMED:
        reply = send(http_client, case.raw)
        assert reply.error == (400, case.code, case.id), case.title
        assert len(reply.body) < 500
        # A byte order mark is passed over.
        (answer,) = send(
            http_client, b"\xef\xbb\xbf" + json.dumps(http_client.message("skills/list")).encode()
        ).messages
        assert answer["result"]["skills"]
    for method, params in HALVES:  # half a character
        message = http_client.message(method, params)
        (answer,) = http_client.post(message).messages
        assert answer["id"] == message["id"] and ("result" in answer or answer["error"]["code"] == -32602), answer


class Slow:
    """Stands for the SDK: ends a request when it is told to."""

    def __init__(self) -> None:
        self.ids: list[Any] = []
        self.come, self.leave = anyio.Semaphore(0), anyio.Semaphore(0)

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """As the SDK's endpoint."""
        self.ids.append(json.loads((await receive())["body"])["id"])
        self.come.release()
        await self.leave.acquire()
        await send({"type": "http.response.start", "status": 200, "headers": []})


@pytest.mark.anyio
async def test_an_id_may_be_used_again_once_its_request_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    app = Messages(slow)

    async def status(id_: Any, session: bytes | None = b"s") -> int:
        """Ask with this id; the status of the answer."""
        headers = [] if session is None else [(b"mcp-session-id", session)]
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": json.dumps({**CALL, "id": id_}).encode(), "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        await app({"type": "http", "method": "POST", "headers": headers}, receive, send)
        return sent[0]["status"]

    async with asyncio.timeout(DEADLINE):
        first = asyncio.create_task(status(7))
        await slow.come.acquire()
        second = asyncio.create_task(status("7"))  # which the SDK keeps in the same place
        await anyio.wait_all_tasks_blocked()
        assert slow.ids == [7]  # it waits until the SDK has cleared the place
        slow.leave.release()
        await slow.come.acquire()
        monkeypatch.setattr(sessions, "_ID_S", 0.01)
        assert await status(7) == 400
        # Of another session or of none, and so of no other's id.
        others = [asyncio.create_task(status(7, session)) for session in (b"t", None)]
        for _ in others:
            await slow.come.acquire()
        for _ in range(3):
            slow.leave.release()
        assert await asyncio.gather(first, second, *others) == [200] * 4
    assert slow.ids == [7, "7", 7, 7]
    assert app._under_way == {}
