"""Encoding of skills for the Agent Client Protocol, and decoding of its messages."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from dialects.build import AVAILABLE_SKILL, skill, snapshot
from mcp_skills_server.codes import standing
from mcp_skills_server.dialects import acp
from mcp_skills_server.dialects.acp import AgentResponse, InitializeRequest, SessionEnd, SessionRequest, UpdateForms
from mcp_skills_server.format.frontmatter import Document
from mcp_skills_server.model import ORIGIN, Standing
from mcp_skills_server.validation.rules import check
from tables import each_row
from wire import ROOT


def test_initialize_and_session_requests_are_parsed() -> None:
    version_1 = {"id": 0, "method": "initialize", "params": {"protocolVersion": 1, "clientCapabilities": {"a": 1}}}
    version_2 = {"id": 1, "method": "initialize", "params": {"protocolVersion": 2, "capabilities": {"b": 2}}}
    bare = {"id": 2, "method": "initialize"}
    new = {"id": "n", "method": "session/new", "params": {"sessionId": "ignored"}}
    load = {"id": None, "method": "session/load", "params": {"sessionId": "s"}}
    close = {"id": 2.5, "method": "session/close", "params": {"sessionId": "s"}}
    others = [{"id": 3, "method": "session/prompt"}, {"method": "session/new"}, 5]
    assert [acp.parse_request(each) for each in (version_1, version_2, bare, new, load, close, *others)] == [
        InitializeRequest(("number", 0), 1, {"a": 1}), InitializeRequest(("number", 1), 2, {"b": 2}),
        InitializeRequest(("number", 2), 1, None), SessionRequest(("str", "n"), None),
        SessionRequest(("NoneType", None), "s"), SessionEnd(("number", 2.5), "s"), None, None, None,
    ]  # fmt: skip


def test_ids_of_different_types_have_different_keys() -> None:
    responses = [acp.parse_response({"id": id_, "result": {}}) for id_ in (1, "1", True, None, 1.0)]
    assert responses[0] == responses[4] and len({each.key for each in responses if each is not None}) == 4


def test_responses_are_parsed_and_other_messages_ignored() -> None:
    key = ("number", 1)
    assert acp.parse_response({"id": 1, "result": {"a": 1}, "error": None}) == AgentResponse(key, {"a": 1})
    assert acp.parse_response({"id": 1, "error": {"code": -1}}) == AgentResponse(key, None)
    assert acp.parse_response({"id": None, "error": {"code": -1}}) is None
    for other in ({"id": 1, "method": "x", "result": {}}, {"id": [], "result": {}}, {"id": 1}, 5):
        assert acp.parse_response(other) is None


def test_response_decides_the_version_and_the_session_id() -> None:
    key = ("number", 1)
    for result, version in (({"protocolVersion": 2}, 2), ({}, 1), (None, 1)):
        assert acp.negotiated_version(InitializeRequest(key, 1, None), AgentResponse(key, result)) == version
    assert acp.opened_session_id(SessionRequest(key, None), AgentResponse(key, {"sessionId": "s"})) == "s"
    assert acp.opened_session_id(SessionRequest(key, "old"), AgentResponse(key, {})) == "old"
    assert acp.opened_session_id(SessionRequest(key, "old"), AgentResponse(key, None)) is None
    assert acp.opened_session_id(SessionRequest(key, None), AgentResponse(key, {"sessionId": 5})) is None


SERVER: dict[str, Any] = {"name": "skills", "command": "/bin/x", "args": ["serve"], "env": []}


def server_named(name: str) -> dict[str, Any]:
    return {**SERVER, "name": name}


@each_row(("before", "after"), [
    ({"mcpServers": []}, {"mcpServers": [SERVER]}), ({"mcpServers": None}, {"mcpServers": [SERVER]}),
    ({}, {"mcpServers": [SERVER]}), ({"mcpServers": {}}, {"mcpServers": {}}), ([], []), (None, None),
    ({"mcpServers": [{"name": "a"}], "cwd": "/x"}, {"mcpServers": [{"name": "a"}, SERVER], "cwd": "/x"}),
    ({"mcpServers": [{"name": "skills"}]}, {"mcpServers": [{"name": "skills"}, {**SERVER, "name": "skills-2"}]}),
    ({"_meta": {"mcpServers": []}, "n": 1.5}, {"_meta": {"mcpServers": []}, "n": 1.5, "mcpServers": [SERVER]}),
])  # fmt: skip
def test_with_server_adds_the_server_and_changes_nothing_else(before: Any, after: Any) -> None:
    request: dict[str, Any] = {"id": 1, "method": "session/new", "params": before}
    text = acp.with_server(request, server_named)
    if before == after:
        assert text is None
    else:
        assert text is not None and json.loads(text) == {**request, "params": after}


def golden(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "tests" / "golden" / f"acp.{name}.json").read_text(encoding="utf-8"))


@pytest.mark.requirement("ACP-1", "ACP-3", "ACP-7")
def test_entry_has_metadata_and_origin_in_meta() -> None:
    description = "Extract text and tables from PDF files, fill forms, merge documents."
    metadata = {"author": "example-org", "version": "1.0"}
    pdf = skill("pdf-processing", description=description, license="Apache-2.0", metadata=metadata)
    assert acp.entry(pdf) == golden("skill")
    AVAILABLE_SKILL.validate(golden("skill"))
    meta = acp.entry(replace(pdf, origin="https://example.com")).get("_meta")
    assert meta == {**metadata, ORIGIN: "https://example.com"}


@pytest.mark.requirement("ACP-4", "ACP-5", "ACP-6")
def test_entry_omits_empty_fields() -> None:
    bare = {"name": "a", "description": "Does a."}
    assert acp.entry(skill("a", license="", compatibility=None, allowed_tools="", metadata={})) == bare
    full = acp.entry(skill("a", license="MIT", compatibility="git", allowed_tools=["Bash", "Read"]))
    assert full == {**bare, "license": "MIT", "compatibility": "git", "allowedTools": ["Bash", "Read"]}


@pytest.mark.requirement("ACP-1", "ACP-2", "ACP-3", "ACP-5", "ACP-6", "ACPX-1")
@each_row("fields", [
    {"name": "a" * 64, "description": "x" * 1024, "compatibility": "x" * 500}, {"license": "", "allowed-tools": ["a"]},
    {"description": "\u200b" + "x" * 1023, "allowed-tools": "Bash(a b) Read", "metadata": {"a": "b"}, "hooks": {}},
])  # fmt: skip
def test_valid_skill_is_a_valid_available_skill(fields: dict[str, Any]) -> None:
    one = skill(fields.get("name", "a"), **fields)
    assert standing(check(Document(one.frontmatter, {}, "Do it.", 1, ()), one.path)) is Standing.VALID
    (sent,) = acp.available(snapshot(one)).skills
    AVAILABLE_SKILL.validate(sent)
    invalid: list[dict[str, Any]] = [{"name": "a--b"}, {"license": 1}, {"compatibility": ""}, {"allowed-tools": 1}]
    for change in (*invalid, {"metadata": []}, {"description": "x" * 1025}):
        frontmatter = {"name": "a", "description": "Does a.", **change}
        assert standing(check(Document(frontmatter, {}, "Do it.", 1, ()), "a")) is Standing.LENIENT


@pytest.mark.requirement("ACP-1", "ACP-2", "ACP-3", "ACP-5", "ACPX-14")
def test_duplicate_name_is_sent_from_the_earlier_root() -> None:
    first = replace(skill("z/same"), root=0)
    later = replace(skill("a/same"), root=1)
    unseen, weak = skill("unseen", description="\u200b"), skill("weak", standing=Standing.LENIENT)
    found = acp.available(snapshot(later, first, weak, unseen))
    assert [each["name"] for each in found.skills] == ["same"]
    assert [path for path, _ in found.left_out] == ["unseen", "a/same"]
    assert "z/same" in dict(found.left_out)["a/same"]


COMMAND = {"name": "create_plan", "description": "Creates a plan."}


def messages_for(forms: UpdateForms, theirs: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the messages that list the draft's two example skills, after the agent's updates `theirs`."""
    served = snapshot(
        skill("code-review", description="Performs automated code review on staged changes..."),
        skill(
            "test-generator",
            description="Generates unit tests for the specified code...",
            allowed_tools="Bash Read Write",
        ),
    )
    updates = acp.notifications("sess_abc123", acp.available(served).skills, forms, theirs or {})
    return [json.loads(acp.message(method, params)) for method, params in updates]


@pytest.mark.requirement("ACP-8", "ACP-9", "ACP-10", "X-32")
def test_nested_update_is_the_example_of_the_draft() -> None:
    nested = golden("nested")
    assert nested["params"]["update"]["availableSkills"] == golden("flat-example")["params"]["availableSkills"]
    assert messages_for(UpdateForms(nested=True)) == [nested]


@pytest.mark.requirement("X-31", "ACPX-1", "ACPX-2", "ACP-17")
def test_client_without_the_draft_gets_commands_with_meta_and_the_extension() -> None:
    theirs = {acp.COMMANDS_UPDATE: {"sessionUpdate": acp.COMMANDS_UPDATE, "availableCommands": [COMMAND]}}
    assert messages_for(UpdateForms(), theirs) == [golden("commands")]
    assert messages_for(UpdateForms(extension=True), theirs) == [golden("commands"), golden("extension")]
    assert messages_for(UpdateForms())[0]["params"]["update"]["availableCommands"] == []
    assert golden("extension")["method"].startswith("_")


@pytest.mark.requirement("ACPX-4", "ACP-13", "X-31", "X-32")
@each_row(("version", "capabilities", "expected"), [
    (1, None, UpdateForms()), (1, {"_meta": {acp.META_KEY: True}}, UpdateForms()), (2, {}, UpdateForms(nested=True)),
    (1, {"fs": {}, "_meta": {acp.META_KEY: {acp.NESTED: {}}}}, UpdateForms(nested=True)),
    (1, {"_meta": {acp.META_KEY: {acp.NESTED: False, acp.NOTIFICATION: True}}}, UpdateForms(extension=True)),
    (1, {"_meta": acp.capability()}, UpdateForms(nested=True, extension=True)),
])  # fmt: skip
def test_accepted_forms_follow_version_and_capabilities(
    version: int, capabilities: object, expected: UpdateForms
) -> None:
    assert acp.accepted_forms(version, capabilities) == expected


@pytest.mark.requirement("ACPX-4")
@each_row(("version", "capabilities", "starts"), [
    (1, {}, True), (2, {}, False), (2, {"session": {"mcp": {"stdio": {}}}}, True),
    (2, {"mcp": {"stdio": True}}, True), (2, {"mcp": {"stdio": False}}, False),
])  # fmt: skip
def test_agent_starts_servers_in_version_1_or_with_the_capability(
    version: int, capabilities: dict[str, Any], starts: bool
) -> None:
    assert acp.starts_servers(version, {"capabilities": capabilities}) is starts


def test_server_has_a_type_from_version_2_on() -> None:
    server = {"name": "n", "command": "/x", "args": ["y"], "env": []}
    assert acp.server("n", ["/x", "y"], 1) == server
    assert acp.server("n", ["/x", "y"], 2) == {**server, "type": "stdio"}


def test_agents_own_updates_are_merged_with_the_served_skills() -> None:
    own = {"name": "code-review", "description": "The agent's."}
    theirs = {
        acp.SKILLS_UPDATE: {"sessionUpdate": acp.SKILLS_UPDATE, "availableSkills": [own, 5], "_meta": {"k": 1}},
        acp.COMMANDS_UPDATE: {
            "availableCommands": [COMMAND],
            "_meta": {"availableSkills": ["code-review"], acp.DETAILS: [own], "other": 2},
        },
        acp.EXTENSION_METHOD: {"availableSkills": [own]},
    }
    nested, extension = messages_for(UpdateForms(nested=True, extension=True), theirs)
    assert nested["params"]["update"]["_meta"] == {"k": 1}
    for skills in (nested["params"]["update"]["availableSkills"], extension["params"]["availableSkills"]):
        assert [each["description"][:10] for each in skills] == ["The agent'", "Generates "]
    update = messages_for(UpdateForms(), theirs)[0]["params"]["update"]
    assert update["availableCommands"] == [COMMAND]
    meta = update["_meta"]
    assert meta["other"] == 2
    assert meta["availableSkills"] == ["code-review", "test-generator"]
    assert meta[acp.DETAILS][0] == own and len(meta[acp.DETAILS]) == 2
    # A second proxy in front of the first one changes nothing.
    assert messages_for(UpdateForms(), {acp.COMMANDS_UPDATE: update})[0]["params"]["update"] == update


def test_message_keeps_a_lone_surrogate_and_refuses_infinity() -> None:
    line = acp.message("m", {"text": "\ud800 ü"})
    assert line.endswith(b"\n") and json.loads(line)["params"] == {"text": "\ud800 ü"}
    with pytest.raises(ValueError, match="JSON"):
        acp.message("m", {"x": float("inf")})


@pytest.mark.requirement("X-33", "ACPX-5")
def test_agent_updates_are_parsed_nested_and_flat() -> None:
    nested = {"method": "session/update", "params": {"sessionId": "s", "update": {"sessionUpdate": acp.SKILLS_UPDATE}}}
    flat = {"method": "session/update", "params": {"sessionId": "s", "sessionUpdate": acp.COMMANDS_UPDATE, "x": 1}}
    extension = {"method": acp.EXTENSION_METHOD, "params": {"sessionId": "s", "availableSkills": []}}
    other = {"method": "session/update", "params": {"sessionId": "s", "update": {"sessionUpdate": "_other"}}}
    without_session = {"method": "session/update", "params": {"update": {"sessionUpdate": acp.SKILLS_UPDATE}}}
    assert [acp.parse_update(each) for each in (nested, flat, extension, other, without_session, 5)] == [
        ("s", acp.SKILLS_UPDATE, {"sessionUpdate": acp.SKILLS_UPDATE}),
        ("s", acp.COMMANDS_UPDATE, {"sessionUpdate": acp.COMMANDS_UPDATE, "x": 1}),
        ("s", acp.EXTENSION_METHOD, {"availableSkills": []}), None, None, None,
    ]  # fmt: skip
