"""Notifications of file changes over stdio."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dispatching import dispatching
from mcp_skills_server.runtime.runtime import RuntimeSettings
from tables import each_row
from web.http_wire import HELLO
from wire import META, SCHEMAS, Era, NotifiedClient, WireError, write_skill

SKILLS = "notifications/skills/list_changed"
RESOURCES = "notifications/resources/list_changed"
UPDATED = "notifications/resources/updated"
TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"
ALL_LISTS_ONCE = dict.fromkeys(((each, None) for each in (SKILLS, RESOURCES, TOOLS, PROMPTS)), 1)
FILTER_KEYS = ("skillsListChanged", "resourcesListChanged", "toolsListChanged", "promptsListChanged")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        write_skill(tmp_path / name, references__guide_md="guide", zz_md="last")
    return tmp_path


def subscribe(wire: NotifiedClient, *uris: str) -> None:
    wire.every_skill()
    if wire.era == "modern":
        wire.listen(**dict.fromkeys(FILTER_KEYS, True), resourceSubscriptions=list(uris))
    else:
        for uri in uris:
            wire.request("resources/subscribe", {"uri": uri})


def counts(wire: NotifiedClient, received: list[dict]) -> Counter[tuple[str, str | None]]:
    every = received + wire.pending()
    return Counter((each["method"], each.get("params", {}).get("uri")) for each in every)


@pytest.mark.requirement("S76-13", "MCP-35", "MCP-36", "MCP-39", "X-12")
def test_each_edit_is_notified_once_for_the_lists_that_it_changes(folder: Path, era: Era) -> None:
    guide, manifest = "skill://a/references/guide.md", "skill://a/SKILL.md"
    with dispatching(folder, watch=True, era=era) as wire:
        subscribe(wire, manifest, "skill://b/SKILL.md", guide)
        write_skill(folder / "a", description="Does something else when it is asked to.")
        received = wire.until(UPDATED) + wire.pending()
        (notification,) = (each for each in received if each["method"] == SKILLS)
        schema = json.loads((SCHEMAS / "sep-2076.schema.json").read_text())
        jsonschema.validate(notification, {**schema, "$ref": "#/$defs/SkillListChangedNotification"})
        assert counts(wire, received) == {**ALL_LISTS_ONCE, (UPDATED, manifest): 1}
        (folder / "a" / "references" / "guide.md").write_text("other")
        assert counts(wire, wire.until(UPDATED)) == {(SKILLS, None): 1, (UPDATED, guide): 1}
        write_skill(folder / "b", body="# Thing\n\nOther text.\n")  # not in lists of tools or prompts
        received = wire.until(UPDATED)
        updated = (UPDATED, "skill://b/SKILL.md")
        assert counts(wire, received).keys() <= {(SKILLS, None), (RESOURCES, None), updated}
        write_skill(folder / "deep" / "er" / "c")
        assert counts(wire, wire.until(RESOURCES)) == ALL_LISTS_ONCE
        assert len(wire.every_skill()) == 3
        shutil.rmtree(folder / "a")
        assert counts(wire, wire.until(UPDATED, manifest))[(UPDATED, manifest)] == 1
        assert [skill["name"] for skill in wire.every_skill()] == ["b", "c"]


@pytest.mark.requirement("MCP-34", "MCP-36")
def test_modern_client_gets_only_the_notifications_of_its_open_streams(folder: Path) -> None:
    with dispatching(folder, watch=True, era="modern") as wire:
        wire.every_skill()
        cancelled = wire.listen(skillsListChanged=True)
        wire.notify("notifications/cancelled", {"requestId": cancelled})
        wire.request("skills/list")
        streams = {wire.listen(resourceSubscriptions=["skill://b/zz.md"]) for _ in range(2)}
        write_skill(folder / "a", description="Another one, used at times.")
        (folder / "b" / "zz.md").write_text("other")
        received = [wire.notification() for _ in streams]
        for each in received:
            assert (each["method"], each["params"]["uri"]) == (UPDATED, "skill://b/zz.md")
        assert {each["params"]["_meta"][META + "subscriptionId"] for each in received} == streams
        assert wire.pending() == []


@pytest.mark.requirement("MCP-35")
@each_row(("options", "accepted"), [
    ({}, FILTER_KEYS), ({"tools": False, "prompts": False}, ("skillsListChanged", "resourcesListChanged")),
])  # fmt: skip
def test_acknowledgement_has_the_accepted_part_of_the_filter(
    folder: Path, options: dict[str, Any], accepted: tuple[str, ...]
) -> None:
    requested = dict.fromkeys((*FILTER_KEYS, "unknown"), True)
    with dispatching(folder, watch=True, era="modern", **options) as wire:
        wire.start("subscriptions/listen", {"notifications": requested})
        assert wire.notification()["params"]["notifications"] == dict.fromkeys(accepted, True)


def test_legacy_subscription_takes_any_spelling_of_the_uri_after_the_handshake(folder: Path) -> None:
    with dispatching(folder, watch=True, opened=False) as wire:
        wire.request("initialize", HELLO)
        with pytest.raises(WireError, match=r"^-32002: "):
            wire.request("resources/subscribe", {"uri": "skill://a/none.md"})
        subscribe(wire, "skill://b/%7A%7A.md")
        assert wire.pending() == []
        wire.notify("notifications/initialized")
        (folder / "b" / "zz.md").write_text("other")
        wire.until(UPDATED, "skill://b/zz.md")
        (folder / "b" / "zz.md").unlink()
        wire.until(UPDATED, "skill://b/zz.md")
        wire.request("resources/unsubscribe", {"uri": "skill://b/zz%2Emd"})
        (folder / "b" / "zz.md").write_text("another")
        (folder / "a" / "zz.md").write_text("other")
        wire.until(SKILLS)
        assert UPDATED not in [each["method"] for each in wire.pending()]


@pytest.mark.requirement("S40-33")
@each_row(("dialect", "methods"), [("sep-2076", {SKILLS, RESOURCES}), ("sep-2640", {RESOURCES})])
def test_dialect_has_its_own_notifications(folder: Path, era: Era, dialect: str, methods: set[str]) -> None:
    with dispatching(folder, watch=True, dialect=dialect, era=era) as wire:
        subscribe(wire)
        write_skill(folder / f"for-{dialect}")
        notified = {method for method, _ in counts(wire, wire.until(RESOURCES))}
        assert notified == {*methods, TOOLS, PROMPTS}


def test_tools_are_announced_only_if_their_texts_change(tmp_path: Path) -> None:
    """A short catalogue has some names without descriptions."""
    for number in range(40):
        write_skill(tmp_path / f"skill-{number}", description="Makes tea.")
    counts: list[int] = []
    with dispatching(tmp_path, watch=True, runtime=RuntimeSettings(overview_characters=500)) as wire:
        shown = wire.request("tools/list")
        for name, description in (("skill-39", "Tea 1."), ("skill-39", "Tea 2."), ("skill-40", "Coffee.")):
            write_skill(tmp_path / name, description=description)
            received = wire.until(SKILLS) + wire.pending()
            counts.append(sum(each["method"] == "notifications/tools/list_changed" for each in received))
        # The first change cannot be compared, and the last one adds a name.
        assert counts == [1, 0, 1]
        assert wire.request("tools/list") != shown
