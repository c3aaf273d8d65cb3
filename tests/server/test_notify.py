"""Notifications of changes of the folder, over real stdio: to whom, of what, and how often."""

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
LISTS = ("skillsListChanged", "resourcesListChanged", "toolsListChanged", "promptsListChanged")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        write_skill(tmp_path / name, references__guide_md="guide", zz_md="last")
    return tmp_path


def follow(wire: Wire, *uris: str) -> None:
    """Ask to be told of everything, as the era does."""
    wire.every_skill()
    if wire.era == "modern":
        wire.listen(**dict.fromkeys(LISTS, True), resourceSubscriptions=list(uris))
    else:
        for uri in uris:
            wire.request("resources/subscribe", {"uri": uri})


def counted(wire: Wire, seen: list[dict]) -> Counter[tuple[str, str | None]]:
    """How often each thing was told: what was seen and what is pending."""
    return Counter((each["method"], each.get("params", {}).get("uri")) for each in seen + wire.pending())


@pytest.mark.requirement("S76-13", "MCP-35", "MCP-36", "MCP-39", "X-12")
def test_each_edit_is_told_once_and_only_to_the_lists_that_it_changes(folder: Path, era: Era) -> None:
    guide, manifest = "skill://a/references/guide.md", "skill://a/SKILL.md"
    with serving(folder, era=era) as wire:
        follow(wire, manifest, "skill://b/SKILL.md", guide)
        write_skill(folder / "a", description="Does something else when it is asked to.")
        seen = wire.until(UPDATED) + wire.pending()
        (told,) = (each for each in seen if each["method"] == SKILLS)
        schema = json.loads((SCHEMAS / "sep-2076.schema.json").read_text())
        jsonschema.validate(told, {**schema, "$ref": "#/$defs/SkillListChangedNotification"})
        assert counted(wire, seen) == {**ALL_LISTS, (UPDATED, manifest): 1}
        (folder / "a" / "references" / "guide.md").write_text("other")
        assert counted(wire, wire.until(UPDATED)) == {(SKILLS, None): 1, (UPDATED, guide): 1}
        write_skill(folder / "b", body="# Thing\n\nSaid in another way.\n")  # neither a model nor a user sees it
        seen = wire.until(UPDATED)
        assert counted(wire, seen).keys() <= {(SKILLS, None), (RESOURCES, None), (UPDATED, "skill://b/SKILL.md")}
        write_skill(folder / "deep" / "er" / "c")
        assert counted(wire, wire.until(RESOURCES)) == ALL_LISTS
        assert len(wire.every_skill()) == 3
        shutil.rmtree(folder / "a")
        assert counted(wire, wire.until(UPDATED, manifest))[(UPDATED, manifest)] == 1
        assert [skill["name"] for skill in wire.every_skill()] == ["b", "c"]


@pytest.mark.requirement("MCP-34", "MCP-36")
def test_a_modern_client_hears_only_what_its_open_streams_ask_for_with_their_ids(folder: Path) -> None:
    with serving(folder, era="modern") as wire:
        wire.every_skill()
        closed = wire.listen(skillsListChanged=True)
        wire.notify("notifications/cancelled", {"requestId": closed})
        wire.request("skills/list")
        streams = {wire.listen(resourceSubscriptions=["skill://b/zz.md"]) for _ in range(2)}
        write_skill(folder / "a", description="Another one, used at times.")
        (folder / "b" / "zz.md").write_text("other")
        reported = [wire.notification() for _ in streams]
        assert {(each["method"], each["params"]["uri"]) for each in reported} == {(UPDATED, "skill://b/zz.md")}
        assert {each["params"]["_meta"][META + "subscriptionId"] for each in reported} == streams
        assert wire.pending() == []


@pytest.mark.requirement("MCP-35")
@each_row(("options", "honoured"), [
    ([], ["skillsListChanged", "promptsListChanged", "toolsListChanged"]),
    (["--no-tools", "--no-prompts"], ["skillsListChanged"]),
])  # fmt: skip
def test_the_acknowledgement_names_what_is_honoured(folder: Path, options: list[str], honoured: list[str]) -> None:
    wanted = ("skillsListChanged", "promptsListChanged", "toolsListChanged", "other")
    with serving(folder, *options, era="modern") as wire:
        wire.start("subscriptions/listen", {"notifications": dict.fromkeys(wanted, True)})
        assert wire.notification()["params"]["notifications"] == dict.fromkeys(honoured, True)


def test_a_legacy_client_watches_what_is_served_however_it_spells_it_once_initialised(folder: Path) -> None:
    with serving(folder, opened=False) as wire:
        wire.request("initialize", HANDSHAKE)
        with pytest.raises(WireError) as caught:
            wire.request("resources/subscribe", {"uri": "skill://a/none.md"})
        assert caught.value.code == -32002
        follow(wire, "skill://b/%7A%7A.md")
        assert wire.pending() == []
        wire.notify("notifications/initialized")
        (folder / "b" / "zz.md").write_text("other")
        wire.until(UPDATED, "skill://b/zz.md")
        wire.request("resources/unsubscribe", {"uri": "skill://b/zz%2Emd"})
        (folder / "b" / "zz.md").write_text("another")
        (folder / "a" / "zz.md").write_text("other")
        wire.until(SKILLS)
        assert UPDATED not in [each["method"] for each in wire.pending()]


@pytest.mark.requirement("S40-33")
@each_row(("dialect", "kinds"), [("sep-2076", {SKILLS, RESOURCES}), ("sep-2640", {RESOURCES})])
def test_a_pinned_dialect_has_its_own_words(folder: Path, era: Era, dialect: str, kinds: set[str]) -> None:
    with serving(folder, "--dialect", dialect, era=era) as wire:
        follow(wire)
        write_skill(folder / f"for-{dialect}")
        assert {method for method, _ in counted(wire, wire.until(RESOURCES))} == kinds | {TOOLS, PROMPTS}
