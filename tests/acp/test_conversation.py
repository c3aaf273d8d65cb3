"""What the proxy makes of lines, without a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.acp import conversation
from mcp_skills_server.acp.conversation import Conversation
from mcp_skills_server.dialects import acp
from mcp_skills_server.dialects.acp import AvailableSkill
from tables import each_row

ONE: tuple[AvailableSkill, ...] = ({"name": "one", "description": "Does one."},)
TWO: tuple[AvailableSkill, ...] = (*ONE, {"name": "two", "description": "Does two."})


def line(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


def request(identifier: object, method: str, **params: Any) -> bytes:
    return line(id=identifier, method=method, params=params)


def told(raw: bytes) -> list[tuple[str, list[str]]]:
    """(session, names) of each notification; the method or the kind goes before the session where it is not usual."""
    out: list[tuple[str, list[str]]] = []
    for each in raw.splitlines():
        message = json.loads(each)
        params = message["params"]
        update = params.get("update", params)
        kind = update.get("sessionUpdate", message["method"])
        prefix = "" if kind == acp.COMMANDS_UPDATE else f"{kind} "
        listed = update["_meta"][acp.DETAILS] if not prefix else update["availableSkills"]
        out.append((prefix + params["sessionId"], [skill["name"] for skill in listed]))
    return out


def make(may_add: Callable[[], bool] = lambda: True) -> Conversation:
    return Conversation(["/bin/skills", "serve"], may_add)


def opened(*, version: int = 1, **announced: Any) -> Conversation:
    talk = make()
    talk.to_agent(
        request(0, "initialize", protocolVersion=version, clientCapabilities={"_meta": {acp.META_KEY: announced}})
    )
    assert talk.after_agent_lines(line(id=0, result={"protocolVersion": version})) == b""
    talk.announce(ONE)
    talk.to_agent(request(1, "session/new", cwd="/", mcpServers=[]))
    assert told(talk.after_agent_lines(line(id=1, result={"sessionId": "s"})))
    return talk


def commands(session_id: str = "s", **update: Any) -> bytes:
    update = {"sessionUpdate": acp.COMMANDS_UPDATE, "availableCommands": [], **update}
    return line(method="session/update", params={"sessionId": session_id, "update": update})


@pytest.mark.requirement("X-34")
def test_a_session_is_told_behind_its_answer_and_on_a_change_and_not_without_one() -> None:
    talk = make()
    talk.to_agent(request("a", "session/load", sessionId="early", mcpServers=[]))
    assert talk.after_agent_lines(line(id="a", result=None)) == b""
    assert told(talk.announce(ONE)) == [("early", ["one"])]  # a catalogue that comes late
    talk.to_agent(request(1, "session/new", mcpServers=[]))
    assert told(talk.announce(TWO)) == [("early", ["one", "two"])]
    assert told(talk.after_agent_lines(line(id=1, result={"sessionId": "s"}))) == [("s", ["one", "two"])]
    talk.to_agent(request(2, "session/fork", sessionId="s"))
    assert told(talk.after_agent_lines(line(id=2, result={"sessionId": "t"}))) == [("t", ["one", "two"])]
    assert talk.announce(TWO) == b""
    assert told(talk.announce(())) == [("early", []), ("s", []), ("t", [])]


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
def test_a_session_that_is_taken_up_is_told_and_keeps_what_the_agent_told_before_the_answer(method: str) -> None:
    talk = make()
    talk.announce(ONE)
    talk.to_agent(request(1, method, sessionId="s"))
    assert talk.after_agent_lines(commands(availableCommands=[{"name": "c", "description": "C."}])) == b""
    after = talk.after_agent_lines(line(id=1, result={}))
    assert told(after) == [("s", ["one"])]
    assert json.loads(after)["params"]["update"]["availableCommands"][0]["name"] == "c"


def test_a_setup_that_fails_and_a_session_that_ends_are_told_nothing() -> None:
    talk = opened()
    talk.to_agent(request(2, "session/new", mcpServers=[]))
    for other in ("2", True, None):  # ids of other types are other ids
        assert talk.after_agent_lines(line(id=other, result={"sessionId": "t"})) == b""
    assert talk.after_agent_lines(line(id=2, error={"code": -32000, "message": "no"})) == b""
    for identifier, end, left in ((3, {"error": {"code": 1}}, [("s", ["one", "two"])]), (4, {"result": {}}, [])):
        talk.to_agent(request(identifier, "session/close", sessionId="s"))
        assert talk.after_agent_lines(line(id=identifier, **end)) == b""
        assert told(talk.announce(TWO)) == left
    assert talk.announce(ONE) == b"" and talk.after_agent_lines(commands()) == b""


def test_ours_follows_the_agent_s_own_update_of_the_same_kind_alone() -> None:
    talk = opened()
    assert told(talk.after_agent_lines(commands())) == [("s", ["one"])]
    assert talk.after_agent_lines(commands("unknown")) == b""
    skills = {"sessionUpdate": acp.SKILLS_UPDATE, "availableSkills": [{"name": "own", "description": "Own."}]}
    own = line(method="session/update", params={"sessionId": "s", "update": skills})
    assert talk.after_agent_lines(own) == b""
    nested = opened(availableSkillsUpdate={})
    assert nested.after_agent_lines(commands()) == b""
    assert told(nested.after_agent_lines(own)) == [("available_skills_update s", ["own", "one"])]
    extended, name = opened(extensionNotification={}), f"{acp.EXTENSION_METHOD} s"
    assert told(extended.after_agent_lines(commands())) == [("s", ["one"])]
    own = line(method=acp.EXTENSION_METHOD, params={"sessionId": "s", "availableSkills": skills["availableSkills"]})
    assert told(extended.after_agent_lines(own + commands())) == [("s", ["one"]), (name, ["own", "one"])]
    assert told(extended.announce(TWO)) == [("s", ["one", "two"]), (name, ["own", "one", "two"])]


def test_several_lines_or_messages_at_once_are_answered_once() -> None:
    talk = make()
    talk.announce(ONE)
    talk.to_agent(request(2, "session/load", sessionId="t") + request(3, "session/load", sessionId="u"))
    lines = line(id=2, result={}) + commands("t") + b"garbage\n" + line(id=3, result={}) + commands("t")
    assert told(talk.after_agent_lines(lines)) == [("t", ["one"]), ("u", ["one"])]
    one = {"id": 1, "method": "session/new", "params": {"mcpServers": []}}
    changed = talk.to_agent(json.dumps([one, {"id": 2, "method": "session/prompt"}]).encode())
    assert [server["name"] for server in json.loads(changed)[0]["params"]["mcpServers"]] == ["skills"]
    answer = json.dumps([{"id": 1, "result": {"sessionId": "s"}}, {"id": 2, "result": {}}]).encode() + b"\n"
    assert told(talk.after_agent_lines(answer)) == [("s", ["one"])]


def test_the_name_of_the_server_is_none_of_thousands_that_are_taken() -> None:
    servers = [{"name": "skills"}, *({"name": f"skills-{number}"} for number in range(2, 12_000)), {"name": [1]}, 5]
    changed = json.loads(make().to_agent(request(1, "session/new", mcpServers=servers)))["params"]["mcpServers"]
    assert changed[:-1] == servers and changed[-1]["name"] == "skills-12000"


def test_a_server_is_added_to_setups_alone_and_only_where_it_can_be_of_use() -> None:
    setup = request(1, "session/new", mcpServers=[])
    added = json.loads(make().to_agent(setup))["params"]["mcpServers"]
    assert added == [{"name": "skills", "command": "/bin/skills", "args": ["serve"], "env": []}]
    assert make(lambda: False).to_agent(setup) == setup
    assert Conversation([], lambda: True).to_agent(setup) == setup
    later = opened(version=2)  # an agent that did not say that it can start servers
    assert later.to_agent(setup) == setup
    for other in (request(1, "session/prompt", text="session/new"), line(method="session/new", params={}), b"\n"):
        assert make().to_agent(other) == other
    other = b'  {"weird":\t"\xff\x00"}\r\n\n'
    changed = make().to_agent(other + setup + other)
    assert changed.startswith(other) and changed.endswith(other) and b"/bin/skills" in changed


@each_row("raw", [
    b'{"id":1,"method":"session/new","params":{"mcpServers":[]}',
    b'\xef\xbb\xbf{"id":1,"method":"session/new","params":{"mcpServers":[]}}',
    b'{"id":1,"method":"session/new","params":{"mcpServers":[],"cwd":"\xff"}}',
    b'{"id":1,"method":"session/new","params":[]}',
    b'{"id":1,"method":"session/new","params":' + b"[" * 100_000,
    b'{"id":' + b"9" * 5000 + b',"method":"session/new","params":{"mcpServers":[]}}',
    b'"session/new"', b'["session/new"]',
])  # fmt: skip
def test_what_cannot_be_read_passes_as_it_is(raw: bytes) -> None:
    assert make().to_agent(raw + b"\r\n") == raw + b"\r\n"


def test_a_thousand_sessions_and_a_thousand_requests_are_kept_in_mind() -> None:
    talk = make()
    talk.announce(ONE)
    for number in range(1001):
        talk.to_agent(request(number, "session/load", sessionId=str(number)))
    heard = b"".join(talk.after_agent_lines(line(id=number, result={})) for number in range(1001))
    wanted = [str(number) for number in range(1, 1001)]
    assert [name for name, _ in told(heard)] == wanted
    assert [name for name, _ in told(talk.announce(TWO))] == wanted
    for name in ("1", "one more"):  # the first is opened again, and is not the oldest any more
        talk.to_agent(request(0, "session/load", sessionId=name))
        talk.after_agent_lines(line(id=0, result={}))
    assert [name for name, _ in told(talk.announce(ONE))] == [*wanted[2:], "1", "one more"]


def kept(talk: Conversation) -> int:
    return sum(len(text or "") for text in talk._agent_updates._texts.values())


LONG = [{"name": "c", "description": "C" * 2000}]


def test_what_is_told_before_the_answer_naming_its_session_is_kept_till_then(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = opened()
    talk.to_agent(request(2, "session/new", mcpServers=[]))
    talk.after_agent_lines(commands("t", availableCommands=LONG) + commands("none", availableCommands=LONG))
    after = talk.after_agent_lines(line(id=2, result={"sessionId": "t"}))
    assert told(after) == [("t", ["one"])] and json.loads(after)["params"]["update"]["availableCommands"] == LONG
    assert 2000 < kept(talk) < 3000
    monkeypatch.setattr(conversation, "_MOST", 2)
    talk.to_agent(request(2, "session/new", mcpServers=[]))
    for number in range(8):  # of which one may come to be a session's name
        talk.after_agent_lines(commands(f"n{number}"))
    assert [name for name, _ in talk._agent_updates._texts] == [f"n{number}" for number in range(2, 8)]
    talk.after_agent_lines(line(id=2, error={}))
    talk.to_agent(request(3, "session/close", sessionId="t"))
    talk.after_agent_lines(line(id=3, result={}))
    assert talk.after_agent_lines(commands("none", availableCommands=LONG)) == b""  # which nobody asks for now
    assert kept(talk) == 0


def test_a_session_whose_own_commands_are_too_large_to_keep_does_not_lose_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "_MOST_BYTES", 5000)
    talk = opened()
    for identifier, name in enumerate("abcd", 10):
        talk.to_agent(request(identifier, "session/load", sessionId=name))
        talk.after_agent_lines(line(id=identifier, result={}))
        talk.after_agent_lines(commands(name, availableCommands=LONG))
        assert kept(talk) <= 5000
    # Of those of longest ago nothing is told, since that would take the agent's commands away.
    assert [name for name, _ in told(talk.announce(TWO))] == ["s", "c", "d"]
    assert told(talk.after_agent_lines(commands("a"))) == [("a", ["one", "two"])]
    assert talk.after_agent_lines(commands("s", availableCommands=LONG * 9)) == b"" and kept(talk) <= 5000


def test_the_longest_name_of_a_session_has_1024_characters() -> None:
    talk = opened()
    for number, length in enumerate((1024, 1025), 2):
        name = "t" * length
        talk.to_agent(request(number, "session/new", mcpServers=[]))
        talk.after_agent_lines(commands(name, availableCommands=LONG) + line(id=number, result={"sessionId": name}))
        assert 2000 < kept(talk) < 3000
    assert [name for name, _ in told(talk.announce(TWO))] == ["s", "t" * 1024]


def test_what_is_nested_too_deep_costs_its_session_alone() -> None:
    talk = opened()
    talk.to_agent(request(2, "session/load", sessionId="t"))
    talk.after_agent_lines(line(id=2, result={}))
    limit = sys.getrecursionlimit()
    update = commands(availableCommands=["here"])
    for depth in range(limit - 249, limit + 20):
        talk.after_agent_lines(update.replace(b'"here"', b"[" * depth + b"]" * depth))
        assert b'"sessionId":"t"' in talk.announce(TWO if depth % 2 else ONE)
    # How deep is too deep is for the version of Python; what no JSON can hold is refused by all of them.
    talk.after_agent_lines(update.replace(b'"here"', b"NaN"))
    heard = talk.announce(())
    assert b'"sessionId":"t"' in heard and b'"sessionId":"s"' not in heard
    talk.announce(TWO)
    assert told(talk.after_agent_lines(commands())) == [("s", ["one", "two"])]


@given(st.lists(st.binary() | st.text().map(str.encode), max_size=4))
def test_bytes_of_no_meaning_pass(parts: list[bytes]) -> None:
    talk = opened()
    raw = b'"session/new" "result"'.join(parts)
    assert talk.to_agent(raw) == raw and talk.after_agent_lines(raw) == b""


@pytest.mark.requirement("ACPX-3")
@each_row("unknown", [
    request(7, "_example.com/ask", question="?"), line(method="session/unheard_of", params={"sessionId": "s"}),
    line(id=7, error={"code": -32601, "message": "Method not found"}),
])  # fmt: skip
def test_what_is_unknown_passes_in_both_directions_and_is_answered_by_its_receiver(unknown: bytes) -> None:
    """The proxy answers nothing in anybody's name and adds nothing: -32601 is the receiver's to say."""
    talk = opened()
    assert talk.to_agent(unknown) == unknown
    assert talk.after_agent_lines(unknown) == b""
