"""The skills of the Agent Client Protocol, with plain values."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.build import skill, snapshot
from mcp_skills_server.dialects import acp
from mcp_skills_server.dialects.acp import AgentResponse, InitializeRequest, SessionEnd, SessionRequest, UpdateForms
from mcp_skills_server.model import ORIGIN, Snapshot, Standing
from steps import growth
from tables import each_row
from wire import ROOT


def test_requests_are_recognized_one_by_one_and_in_a_batch() -> None:
    hello = {"id": 0, "method": "initialize", "params": {"protocolVersion": 1, "clientCapabilities": {"a": 1}}}
    later = {"id": 1, "method": "initialize", "params": {"protocolVersion": 2, "capabilities": {"b": 2}}}
    new = {"id": "n", "method": "session/new", "params": {"sessionId": "not read"}}
    load = {"id": None, "method": "session/load", "params": {"sessionId": "s"}}
    end = {"id": 2.5, "method": "session/close", "params": {"sessionId": "s"}}
    others = [{"id": 3, "method": "session/prompt"}, {"method": "session/new"}, 5]
    assert acp.parse_requests([hello, later, {"id": 2, "method": "initialize"}, new, load, end, *others]) == [
        InitializeRequest(("number", 0), 1, {"a": 1}), InitializeRequest(("number", 1), 2, {"b": 2}),
        InitializeRequest(("number", 2), 1, None), SessionRequest(("str", "n"), None),
        SessionRequest(("NoneType", None), "s"), SessionEnd(("number", 2.5), "s"),
    ]  # fmt: skip


def test_ids_of_every_type_are_told_apart() -> None:
    keys = [acp.parse_responses({"id": each, "result": {}})[0].key for each in (1, "1", True, None, 1.0)]
    assert keys[0] == keys[4] and len(set(keys)) == 4


def test_answers_and_what_they_open() -> None:
    assert acp.parse_responses({"id": 1, "error": {"code": -1}}) == [AgentResponse(("number", 1), None)]
    assert acp.parse_responses({"id": None, "error": {"code": -1}}) == []
    for other in ({"id": 1, "method": "x", "result": {}}, {"id": [], "result": {}}, {"id": 1}, 5):
        assert acp.parse_responses(other) == []
    key = ("number", 1)
    assert acp.parse_responses({"id": 1, "result": {"a": 1}, "error": None}) == [AgentResponse(key, {"a": 1})]
    for result, version in (({"protocolVersion": 2}, 2), ({}, 1), (None, 1)):
        assert acp.negotiated_version(InitializeRequest(key, 1, None), AgentResponse(key, result)) == version
    assert acp.opened_session_id(SessionRequest(key, None), AgentResponse(key, {"sessionId": "s"})) == "s"
    assert acp.opened_session_id(SessionRequest(key, "old"), AgentResponse(key, {})) == "old"
    assert acp.opened_session_id(SessionRequest(key, "old"), AgentResponse(key, None)) is None
    assert acp.opened_session_id(SessionRequest(key, None), AgentResponse(key, {"sessionId": 5})) is None


ADDED: dict[str, Any] = {"name": "skills", "command": "/bin/x", "args": ["serve"], "env": []}


def make(name: str) -> dict[str, Any]:
    return {**ADDED, "name": name}


@each_row(("before", "after"), [
    ({"mcpServers": []}, {"mcpServers": [ADDED]}), ({"mcpServers": None}, {"mcpServers": [ADDED]}),
    ({}, {"mcpServers": [ADDED]}), ({"mcpServers": {}}, {"mcpServers": {}}), ([], []), (None, None),
    ({"mcpServers": [{"name": "a"}], "cwd": "/x"}, {"mcpServers": [{"name": "a"}, ADDED], "cwd": "/x"}),
    ({"mcpServers": [{"name": "skills"}]}, {"mcpServers": [{"name": "skills"}, {**ADDED, "name": "skills-2"}]}),
    ({"_meta": {"mcpServers": []}, "n": 1.5}, {"_meta": {"mcpServers": []}, "n": 1.5, "mcpServers": [ADDED]}),
])  # fmt: skip
def test_a_server_is_added_and_nothing_else_changes(before: Any, after: Any) -> None:
    alone: dict[str, Any] = {"id": 1, "method": "session/new", "params": before}
    made = acp.with_server(json.dumps(alone, indent=1), make)
    assert json.loads(made) == {**alone, "params": after} and ("\n" in made) is (before == after)
    other = {"id": 1, "method": "session/prompt", "params": {"mcpServers": []}}
    batch = [{"a": 1}, other, {"method": "session/load", "params": before, "id": None}]
    assert json.loads(acp.with_server(json.dumps(batch), make)) == [*batch[:2], {**batch[2], "params": after}]


def golden(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "tests" / "golden" / f"acp.{name}.json").read_text(encoding="utf-8"))


@pytest.mark.requirement("ACP-1", "ACP-3", "ACP-7")
def test_metadata_and_the_origin_travel_in_meta() -> None:
    about = "Extract text and tables from PDF files, fill forms, merge documents."
    metadata = {"author": "example-org", "version": "1.0"}
    one = skill("pdf-processing", description=about, license="Apache-2.0", metadata=metadata)
    assert acp.entry(one) == golden("skill") and acp.why_invalid(acp.entry(one)) is None
    meta = acp.entry(replace(one, origin="https://example.com")).get("_meta")
    assert meta == {**metadata, ORIGIN: "https://example.com"}


@pytest.mark.requirement("ACP-4", "ACP-5", "ACP-6")
def test_empty_fields_are_left_out() -> None:
    bare = {"name": "a", "description": "Does a."}
    assert acp.entry(skill("a", license="", compatibility=None, allowed_tools="", metadata={})) == bare
    full = acp.entry(skill("a", license="MIT", compatibility="git", allowed_tools=["Bash", "Read"]))
    assert full == {**bare, "license": "MIT", "compatibility": "git", "allowedTools": ["Bash", "Read"]}


@pytest.mark.requirement("ACP-6")
@each_row(("text", "tools"), [
    ("Bash Read", ["Bash", "Read"]), ("a) b", ["a)", "b"]), ("", []), (" , ", []), (None, []), (7, []),
    ("Bash(git add:*, git commit:*) Read", ["Bash(git add:*, git commit:*)", "Read"]),
    ("Bash(a (b, c) d),Read,\tWrite ", ["Bash(a (b, c) d)", "Read", "Write"]),
    ("Bash(never closed Read", ["Bash(never", "closed", "Read"]), (["Bash(git:*)", " ", 5], ["Bash(git:*)"]),
])  # fmt: skip
def test_tools_are_split_outside_parentheses(text: Any, tools: list[str]) -> None:
    assert acp.split_tools(text) == tools


@each_row("shape", ["(", "a(b ", "()", "(,", ")(", "(()"])
def test_splitting_takes_linear_time(shape: str) -> None:
    assert growth(lambda times: lambda: acp.split_tools(shape * times), 300) <= 5


@given(st.text(alphabet="ab(), \t*"))
@pytest.mark.requirement("ACP-6")
def test_splitting_loses_nothing_but_separators(text: str) -> None:
    tools = acp.split_tools(text)
    assert all(tool.strip(" \t,") for tool in tools)
    assert [each for each in "".join(tools) if each not in ", \t"] == [each for each in text if each not in ", \t"]


@pytest.mark.requirement("ACP-1", "ACP-2", "ACP-3", "ACP-5", "ACP-6", "ACPX-1")
@each_row(("change", "word"), [
    ({"name": "a--b"}, "name"), ({"name": "-a"}, "name"), ({"name": "a-"}, "name"), ({"name": "A"}, "name"),
    ({"name": "a\n"}, "name"), ({"name": ""}, "name"), ({"name": "a" * 65}, "name"), ({"name": None}, "name"),
    ({"description": ""}, "description"), ({"description": "x" * 1025}, "description"),
    ({"license": 1}, "license"), ({"compatibility": "x" * 501}, "compatibility"),
    ({"allowedTools": "Bash"}, "allowedTools"), ({"allowedTools": [1]}, "allowedTools"), ({"_meta": []}, "_meta"),
    ({"metadata": {}}, "metadata"),
])  # fmt: skip
def test_what_is_no_available_skill_is_refused(change: dict[str, Any], word: str) -> None:
    good = {"name": "a", "description": "Does a."}
    for description in ("x", "x" * 1024):
        most = {"name": "a" * 64, "description": description, "compatibility": "x" * 500}
        assert acp.why_invalid(most) is None
    assert word in (acp.why_invalid({**good, **change}) or "")
    assert acp.why_invalid("a") == "it is not an object"


@pytest.mark.requirement("ACPX-14")
def test_of_one_name_the_earlier_root_is_told_and_the_rest_is_accounted_for() -> None:
    first = replace(skill("z/same"), root=0)
    later = replace(skill("a/same"), root=1)
    found = acp.available(snapshot(later, first, skill("weak", standing=Standing.LENIENT), skill("odd", license=["x"])))
    assert [each["name"] for each in found.skills] == ["same"]
    assert [path for path, _ in found.left_out] == ["odd", "a/same"]
    assert "z/same" in dict(found.left_out)["a/same"]


COMMAND = {"name": "create_plan", "description": "Creates a plan."}


def the_two() -> Snapshot:
    about = "Generates unit tests for the specified code..."
    return snapshot(
        skill("code-review", description="Performs automated code review on staged changes..."),
        skill("test-generator", description=about, allowed_tools="Bash Read Write"),
    )


def told(takes: UpdateForms, theirs: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    skills = acp.available(the_two()).skills
    return [
        json.loads(acp.message(method, params))
        for method, params in acp.notifications("sess_abc123", skills, takes, theirs or {})
    ]


@pytest.mark.requirement("ACP-8", "ACP-9", "ACP-10", "X-32")
def test_the_example_of_the_draft_is_sent_nested() -> None:
    nested = golden("nested")
    assert nested["params"]["update"]["availableSkills"] == golden("flat-example")["params"]["availableSkills"]
    assert told(UpdateForms(nested=True)) == [nested]


@pytest.mark.requirement("X-31", "ACPX-1", "ACPX-2", "ACP-17")
def test_who_does_not_know_the_draft_gets_commands_with_meta_and_what_it_asked_for() -> None:
    theirs = {acp.COMMANDS_UPDATE: {"sessionUpdate": acp.COMMANDS_UPDATE, "availableCommands": [COMMAND]}}
    assert told(UpdateForms(), theirs) == [golden("commands")]
    assert told(UpdateForms(extension=True), theirs) == [golden("commands"), golden("extension")]
    assert told(UpdateForms())[0]["params"]["update"]["availableCommands"] == []
    assert golden("extension")["method"].startswith("_")


@pytest.mark.requirement("ACPX-4", "ACP-13", "X-31", "X-32")
@each_row(("version", "capabilities", "expected"), [
    (1, None, UpdateForms()), (1, {"_meta": {acp.META_KEY: True}}, UpdateForms()), (2, {}, UpdateForms(nested=True)),
    (1, {"fs": {}, "_meta": {acp.META_KEY: {acp.NESTED: {}}}}, UpdateForms(nested=True)),
    (1, {"_meta": {acp.META_KEY: {acp.NESTED: False, acp.NOTIFICATION: True}}}, UpdateForms(extension=True)),
    (1, {"_meta": acp.capability()}, UpdateForms(nested=True, extension=True)),
])  # fmt: skip
def test_what_a_client_takes_and_what_an_agent_starts(
    version: int, capabilities: object, expected: UpdateForms
) -> None:
    assert acp.accepted_forms(version, capabilities) == expected
    assert acp.starts_servers(1, {}) and not acp.starts_servers(2, {"capabilities": {}})
    assert acp.starts_servers(2, {"capabilities": {"session": {"mcp": {"stdio": {}}}}})
    for stdio in (True, False):
        assert acp.starts_servers(2, {"capabilities": {"mcp": {"stdio": stdio}}}) is stdio
    stdio_server = {"name": "n", "command": "/x", "args": ["y"], "env": []}
    assert acp.server("n", ["/x", "y"], 1) == stdio_server
    assert acp.server("n", ["/x", "y"], 2) == {**stdio_server, "type": "stdio"}


def test_what_the_agent_told_itself_is_told_again_with_ours() -> None:
    own = {"name": "code-review", "description": "The agent's."}
    theirs = {
        acp.SKILLS_UPDATE: {"sessionUpdate": acp.SKILLS_UPDATE, "availableSkills": [own, 5], "_meta": {"k": 1}},
        acp.COMMANDS_UPDATE: {
            "availableCommands": [COMMAND],
            "_meta": {"availableSkills": ["code-review"], acp.DETAILS: [own], "other": 2},
        },
        acp.EXTENSION_METHOD: {"availableSkills": [own]},
    }
    nested, extension = told(UpdateForms(nested=True, extension=True), theirs)
    assert nested["params"]["update"]["_meta"] == {"k": 1}
    for skills in (nested["params"]["update"]["availableSkills"], extension["params"]["availableSkills"]):
        assert [each["description"][:10] for each in skills] == ["The agent'", "Generates "]
    update = told(UpdateForms(), theirs)[0]["params"]["update"]
    assert update["availableCommands"] == [COMMAND] and update["_meta"]["other"] == 2
    assert update["_meta"]["availableSkills"] == ["code-review", "test-generator"]
    assert update["_meta"][acp.DETAILS][0] == own and len(update["_meta"][acp.DETAILS]) == 2
    again = {acp.COMMANDS_UPDATE: update}
    assert told(UpdateForms(), again)[0]["params"]["update"] == update  # two proxies, one behind the other


def test_a_line_keeps_half_a_surrogate_pair_and_refuses_what_json_cannot_hold() -> None:
    line = acp.message("m", {"text": "\ud800 ü"})
    assert line.endswith(b"\n") and json.loads(line)["params"] == {"text": "\ud800 ü"}
    with pytest.raises(ValueError, match="JSON"):
        acp.message("m", {"x": float("inf")})


@pytest.mark.requirement("X-33", "ACPX-5")
def test_the_agent_s_own_updates_are_seen_nested_and_flat() -> None:
    nested = {"method": "session/update", "params": {"sessionId": "s", "update": {"sessionUpdate": acp.SKILLS_UPDATE}}}
    flat = {"method": "session/update", "params": {"sessionId": "s", "sessionUpdate": acp.COMMANDS_UPDATE, "x": 1}}
    extension = {"method": acp.EXTENSION_METHOD, "params": {"sessionId": "s", "availableSkills": []}}
    other = {"method": "session/update", "params": {"sessionId": "s", "update": {"sessionUpdate": "_other"}}}
    nobody = {"method": "session/update", "params": {"update": {"sessionUpdate": acp.SKILLS_UPDATE}}}
    assert acp.parse_updates([nested, flat, extension, other, nobody, 5]) == [
        ("s", acp.SKILLS_UPDATE, {"sessionUpdate": acp.SKILLS_UPDATE}),
        ("s", acp.COMMANDS_UPDATE, {"sessionUpdate": acp.COMMANDS_UPDATE, "x": 1}),
        ("s", acp.EXTENSION_METHOD, {"availableSkills": []}),
    ]
