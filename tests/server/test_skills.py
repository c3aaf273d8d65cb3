"""`skills/list` and `skills/get` in both eras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dispatching import Direct, dispatching
from tables import each_row
from wire import Era, WireError, write_skill


@pytest.mark.requirement("MCP-21", "MCP-22")
@each_row("method", [
    "skills/list", "resources/list", "resources/templates/list", "tools/list", "prompts/list",
])  # fmt: skip
@each_row("cursor", ["", "x", "!!!!", "W10", "5", "é", "bnVsbA", "WyJvdGhlciIsImEiXQ", "A" * 20_000])
def test_invalid_cursor_is_refused(direct: Direct, method: str, cursor: str) -> None:
    with pytest.raises(WireError, match=r"^-32602: .*cursor"):
        direct.request(method, {"cursor": cursor})


@pytest.mark.requirement("S40-24", "S40C-5", "S76-8", "X-8")
# `named` is a part of the error's message.
@each_row(("params", "named"), [
    ({}, "name"), ({"name": None}, "name"), ({"name": 5}, "name"), ({"uri": ["x"]}, "uri"), ({"name": ""}, "''"),
    ({"name": "../commit-messages"}, "../commit-messages"), ({"name": "meeting-notes"}, "topic"),
    ({"name": "meeting-notes", "arguments": {"topic": 5}}, "topic"),
    ({"name": "meeting-notes", "arguments": {"topic": "x", "colour": "red"}}, "colour"),
    ({"name": "commit-messages", "arguments": {"x": "y"}}, "x"),
    ({"name": "commit-messages", "arguments": ["x"]}, "arguments"), ({"uri": "skill://none/SKILL.md"}, "skill://none"),
    ({"uri": "skill://commit-messages"}, "skill://commit-messages"), ({"uri": "", "name": "commit-messages"}, "URI"),
])  # fmt: skip
def test_get_names_the_invalid_param(direct: Direct, params: dict[str, Any], named: str) -> None:
    with pytest.raises(WireError) as caught:
        direct.request("skills/get", params)
    assert caught.value.code == -32602
    assert named in caught.value.message


@pytest.mark.requirement("S40-2", "S40-23", "S40-25", "S40-26", "X-8")
def test_get_by_uri_returns_the_entry_of_the_list(direct: Direct) -> None:
    for skill in direct.every_skill():
        result = direct.request("skills/get", {"uri": skill["uri"]})
        assert result["skill"] == skill
        assert "nextCursor" not in result


@pytest.mark.requirement("S76-12")
def test_get_by_name_names_every_other_file_by_a_readable_uri(direct: Direct) -> None:
    for skill in direct.every_skill():
        given = {each["name"]: "x" for each in skill.get("arguments", ())}
        files = direct.request("skills/get", {"name": skill["name"], "arguments": given})["files"]
        served = {each["uri"]: each["size"] for each in skill["resources"] if each["uri"] != skill["uri"]}
        assert {each["uri"]: len(direct.read(each["uri"])) for each in files} == served


@pytest.mark.requirement("S40-5", "S40-7", "X-2")
def test_invalid_skill_is_served_only_in_sep_2076(tmp_path: Path, era: Era) -> None:
    write_skill(tmp_path / "good")
    write_skill(tmp_path / "Shouting", name="Shouting")
    (write_skill(tmp_path / "torn") / "SKILL.md").write_text("---\nname: [\n---\n")
    for dialect, names in (("auto", ["good"]), ("sep-2640", ["good"]), ("sep-2076", ["Shouting", "good"])):
        with dispatching(tmp_path, era=era, dialect=dialect) as wire:
            skills = wire.every_skill()
            assert [each.get("name") or each["frontmatter"]["name"] for each in skills] == names
            uri = "skill://Shouting/SKILL.md"
            if dialect == "sep-2076":
                assert wire.read(uri)
                assert wire.request("skills/get", {"name": "Shouting"})["instructions"]
            else:
                with pytest.raises(WireError):
                    wire.read(uri)
