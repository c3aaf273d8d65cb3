"""The updates that carry skills to a client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dialects.build import skill, snapshot
from mcp_skills_server.dialects import acp
from mcp_skills_server.dialects.acp import Takes
from mcp_skills_server.model import Snapshot
from tables import each_row
from wire import ROOT

GOLDEN = ROOT / "tests" / "golden"
COMMAND = {"name": "create_plan", "description": "Creates a plan."}


def golden(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"acp.{name}.json").read_text(encoding="utf-8"))


def the_two() -> Snapshot:
    """The skills of the draft's example."""
    about = "Generates unit tests for the specified code..."
    return snapshot(
        skill("code-review", description="Performs automated code review on staged changes..."),
        skill("test-generator", description=about, allowed_tools="Bash Read Write"),
    )


def told(takes: Takes, theirs: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    skills = acp.available(the_two()).skills
    return [
        json.loads(acp.message(method, params))
        for method, params in acp.notifications("sess_abc123", skills, takes, theirs or {})
    ]


@pytest.mark.requirement("ACP-8", "ACP-9", "ACP-10", "X-32")
def test_the_example_of_the_draft_is_sent_nested() -> None:
    nested = golden("nested")
    assert nested["params"]["update"]["availableSkills"] == golden("flat-example")["params"]["availableSkills"]
    assert told(Takes(nested=True)) == [nested]


@pytest.mark.requirement("X-31", "ACPX-1", "ACPX-2", "ACP-17")
def test_who_does_not_know_the_draft_gets_commands_with_meta_and_what_it_asked_for() -> None:
    theirs = {acp.COMMANDS_UPDATE: {"sessionUpdate": acp.COMMANDS_UPDATE, "availableCommands": [COMMAND]}}
    assert told(Takes(), theirs) == [golden("commands")]
    assert told(Takes(extension=True), theirs) == [golden("commands"), golden("extension")]
    assert told(Takes())[0]["params"]["update"]["availableCommands"] == []
    assert golden("extension")["method"].startswith("_")


@pytest.mark.requirement("ACPX-4", "ACP-13", "X-31", "X-32")
@each_row(
    ("version", "capabilities", "expected"),
    [
        (1, None, Takes()),
        (1, {"_meta": None}, Takes()),
        (1, {"_meta": {acp.OURS: True}}, Takes()),
        (1, {"fs": {}, "_meta": {acp.OURS: {acp.NESTED: {}}}}, Takes(nested=True)),
        (1, {"_meta": {acp.OURS: {acp.NESTED: False, acp.NOTIFICATION: True}}}, Takes(extension=True)),
        (2, {}, Takes(nested=True)),
        (1, {"_meta": acp.capability()}, Takes(nested=True, extension=True)),
    ],
)
def test_what_a_client_takes(version: int, capabilities: object, expected: Takes) -> None:
    assert acp.takes(version, capabilities) == expected


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
    nested, extension = told(Takes(nested=True, extension=True), theirs)
    assert nested["params"]["update"]["_meta"] == {"k": 1}
    for skills in (nested["params"]["update"]["availableSkills"], extension["params"]["availableSkills"]):
        assert [each["description"][:10] for each in skills] == ["The agent'", "Generates "]
    update = told(Takes(), theirs)[0]["params"]["update"]
    assert update["availableCommands"] == [COMMAND] and update["_meta"]["other"] == 2
    assert update["_meta"]["availableSkills"] == ["code-review", "test-generator"]
    assert update["_meta"][acp.DETAILS][0] == own and len(update["_meta"][acp.DETAILS]) == 2
    again = {acp.COMMANDS_UPDATE: update}
    assert told(Takes(), again)[0]["params"]["update"] == update  # two proxies, one behind the other


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
    assert acp.updated([nested, flat, extension, other, nobody, 5]) == [
        ("s", acp.SKILLS_UPDATE, {"sessionUpdate": acp.SKILLS_UPDATE}),
        ("s", acp.COMMANDS_UPDATE, {"sessionUpdate": acp.COMMANDS_UPDATE, "x": 1}),
        ("s", acp.EXTENSION_METHOD, {"availableSkills": []}),
    ]
