"""The runtime tools through real clients over real stdio, in both eras."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcp_skills_server.telemetry.usage import Batch, Count, Tally, UsageStore, day_of
from tables import each_row
from wire import Era, Wire, WireError, serving, write_skill

TOOLS = "notifications/tools/list_changed"
NAMES = ["skills_list", "skills_search", "skills_load", "skills_unload", "skills_read"]


def said(result: dict[str, Any]) -> str:
    return "\n".join(each["text"] for each in result["content"] if each["type"] == "text")


def active(result: dict[str, Any]) -> list[str]:
    """Names of the skills that a receipt tells of."""
    assert not result.get("isError"), said(result)
    return [each["name"] for each in result["structuredContent"]["active_skills"]]


def bound(wire: Wire, result: dict[str, Any]) -> str | None:
    """The handle that later calls need in this era: a legacy connection remembers."""
    return result["structuredContent"]["session"] if wire.era == "modern" else None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two skills with files, and a third that breaks a rule."""
    write_skill(tmp_path / "alpha", body="# Alpha\n\nDo alpha.\n", references__guide_md="one\ntwo\nthree\n")
    write_skill(tmp_path / "beta", body="# Beta\n\nDo beta.\n", scripts__run_py="print('beta')\n")
    write_skill(tmp_path / "odd", name="Odd", body="# Odd\n\nDo odd.\n")
    return tmp_path


@pytest.fixture
def tools(folder: Path, era: Era) -> Iterator[Wire]:
    with serving(folder, era=era) as wire:
        yield wire


@pytest.mark.requirement(
    "ASG-20", "ASG-21", "ASG-27", "RT-2", "RT-3", "RT-4", "RT-5", "RT-10", "RT-11", "RT-13", "RT-14", "RT-15", "RT-16",
    "RT-17", "RT-22", "X-15", "X-30", "WK1-13",
)  # fmt: skip
def test_a_conversation_chooses_loads_uses_and_switches(tools: Wire) -> None:
    seen = tools.open()["instructions"]
    assert "MUST call skills_load" in seen and "<name>alpha</name>" in seen and "<name>Odd</name>" in seen
    assert tools.call("skills_read", path="SKILL.md")["isError"]
    loaded = tools.call("skills_load", names=["alpha"])
    assert active(loaded) == ["alpha"]
    receipt = loaded["structuredContent"]["active_skills"][0]
    assert receipt["location"] == "skill://alpha/SKILL.md" and receipt["root_dir"].endswith("/alpha")
    listed = {each["uri"]: each["digest"] for skill in tools.every_skill() for each in skill["resources"]}
    assert receipt["digest"] == listed[receipt["location"]]
    assert receipt["properties"]["name"] == "alpha" and "instructions" not in receipt
    assert "Do alpha." in said(loaded) and "references/guide.md" in said(loaded) and "three" not in said(loaded)
    handle = bound(tools, loaded)
    assert said(tools.call("skills_read", path="references/guide.md", session=handle)) == "one\ntwo\nthree\n"
    part = tools.call("skills_read", path="references/guide.md", start_line=2, max_lines=1, session=handle)
    assert part["content"][0]["text"] == "two\n"
    both = tools.call("skills_load", names=["beta"], mode="add", session=handle)
    assert active(both) == ["alpha", "beta"] and "Do beta." in said(both) and "Do alpha." not in said(both)
    assert "Do beta." in said(tools.call("skills_read", path="SKILL.md", session=handle))
    assert "Do alpha." in said(tools.call("skills_read", path="SKILL.md", skill="alpha", session=handle))
    switched = tools.call("skills_load", names=["skill://beta/SKILL.md"], session=handle)
    # A host may hold several conversations over one connection; each has to see the instructions.
    assert active(switched) == ["beta"] and "Do beta." in said(switched)
    refused = tools.call("skills_read", path="SKILL.md", skill="alpha", session=handle)
    assert refused["isError"] and "skills_load" in said(refused)
    assert active(tools.call("skills_unload", names=["beta", "none"], session=handle)) == []
    assert tools.call("skills_read", path="SKILL.md", session=handle)["isError"]


@pytest.mark.requirement("MCP-10", "MCP-11", "X-15")
def test_only_a_legacy_connection_remembers_and_a_handle_counts_in_both_eras(tools: Wire) -> None:
    handle = tools.call("skills_load", names=["alpha"])["structuredContent"]["session"]
    without = tools.call("skills_read", path="SKILL.md")
    assert bool(without.get("isError")) == (tools.era == "modern")
    assert "Do alpha." in said(tools.call("skills_read", path="SKILL.md", session=handle))
    other = tools.call("skills_read", path="SKILL.md", session="made-up")
    assert other["isError"] and "skills_load without a session to begin a new one" in said(other)


@pytest.mark.requirement("X-30", "RT-9")
@each_row(("name", "arguments", "words"), [
    ("skills_launch", {}, "skills_load"), ("skills_load", {}, "names"), ("skills_read", {"path": "x"}, "skills_load"),
    ("skills_load", {"names": ["alpha", "alhpa"]}, "alpha"),
    ("skills_load", {"names": ["alpha"], "session": 5}, "session"),
    ("skills_run_script", {"path": "scripts/run.py"}, "--allow-scripts"),
])  # fmt: skip
def test_a_model_s_error_is_a_result_but_for_a_tool_that_is_none_of_ours(
    tools: Wire, name: str, arguments: dict[str, Any], words: str
) -> None:
    result = tools.request("tools/call", {"name": name, "arguments": arguments})
    assert result["isError"] is True
    assert words in said(result) and "structuredContent" not in result and "Traceback" not in said(result)
    with pytest.raises(WireError, match=r"make_coffee.*skills_load") as caught:
        tools.call("make_coffee")
    assert caught.value.code == -32602


@pytest.mark.requirement("RT-8")
def test_the_operator_s_bounds_and_choices_hold(folder: Path, era: Era) -> None:
    write_skill(folder / "almond")
    tools = ("--max-loaded", "1", "--catalog-chars", "500", "--no-local-paths")
    prompts = ("--prompt", "al*", "--prompt-page-size", "1")
    with serving(folder, *tools, *prompts, era=era, opened=False) as wire:
        seen = wire.open()["instructions"]
        assert seen.startswith("4 skills here")
        assert seen.endswith("<available_skills>\nalmond, alpha, beta, Odd\n</available_skills>")
        loaded = wire.call("skills_load", names=["alpha"])
        assert loaded["structuredContent"]["active_skills"][0]["root_dir"] == "skill://alpha"
        assert 'root_dir="skill://alpha"' in said(loaded)
        handle = bound(wire, loaded)
        refused = wire.call("skills_load", names=["beta"], mode="add", session=handle)
        assert refused["isError"] and "Load fewer" in said(refused)
        assert active(wire.call("skills_unload", names=["none"], session=handle)) == ["alpha"]
        page = wire.request("prompts/list")
        assert [each["name"] for each in page["prompts"]] == ["almond"] and "nextCursor" in page
        with pytest.raises(WireError) as caught:
            wire.request("prompts/get", {"name": "beta"})
        assert caught.value.code == -32602 and "known: almond, alpha" in caught.value.message


def test_a_preferred_tag_and_dependencies_count_if_the_operator_says_so(tmp_path: Path, era: Era) -> None:
    for number in range(80):
        more = "\ntags: [team]\ndependencies: {skills: [s7]}" if number == 70 else ""
        write_skill(tmp_path / f"s{number}", description=f"{'Does much. ' * 9}Use when {number} is there.{more}")
    for given in ((), ("--prefer", "team", "--load-dependencies")):
        with serving(tmp_path, *given, "--catalog-chars", "1500", era=era, opened=False) as wire:
            assert ("\n- s70: " in wire.open()["instructions"]) is bool(given)
            assert active(wire.call("skills_load", names=["s70"])) == (["s7", "s70"] if given else ["s70"])


def test_skills_loaded_lately_have_descriptions_before_others(tmp_path: Path, era: Era) -> None:
    for number in range(60):
        write_skill(tmp_path / "skills" / f"s{number}", description=f"{'Does much. ' * 40}Use when {number} is there.")
    store = tmp_path / "usage.db"
    counting = ("--usage", f"sqlite:{store}", "--catalog-chars", "1500")
    with serving(tmp_path / "skills", *counting, era=era, opened=False) as wire:
        before = re.findall(r"^- (s\d+): ", wire.open()["instructions"], re.MULTILINE)
    other = next(f"s{number}" for number in range(60) if f"s{number}" not in before)
    now = time.time()
    loads = {Count(day_of(now), "load", other, "", "", "", "tools"): Tally(1, now)}
    UsageStore(str(store)).add(Batch(loads, questions={}))
    with serving(tmp_path / "skills", *counting, era=era, opened=False) as wire:
        after = re.findall(r"^- (s\d+): Use when", wire.open()["instructions"], re.MULTILINE)
    assert before and other in after


def test_results_say_what_came_and_went_since_the_model_was_told(folder: Path, era: Era) -> None:
    with serving(folder, era=era) as wire:
        wire.request("tools/list")
        if era == "modern":
            wire.listen(toolsListChanged=True)
        calls = (("skills_search", {"query": "alpha"}), ("skills_load", {"names": ["alpha"]}))
        for name, given in calls if era == "legacy" else ():  # else the first call follows the change
            assert "changed since" not in str(wire.call(name, **given))
        write_skill(folder / "gamma")
        shutil.rmtree(folder / "beta")
        while "beta" in (names := [skill["name"] for skill in wire.every_skill()]) or "gamma" not in names:
            wire.until(TOOLS)
        for name, given in calls:
            seen = wire.call(name, **given)
            assert all("1 added and 1 removed" in text for text in (said(seen), seen["structuredContent"]["note"]))


@pytest.mark.requirement("ASG-23", "MCP-26")
def test_without_skills_there_are_no_tools_until_there_are(tmp_path: Path, era: Era) -> None:
    with serving(tmp_path, era=era, opened=False) as wire:
        assert "instructions" not in wire.open()
        assert wire.request("tools/list")["tools"] == wire.request("prompts/list")["prompts"] == []
        if era == "modern":
            wire.listen(toolsListChanged=True, promptsListChanged=True)
        write_skill(tmp_path / "alpha")
        wire.until(TOOLS)
        assert [tool["name"] for tool in wire.request("tools/list")["tools"]] == NAMES
        assert [each["name"] for each in wire.request("prompts/list")["prompts"]] == ["alpha"]


def test_what_is_switched_off_is_not_there(folder: Path, era: Era) -> None:
    with serving(folder, "--no-tools", "--no-prompts", era=era, opened=False) as wire:
        seen = wire.open()
        assert not {"tools", "prompts"} & seen["capabilities"].keys() and "instructions" not in seen
        for method, params in (("tools/list", {}), ("prompts/list", {}), ("tools/call", {"name": "skills_list"})):
            with pytest.raises(WireError) as caught:
                wire.request(method, params)
            assert caught.value.code == -32601


def test_a_local_skill_has_its_directory(folder: Path, tmp_path_factory: pytest.TempPathFactory, era: Era) -> None:
    packed = write_skill(tmp_path_factory.mktemp("packed") / "gamma").parent
    archive = shutil.make_archive(str(packed), "zip", packed)
    with serving(folder, archive, era=era) as wire:
        loaded = wire.call("skills_load", names=["beta", "gamma"])
    found = {each["name"]: each["root_dir"] for each in loaded["structuredContent"]["active_skills"]}
    assert found == {"beta": str(folder / "beta"), "gamma": "skill://gamma"}
    assert all(f'root_dir="{each}"' in said(loaded) for each in found.values())
