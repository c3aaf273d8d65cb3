"""State of an ACP conversation, and the messages that the proxy inserts, without a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.acp import conversation as module
from mcp_skills_server.acp.conversation import Conversation
from mcp_skills_server.dialects import acp
from mcp_skills_server.dialects.acp import AvailableSkill
from tables import each_row

ONE: tuple[AvailableSkill, ...] = ({"name": "one", "description": "Does one."},)
TWO: tuple[AvailableSkill, ...] = (*ONE, {"name": "two", "description": "Does two."})
LONG_COMMANDS = [{"name": "c", "description": "C" * 2000}]


def line(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


def request(identifier: object, method: str, **params: Any) -> bytes:
    return line(id=identifier, method=method, params=params)


def announced(raw: bytes) -> list[tuple[str, list[str]]]:
    """Return (session id, skill names) of each notification.

    Unless the update is of commands, its kind or its method precedes the session id.
    """
    out: list[tuple[str, list[str]]] = []
    for each in raw.splitlines():
        message = json.loads(each)
        params = message["params"]
        update = params.get("update", params)
        kind = update.get("sessionUpdate", message["method"])
        session_id = params["sessionId"]
        if kind == acp.COMMANDS_UPDATE:
            skills = update["_meta"][acp.DETAILS]
        else:
            skills = update["availableSkills"]
            session_id = f"{kind} {session_id}"
        out.append((session_id, [skill["name"] for skill in skills]))
    return out


def announced_sessions(raw: bytes) -> list[str]:
    return [session_id for session_id, _ in announced(raw)]


def new_conversation(may_add: Callable[[], bool] = lambda: True) -> Conversation:
    return Conversation(["/bin/skills", "serve"], may_add)


def exchange(conversation: Conversation, method: str, response: Any, **params: Any) -> bytes:
    """Send a request and its response, and return the lines inserted after the response."""
    conversation.to_agent(request(9, method, **params))
    return conversation.after_agent_lines(line(id=9, **response))


def load_session(conversation: Conversation, session_id: str) -> bytes:
    return exchange(conversation, "session/load", {"result": {}}, sessionId=session_id)


def open_conversation(*, version: int = 1, **opted_in: Any) -> Conversation:
    """Return a conversation with the skills `ONE` and the session "s"."""
    conversation = new_conversation()
    response = {"result": {"protocolVersion": version}}
    capabilities = {"_meta": {acp.META_KEY: opted_in}}
    params = {"protocolVersion": version, "clientCapabilities": capabilities}
    assert exchange(conversation, "initialize", response, **params) == b""
    conversation.announce(ONE)
    assert announced(exchange(conversation, "session/new", {"result": {"sessionId": "s"}}, mcpServers=[]))
    return conversation


def commands_update(session_id: str = "s", commands: Any = ()) -> bytes:
    update = {"sessionUpdate": acp.COMMANDS_UPDATE, "availableCommands": [*commands]}
    return line(method="session/update", params={"sessionId": session_id, "update": update})


@pytest.mark.requirement("X-34")
def test_skills_are_announced_after_the_session_response_and_on_change() -> None:
    conversation = new_conversation()
    conversation.to_agent(request("a", "session/load", sessionId="early", mcpServers=[]))
    assert conversation.after_agent_lines(line(id="a", result=None)) == b""
    assert announced(conversation.announce(ONE)) == [("early", ["one"])]
    conversation.to_agent(request(1, "session/new", mcpServers=[]))
    assert announced(conversation.announce(TWO)) == [("early", ["one", "two"])]
    after = conversation.after_agent_lines(line(id=1, result={"sessionId": "s"}))
    assert announced(after) == [("s", ["one", "two"])]
    after = exchange(conversation, "session/fork", {"result": {"sessionId": "t"}}, sessionId="s")
    assert announced(after) == [("t", ["one", "two"])]
    assert conversation.announce(TWO) == b""
    assert announced(conversation.announce(())) == [("early", []), ("s", []), ("t", [])]


def test_failed_setup_and_closed_session_get_no_announcement() -> None:
    conversation = open_conversation()
    conversation.to_agent(request(2, "session/new", mcpServers=[]))
    for other_id in ("2", True, None):
        response = line(id=other_id, result={"sessionId": "t"})
        assert conversation.after_agent_lines(response) == b""
    assert conversation.after_agent_lines(line(id=2, error={"code": -32000})) == b""
    error, result = {"error": {"code": 1}}, {"result": {}}
    assert exchange(conversation, "session/close", error, sessionId="s") == b""
    assert announced(conversation.announce(TWO)) == [("s", ["one", "two"])]
    assert exchange(conversation, "session/close", result, sessionId="s") == b""
    assert conversation.announce(ONE) == b""
    assert conversation.after_agent_lines(commands_update()) == b""


def test_announcement_follows_the_agent_update_of_the_same_kind() -> None:
    skills = [{"name": "own", "description": "Own."}]
    update = {"sessionUpdate": acp.SKILLS_UPDATE, "availableSkills": skills}
    nested_update = line(method="session/update", params={"sessionId": "s", "update": update})
    extension_params = {"sessionId": "s", "availableSkills": skills}
    extension_update = line(method=acp.EXTENSION_METHOD, params=extension_params)

    by_commands = open_conversation()
    assert announced(by_commands.after_agent_lines(commands_update())) == [("s", ["one"])]
    assert by_commands.after_agent_lines(commands_update("unknown")) == b""
    assert by_commands.after_agent_lines(nested_update) == b""

    nested = open_conversation(availableSkillsUpdate={})
    assert nested.after_agent_lines(commands_update()) == b""
    after = nested.after_agent_lines(nested_update)
    assert announced(after) == [("available_skills_update s", ["own", "one"])]

    extended = open_conversation(extensionNotification={})
    label = f"{acp.EXTENSION_METHOD} s"
    assert announced(extended.after_agent_lines(commands_update())) == [("s", ["one"])]
    after = extended.after_agent_lines(extension_update + commands_update())
    assert announced(after) == [("s", ["one"]), (label, ["own", "one"])]
    after = extended.announce(TWO)
    assert announced(after) == [("s", ["one", "two"]), (label, ["own", "one", "two"])]


def test_server_is_added_only_to_session_setups_that_can_use_it() -> None:
    setup = request(1, "session/new", mcpServers=[])
    changed = new_conversation().to_agent(setup)
    server = {"name": "skills", "command": "/bin/skills", "args": ["serve"], "env": []}
    assert json.loads(changed)["params"]["mcpServers"] == [server]
    assert new_conversation(lambda: False).to_agent(setup) == setup
    assert Conversation([], lambda: True).to_agent(setup) == setup
    # In version 2 an agent declares that it can start servers; this one does not.
    assert open_conversation(version=2).to_agent(setup) == setup
    prompt = request(1, "session/prompt", text="session/new")
    for other in (prompt, line(method="session/new", params={}), b"\n"):
        assert new_conversation().to_agent(other) == other
    other = b'  {"weird":\t"\xff\x00"}\r\n\n'
    assert new_conversation().to_agent(other + setup + other) == other + changed + other


@each_row("raw", [
    b'{"id":1,"method":"session/new","params":{"mcpServers":[]}',
    b'\xef\xbb\xbf{"id":1,"method":"session/new","params":{"mcpServers":[]}}',
    b'{"id":1,"method":"session/new","params":{"mcpServers":[],"cwd":"\xff"}}',
    b'{"id":1,"method":"session/new","params":[]}',
    b'{"id":1,"method":"session/new","params":' + b"[" * 100_000,
    b'{"id":' + b"9" * 5000 + b',"method":"session/new","params":{"mcpServers":[]}}',
    b'"session/new"', b'["session/new"]',
])  # fmt: skip
def test_unparsable_setup_passes_unchanged(raw: bytes) -> None:
    assert new_conversation().to_agent(raw + b"\r\n") == raw + b"\r\n"


def test_at_most_a_thousand_sessions_and_requests_are_tracked() -> None:
    conversation = new_conversation()
    conversation.announce(ONE)
    for number in range(1001):
        conversation.to_agent(request(number, "session/load", sessionId=str(number)))
    responses = [line(id=number, result={}) for number in range(1001)]
    after = b"".join(map(conversation.after_agent_lines, responses))
    expected = [str(number) for number in range(1, 1001)]
    assert announced_sessions(after) == expected
    assert announced_sessions(conversation.announce(TWO)) == expected
    for session_id in ("1", "another"):  # session 1 is opened again, so 2 is the oldest
        load_session(conversation, session_id)
    expected = [*expected[2:], "1", "another"]
    assert announced_sessions(conversation.announce(ONE)) == expected


def stored_characters(conversation: Conversation) -> int:
    return sum(len(text or "") for text in conversation._agent_updates._texts.values())


def test_update_before_the_response_is_stored_until_its_session_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = open_conversation()
    conversation.to_agent(request(2, "session/new", mcpServers=[]))
    for session_id in ("t", "none"):
        conversation.after_agent_lines(commands_update(session_id, LONG_COMMANDS))
    after = conversation.after_agent_lines(line(id=2, result={"sessionId": "t"}))
    assert announced(after) == [("t", ["one"])]
    assert json.loads(after)["params"]["update"]["availableCommands"] == LONG_COMMANDS
    assert 2000 < stored_characters(conversation) < 3000
    monkeypatch.setattr(module, "_MAX_KEPT", 2)
    conversation.to_agent(request(2, "session/new", mcpServers=[]))
    for number in range(8):
        conversation.after_agent_lines(commands_update(f"n{number}"))
    stored = [session_id for session_id, _ in conversation._agent_updates._texts]
    assert stored == [f"n{number}" for number in range(2, 8)]
    conversation.after_agent_lines(line(id=2, error={}))
    exchange(conversation, "session/close", {"result": {}}, sessionId="t")
    assert conversation.after_agent_lines(commands_update("none", LONG_COMMANDS)) == b""
    assert stored_characters(conversation) == 0


def test_session_without_stored_agent_commands_gets_no_announcement(monkeypatch: pytest.MonkeyPatch) -> None:
    """An announcement without the agent's own commands would remove them."""
    monkeypatch.setattr(module, "_MAX_BYTES", 5000)
    conversation = open_conversation()
    for session_id in "abcd":
        load_session(conversation, session_id)
        conversation.after_agent_lines(commands_update(session_id, LONG_COMMANDS))
        assert stored_characters(conversation) <= 5000
    assert announced_sessions(conversation.announce(TWO)) == ["s", "c", "d"]
    after = conversation.after_agent_lines(commands_update("a"))
    assert announced(after) == [("a", ["one", "two"])]
    assert conversation.after_agent_lines(commands_update("s", LONG_COMMANDS * 9)) == b""
    assert stored_characters(conversation) <= 5000


def test_session_id_has_at_most_1024_characters() -> None:
    conversation = open_conversation()
    for length in (1024, 1025):
        session_id = "t" * length
        conversation.to_agent(request(2, "session/new", mcpServers=[]))
        response = line(id=2, result={"sessionId": session_id})
        conversation.after_agent_lines(commands_update(session_id, LONG_COMMANDS) + response)
        assert 2000 < stored_characters(conversation) < 3000
    assert announced_sessions(conversation.announce(TWO)) == ["s", "t" * 1024]


def test_too_deeply_nested_commands_affect_only_their_session() -> None:
    conversation = open_conversation()
    load_session(conversation, "t")
    limit = sys.getrecursionlimit()
    update = commands_update(commands=["here"])
    for depth in range(limit - 249, limit + 20):
        conversation.after_agent_lines(update.replace(b'"here"', b"[" * depth + b"]" * depth))
        skills = TWO if depth % 2 else ONE
        assert b'"sessionId":"t"' in conversation.announce(skills)
    for cannot_be_repeated in (b"NaN", b"[" * 101 + b"]" * 101):
        conversation.after_agent_lines(update.replace(b'"here"', cannot_be_repeated))
        after = conversation.announce(())
        assert b'"sessionId":"t"' in after
        assert b'"sessionId":"s"' not in after
        conversation.announce(TWO)
    after = conversation.after_agent_lines(commands_update())
    assert announced(after) == [("s", ["one", "two"])]


@pytest.mark.requirement("ACPX-3")
@each_row("unknown", [
    request(7, "_example.com/ask", question="?"),
    line(method="session/unheard_of", params={"sessionId": "s"}),
    line(id=7, error={"code": -32601, "message": "Method not found"}),
])  # fmt: skip
def test_unknown_message_passes_so_that_its_receiver_answers(unknown: bytes) -> None:
    conversation = open_conversation()
    assert conversation.to_agent(unknown) == unknown
    assert conversation.after_agent_lines(unknown) == b""


@given(st.lists(st.binary() | st.text().map(str.encode), max_size=4))
def test_meaningless_bytes_pass_unchanged(parts: list[bytes]) -> None:
    conversation = open_conversation()
    raw = b'"session/new" "result"'.join(parts)
    assert conversation.to_agent(raw) == raw
    assert conversation.after_agent_lines(raw) == b""
