"""Who is told what, and how often, when the folder changes. Over real stdio."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import jsonschema
import pytest

from conversations import HANDSHAKE
from tables import each_row
from wire import META, SCHEMAS, Era, Wire, WireError, serving, write_skill

SKILLS = "notifications/skills/list_changed"
RESOURCES = "notifications/resources/list_changed"
UPDATED = "notifications/resources/updated"
TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"
ALL_LISTS = dict.fromkeys(((each, None) for each in (SKILLS, RESOURCES, TOOLS, PROMPTS)), 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two skills, settled."""
    for name in ("a", "b"):
        write_skill(tmp_path / name, references__guide_md="guide", zz_md="last")
    return tmp_path


def follow(wire: Wire, *uris: str) -> None:
    """Ask to be told of everything, as the era does."""
    wire.every_skill()
    if wire.era == "modern":
        everything = dict.fromkeys(
            ("skillsListChanged", "resourcesListChanged", "toolsListChanged", "promptsListChanged"), True
        )
        wire.listen(**everything, resourceSubscriptions=list(uris))
    else:
        for uri in uris:
            wire.request("resources/subscribe", {"uri": uri})


def counted(wire: Wire, seen: list[dict]) -> Counter[tuple[str, str | None]]:
    """How often each thing was told: what was seen and what is pending."""
    return Counter((each["method"], each.get("params", {}).get("uri")) for each in seen + wire.pending())


@pytest.mark.requirement("S76-13", "MCP-35", "MCP-36", "MCP-39", "X-12")
def test_an_edit_is_told_once_of_each_kind(folder: Path, era: Era) -> None:
    with serving(folder, era=era) as wire:
        follow(wire, "skill://a/SKILL.md", "skill://b/SKILL.md", "skill://a/references/guide.md")
        write_skill(folder / "a", description="Does something else when it is asked to.")
        seen = wire.until(UPDATED) + wire.pending()
        (told,) = (each for each in seen if each["method"] == SKILLS)
        schema = json.loads((SCHEMAS / "sep-2076.schema.json").read_text())
        jsonschema.validate(told, {**schema, "$ref": "#/$defs/SkillListChangedNotification"})
        assert counted(wire, seen) == {**ALL_LISTS, (UPDATED, "skill://a/SKILL.md"): 1}


def test_a_supporting_file_changes_the_skill_but_not_the_list_of_resources(folder: Path, era: Era) -> None:
    with serving(folder, era=era) as wire:
        follow(wire, "skill://a/references/guide.md")
        (folder / "a" / "references" / "guide.md").write_text("other")
        seen = wire.until(UPDATED)
        assert counted(wire, seen) == {(SKILLS, None): 1, (UPDATED, "skill://a/references/guide.md"): 1}


def test_a_skill_that_comes_or_goes_is_told(folder: Path, era: Era) -> None:
    with serving(folder, era=era) as wire:
        follow(wire, "skill://a/SKILL.md")
        write_skill(folder / "deep" / "er" / "c")
        assert counted(wire, wire.until(RESOURCES)) == ALL_LISTS
        assert len(wire.every_skill()) == 3
        shutil.rmtree(folder / "a")
        reported = counted(wire, wire.until(UPDATED))
        assert reported[(UPDATED, "skill://a/SKILL.md")] == 1
        assert [skill["name"] for skill in wire.every_skill()] == ["b", "c"]


@pytest.mark.requirement("MCP-34")
def test_a_modern_client_hears_only_what_its_open_streams_ask_for(folder: Path) -> None:
    with serving(folder, era="modern") as wire:
        wire.every_skill()
        closed = wire.listen(skillsListChanged=True)
        wire.notify("notifications/cancelled", {"requestId": closed})
        wire.request("skills/list")
        later = wire.listen(resourceSubscriptions=["skill://b/zz.md"])
        write_skill(folder / "a", description="Another one, used at times.")
        (folder / "b" / "zz.md").write_text("other")
        (told,) = wire.until(UPDATED)
        assert told["params"]["uri"] == "skill://b/zz.md"
        assert told["params"]["_meta"][META + "subscriptionId"] == later
        assert wire.pending() == []


@pytest.mark.requirement("MCP-35")
@each_row(
    ("options", "honoured"),
    [
        ([], ["skillsListChanged", "promptsListChanged", "toolsListChanged"]),
        (["--no-tools", "--no-prompts"], ["skillsListChanged"]),
    ],
)
def test_the_acknowledgement_names_what_is_honoured(folder: Path, options: list[str], honoured: list[str]) -> None:
    wanted = ("skillsListChanged", "promptsListChanged", "toolsListChanged", "other")
    with serving(folder, *options, era="modern") as wire:
        wire.start("subscriptions/listen", {"notifications": dict.fromkeys(wanted, True)})
        assert wire.notification()["params"]["notifications"] == dict.fromkeys(honoured, True)


def test_an_edit_that_no_model_and_no_user_sees_leaves_tools_and_prompts_alone(folder: Path, era: Era) -> None:
    with serving(folder, era=era) as wire:
        follow(wire)
        write_skill(folder / "a", body="# Thing\n\nSaid in another way.\n")
        assert counted(wire, wire.until(SKILLS)).keys() <= {(SKILLS, None), (RESOURCES, None)}


@pytest.mark.requirement("MCP-36")
def test_two_streams_are_told_apart_by_their_ids(folder: Path) -> None:
    with serving(folder, era="modern") as wire:
        wire.every_skill()
        streams = {wire.listen(skillsListChanged=True), wire.listen(skillsListChanged=True)}
        write_skill(folder / "c")
        reported = [wire.notification(), wire.notification()]
        assert {each["params"]["_meta"][META + "subscriptionId"] for each in reported} == streams


def test_a_legacy_client_watches_what_is_served_however_it_spells_it(folder: Path) -> None:
    with serving(folder) as wire:
        with pytest.raises(WireError) as caught:
            wire.request("resources/subscribe", {"uri": "skill://a/none.md"})
        assert caught.value.code == -32002
        follow(wire, "skill://b/%7A%7A.md")
        (folder / "b" / "zz.md").write_text("other")
        wire.until(UPDATED, "skill://b/zz.md")
        wire.request("resources/unsubscribe", {"uri": "skill://b/zz%2Emd"})
        (folder / "b" / "zz.md").write_text("another")
        (folder / "a" / "zz.md").write_text("other")
        wire.until(SKILLS)
        assert UPDATED not in [each["method"] for each in wire.pending()]


def test_a_legacy_client_hears_nothing_before_it_is_initialised(folder: Path) -> None:
    with serving(folder, opened=False) as wire:
        wire.request("initialize", HANDSHAKE)
        wire.every_skill()
        wire.request("resources/subscribe", {"uri": "skill://b/zz.md"})
        assert wire.pending() == []
        wire.notify("notifications/initialized")
        (folder / "b" / "zz.md").write_text("other")
        wire.until(UPDATED, "skill://b/zz.md")


@pytest.mark.requirement("S40-33")
@pytest.mark.parametrize(("dialect", "kinds"), [("sep-2076", {SKILLS, RESOURCES}), ("sep-2640", {RESOURCES})])
def test_a_pinned_dialect_has_its_own_words(folder: Path, era: Era, dialect: str, kinds: set[str]) -> None:
    with serving(folder, "--dialect", dialect, era=era) as wire:
        follow(wire)
        write_skill(folder / "c")
        reported = counted(wire, wire.until(RESOURCES))
        assert {method for method, _ in reported} == kinds | {TOOLS, PROMPTS}
        assert len(wire.every_skill()) == 3
