"""`skills/list` and `skills/get`, asked over real stdio in both eras."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tables import each_row
from wire import FIXTURES, Era, Wire, WireError, read, serving, write_skill

INVALID_PARAMS = -32602


# skills/list


@pytest.mark.requirement("S76-4", "S76-19", "S40-12", "S40-15", "S40-20", "X-10", "X-11")
def test_a_client_that_declares_nothing_gets_the_union(wire: Wire) -> None:
    skills = {skill["uri"]: skill for skill in wire.every_skill()}
    refunds = skills["skill://acme/billing/refunds/SKILL.md"]
    assert refunds["name"] == refunds["frontmatter"]["name"] == "refunds"
    assert refunds["version"] == refunds["frontmatter"]["metadata"]["version"]
    assert next(each["uri"] for each in refunds["resources"]) == refunds["uri"]
    assert len(skills) == len(list(FIXTURES.rglob("SKILL.md")))


@pytest.mark.requirement("X-9", "S40-12")
def test_a_client_that_declares_the_extension_gets_pure_entries(era: Era) -> None:
    with serving(FIXTURES, era=era, extension=True) as wire:
        for skill in wire.every_skill():
            assert skill.keys() == {"uri", "frontmatter", "resources"}


@pytest.mark.requirement("S40-13", "S40-14", "S40-16", "S40-17", "S40-18", "S76-12", "X-3")
def test_every_listed_byte_can_be_read_back_and_proves(wire: Wire) -> None:
    seen = 0
    for skill in wire.every_skill():
        directory = skill["uri"].removesuffix("SKILL.md")
        assert directory.rstrip("/").rpartition("/")[2] == skill["frontmatter"]["name"]
        uris = [each["uri"] for each in skill["resources"]]
        assert len(set(uris)) == len(uris) and skill["uri"] in uris
        for each in skill["resources"]:
            assert each["uri"].startswith(directory)
            raw = read(wire, each["uri"])
            assert len(raw) == each["size"]
            assert "sha256:" + hashlib.sha256(raw).hexdigest() == each["digest"]
            seen += 1
    assert seen > 100


@pytest.mark.requirement("S40-16")
def test_a_nested_skill_is_listed_flat_and_among_the_outer_skills_files(wire: Wire) -> None:
    skills = {skill["uri"]: skill for skill in wire.every_skill()}
    inner = skills["skill://release-checklist/changelog-entry/SKILL.md"]
    outer = skills["skill://release-checklist/SKILL.md"]
    assert {tuple(each.items()) for each in inner["resources"]} < {tuple(each.items()) for each in outer["resources"]}


@pytest.mark.requirement("S76-5", "S40-22")
def test_pages_hold_every_skill_once_in_a_lasting_order(era: Era) -> None:
    with serving(FIXTURES, "--page-size", "3", era=era) as wire:
        first = [skill["uri"] for skill in wire.every_skill()]
        assert len(first) == len(set(first)) == len(list(FIXTURES.rglob("SKILL.md")))
        assert first == [skill["uri"] for skill in wire.every_skill()]
        assert len(wire.request("skills/list")["skills"]) == 3


def test_a_cursor_outlives_a_change_of_the_catalogue(tmp_path: Path, era: Era) -> None:
    for name in ("a", "b", "c", "d", "e"):
        write_skill(tmp_path / name)
    with serving(tmp_path, "--page-size", "2", era=era) as wire:
        if era == "modern":
            wire.listen(skillsListChanged=True)
        first = wire.request("skills/list")
        write_skill(tmp_path / "aa")
        (tmp_path / "b" / "SKILL.md").unlink()
        wire.until("notifications/skills/list_changed")
        second = wire.request("skills/list", {"cursor": first["nextCursor"]})
        assert [skill["name"] for skill in first["skills"] + second["skills"]] == ["a", "b", "c", "d"]


@pytest.mark.requirement("MCP-21")
@each_row("method", ["skills/list", "resources/list", "resources/templates/list"])
@each_row("cursor", ["", "x", "!!!!", "W10", "5", "é", "bnVsbA", "WyJvdGhlciIsImEiXQ", "A" * 20_000])
def test_a_cursor_that_is_none_is_refused_and_named(wire: Wire, method: str, cursor: str) -> None:
    with pytest.raises(WireError) as caught:
        wire.request(method, {"cursor": cursor})
    assert caught.value.code == INVALID_PARAMS
    assert "cursor" in caught.value.message


@each_row("cursor", [5, None, [], {}, True])
def test_a_cursor_of_a_wrong_type_is_refused(wire: Wire, cursor: Any) -> None:
    if cursor is None:
        assert wire.request("skills/list", {"cursor": None})["skills"]
        return
    with pytest.raises(WireError) as caught:
        wire.request("skills/list", {"cursor": cursor})
    assert caught.value.code == INVALID_PARAMS


# skills/get


@pytest.mark.requirement("S76-6", "S76-7", "S76-19")
def test_get_by_name_answers_instructions_without_frontmatter(wire: Wire) -> None:
    result = wire.request("skills/get", {"name": "commit-messages"})
    assert result["instructions"].startswith("# ")
    assert "description" in result and result["files"] == []


@pytest.mark.requirement("S76-7")
@each_row("name", ["windows-paths", "text-encodings", "polite-greetings"])
def test_instructions_are_utf8_with_lf_whatever_the_file_has(wire: Wire, name: str) -> None:
    text = wire.request("skills/get", {"name": name})["instructions"]
    assert "\r" not in text and not text.startswith("\ufeff")
    raw = read(wire, f"skill://{name}/SKILL.md")
    assert raw == (FIXTURES / name / "SKILL.md").read_bytes()


def test_arguments_are_filled_in_and_others_left_alone(wire: Wire) -> None:
    given = {"topic": "{{audience}} $1", "audience": "all"}
    text = wire.request("skills/get", {"name": "meeting-notes", "arguments": given})["instructions"]
    assert "**{{audience}} $1** for all" in text
    assert "{{topic}}" not in text and "{{deadline}}" not in text


@pytest.mark.requirement("S76-8")
@each_row(
    ("params", "named"),
    [
        ({}, "name"),
        ({"name": None}, "name"),
        ({"name": 5}, "name"),
        ({"uri": ["x"]}, "uri"),
        ({"name": "no-such-skill"}, "no-such-skill"),
        ({"name": ""}, "''"),
        ({"name": "../commit-messages"}, "../commit-messages"),
        ({"name": "meeting-notes"}, "topic"),
        ({"name": "meeting-notes", "arguments": {}}, "topic"),
        ({"name": "meeting-notes", "arguments": {"topic": 5}}, "topic"),
        ({"name": "meeting-notes", "arguments": {"topic": "x", "colour": "red"}}, "colour"),
        ({"name": "commit-messages", "arguments": {"x": "y"}}, "x"),
        ({"name": "commit-messages", "arguments": ["x"]}, "arguments"),
    ],
)
def test_get_refuses_and_names_what_was_wrong(wire: Wire, params: dict[str, Any], named: str) -> None:
    with pytest.raises(WireError) as caught:
        wire.request("skills/get", params)
    assert caught.value.code == INVALID_PARAMS
    assert named in caught.value.message


@pytest.mark.requirement("S40-23", "S40-25", "S40-26", "X-8")
def test_get_by_uri_answers_the_very_entry_of_the_listing(wire: Wire) -> None:
    for skill in wire.every_skill():
        result = wire.request("skills/get", {"uri": skill["uri"]})
        assert result["skill"] == skill
        assert "nextCursor" not in result


@pytest.mark.requirement("X-8")
def test_with_uri_and_name_the_uri_counts(wire: Wire) -> None:
    result = wire.request("skills/get", {"uri": "skill://csv-profiling/SKILL.md", "name": "commit-messages"})
    assert result["skill"]["frontmatter"]["name"] == "csv-profiling"


@pytest.mark.requirement("S40-24", "S40C-5")
@each_row(
    "uri",
    [
        "skill://nothing/SKILL.md",
        "skill://csv-profiling",
        "skill://csv-profiling/",
        "skill://csv-profiling/scripts/profile_csv.py",
        "skill://csv-profiling/scripts",
        "skill://acme/billing",
        "skill://",
        "file:///etc/passwd",
        "",
    ],
)
def test_get_knows_no_other_uri(wire: Wire, uri: str) -> None:
    with pytest.raises(WireError) as caught:
        wire.request("skills/get", {"uri": uri})
    assert caught.value.code == INVALID_PARAMS


def test_a_shared_name_is_refused_and_the_paths_are_told(tmp_path: Path, era: Era) -> None:
    for path in ("one/refunds", "two/refunds"):
        write_skill(tmp_path / path, body=f"# {path}\n")
    with serving(tmp_path, era=era) as wire:
        assert [skill["name"] for skill in wire.every_skill()] == ["one/refunds", "two/refunds"]
        assert wire.request("skills/get", {"name": "two/refunds"})["instructions"] == "# two/refunds"
        with pytest.raises(WireError, match=r"one/refunds, two/refunds") as caught:
            wire.request("skills/get", {"name": "refunds"})
        assert caught.value.code == INVALID_PARAMS


@pytest.mark.requirement("S76-9", "S76-10", "S76-11")
def test_dependencies_name_only_what_this_server_serves(tmp_path: Path, era: Era) -> None:
    skill = write_skill(tmp_path / "needy")
    dependencies = {
        "tools": ["read_pdf"],
        "prompts": [{"type": "ref/prompt", "name": "greet"}],
        "resources": [
            {"type": "ref/resource", "uri": "skill://needy/SKILL.md"},
            {"type": "ref/resource", "uri": "skill://needy/none.md"},
        ],
    }
    text = (
        f"---\nname: needy\ndescription: Needs what others have.\ndependencies: {json.dumps(dependencies)}\n---\n# N\n"
    )
    (skill / "SKILL.md").write_text(text)
    with serving(tmp_path, era=era) as wire:
        kept = {"resources": [{"type": "ref/resource", "uri": "skill://needy/SKILL.md"}]}
        assert wire.every_skill()[0]["dependencies"] == kept
        assert wire.request("skills/get", {"name": "needy"})["dependencies"] == kept
        for each in kept["resources"]:
            assert read(wire, each["uri"])


# Broken skills


@pytest.mark.requirement("S40-5", "S40-7", "X-2")
def test_a_skill_that_breaks_the_rules_is_kept_off_but_for_sep_2076(tmp_path: Path, era: Era) -> None:
    write_skill(tmp_path / "good")
    write_skill(tmp_path / "Shouting", name="Shouting")
    (write_skill(tmp_path / "torn") / "SKILL.md").write_text("---\nname: [\n---\n")
    for dialect, names in (("auto", ["good"]), ("sep-2640", ["good"]), ("sep-2076", ["Shouting", "good"])):
        with serving(tmp_path, "--dialect", dialect, era=era) as wire:
            listed = [skill.get("name") or skill["frontmatter"]["name"] for skill in wire.every_skill()]
            assert listed == names
            wanted = "skill://Shouting/SKILL.md"
            if dialect == "sep-2076":
                assert read(wire, wanted)
                assert wire.request("skills/get", {"name": "Shouting"})["instructions"]
            else:
                with pytest.raises(WireError):
                    read(wire, wanted)
            assert b"torn" in wire.stderr or wire.request("skills/list")
