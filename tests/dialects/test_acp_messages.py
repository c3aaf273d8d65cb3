"""Requests and answers of a conversation over ACP."""

from __future__ import annotations

from mcp_skills_server.dialects import acp
from mcp_skills_server.dialects.acp import Answer, Ending, Hello, Setup


def test_requests_are_recognized_one_by_one_and_in_a_batch() -> None:
    hello = {"id": 0, "method": "initialize", "params": {"protocolVersion": 1, "clientCapabilities": {"a": 1}}}
    new = {"id": "n", "method": "session/new", "params": {"sessionId": "not read"}}
    load = {"id": None, "method": "session/load", "params": {"sessionId": "s"}}
    end = {"id": 2.5, "method": "session/close", "params": {"sessionId": "s"}}
    found = acp.asked([hello, new, load, end, {"id": 3, "method": "session/prompt"}, {"method": "session/new"}, 5])
    assert found == [
        Hello(("number", 0), 1, {"a": 1}),
        Setup(("str", "n"), None),
        Setup(("NoneType", None), "s"),
        Ending(("number", 2.5), "s"),
    ]
    assert acp.asked({"id": {}, "method": "session/new", "params": []}) == [Setup(None, None)]
    assert acp.asked("x") == []


def test_ids_of_every_type_are_told_apart() -> None:
    keys = [acp.answered({"id": each, "result": {}})[0].key for each in (1, "1", True, None, 1.0)]
    assert keys[0] == keys[4] and len(set(keys)) == 4


def test_answers_and_what_they_open() -> None:
    assert acp.answered({"id": 1, "error": {"code": -1}}) == [Answer(("number", 1), None)]
    assert acp.answered({"id": None, "error": {"code": -1}}) == []
    for other in ({"id": 1, "method": "x", "result": {}}, {"id": [], "result": {}}, {"id": 1}, 5):
        assert acp.answered(other) == []
    key = ("number", 1)
    assert acp.opened(Setup(key, None), Answer(key, {"sessionId": "s"})) == "s"
    assert acp.opened(Setup(key, "old"), Answer(key, {})) == "old"
    assert acp.opened(Setup(key, "old"), Answer(key, None)) is None
    assert acp.opened(Setup(key, None), Answer(key, {"sessionId": 5})) is None


def test_all_agents_of_version_1_start_servers_and_later_ones_say_so() -> None:
    assert acp.starts_servers(1, {})
    assert not acp.starts_servers(2, {"capabilities": {}})
    assert acp.starts_servers(2, {"capabilities": {"session": {"mcp": {"stdio": {}}}}})
    assert acp.server("n", ["/x", "y"], 1) == {"name": "n", "command": "/x", "args": ["y"], "env": []}
    assert acp.server("n", ["/x"], 2)["type"] == "stdio"
