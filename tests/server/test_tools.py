"""The runtime tools through real clients over real stdio, in both eras."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anyio
import jsonschema
import mcp_types as types
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from mcp_skills_server.telemetry.usage import Batch, Count, Tally, UsageStore, day_of
from tables import each_row
from wire import COMMAND, DEADLINE, FIXTURES, Era, Wire, WireError, serving, write_skill

TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"
NAMES = ["skills_list", "skills_search", "skills_load", "skills_unload", "skills_read"]
MODES: list[Literal["legacy", "auto"]] = ["legacy", "auto"]


def call(wire: Wire, name: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool; `session` None leaves it out."""
    given = {key: value for key, value in arguments.items() if value is not None}
    return wire.request("tools/call", {"name": name, "arguments": given})


def said(result: dict[str, Any]) -> str:
    """All text of a result."""
    return "\n".join(each["text"] for each in result["content"] if each["type"] == "text")


def active(result: dict[str, Any]) -> list[str]:
    """Names of the skills that a receipt tells of."""
    assert not result.get("isError"), said(result)
    return [each["name"] for each in result["structuredContent"]["active_skills"]]


def bound(wire: Wire, result: dict[str, Any]) -> str | None:
    """The handle that later calls need in this era: a legacy connection remembers."""
    return result["structuredContent"]["session"] if wire.era == "modern" else None


def write_skills(place: Path) -> Path:
    """Two skills with files, and a third that breaks a rule."""
    write_skill(place / "alpha", body="# Alpha\n\nDo alpha.\n", references__guide_md="one\ntwo\nthree\n")
    write_skill(place / "beta", body="# Beta\n\nDo beta.\n", scripts__run_py="print('beta')\n")
    write_skill(place / "odd", name="Odd", body="# Odd\n\nDo odd.\n")
    return place


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Such skills, for one test alone."""
    return write_skills(tmp_path)


@pytest.fixture
def tools(folder: Path, era: Era) -> Iterator[Wire]:
    """A server on them."""
    with serving(folder, era=era) as wire:
        yield wire


@pytest.fixture(scope="module", params=["legacy", "modern"])
def unloaded(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Wire]:
    """A server in each era that the tests share which change no skill and load none."""
    with serving(write_skills(tmp_path_factory.mktemp("skills")), era=request.param) as wire:
        yield wire


@pytest.mark.requirement(
    "RT-2", "RT-10", "RT-13", "RT-14", "RT-15", "RT-16", "RT-17", "RT-22", "X-15", "X-30", "WK1-13"
)
def test_a_conversation_chooses_loads_uses_and_switches(tools: Wire) -> None:
    assert call(tools, "skills_read", path="SKILL.md")["isError"]
    loaded = call(tools, "skills_load", names=["alpha"])
    assert active(loaded) == ["alpha"]
    receipt = loaded["structuredContent"]["active_skills"][0]
    assert receipt["location"] == "skill://alpha/SKILL.md" and receipt["root_dir"].endswith("/alpha")
    listed = {each["uri"]: each["digest"] for skill in tools.every_skill() for each in skill["resources"]}
    assert receipt["digest"] == listed[receipt["location"]]
    assert receipt["properties"]["name"] == "alpha"
    assert "Do alpha." in said(loaded) and "references/guide.md" in said(loaded) and "three" not in said(loaded)
    handle = bound(tools, loaded)
    assert said(call(tools, "skills_read", path="references/guide.md", session=handle)) == "one\ntwo\nthree\n"
    part = call(tools, "skills_read", path="references/guide.md", start_line=2, max_lines=1, session=handle)
    assert part["content"][0]["text"] == "two\n"
    both = call(tools, "skills_load", names=["beta"], mode="add", session=handle)
    assert active(both) == ["alpha", "beta"] and "Do beta." in said(both) and "Do alpha." not in said(both)
    assert "Do beta." in said(call(tools, "skills_read", path="SKILL.md", session=handle))
    assert "Do alpha." in said(call(tools, "skills_read", path="SKILL.md", skill="alpha", session=handle))
    switched = call(tools, "skills_load", names=["beta"], session=handle)
    assert active(switched) == ["beta"]
    refused = call(tools, "skills_read", path="SKILL.md", skill="alpha", session=handle)
    assert refused["isError"] and "skills_load" in said(refused)
    assert active(call(tools, "skills_unload", names=["beta", "none"], session=handle)) == []
    assert call(tools, "skills_read", path="SKILL.md", session=handle)["isError"]


@pytest.mark.requirement("MCP-10", "MCP-11", "X-15")
def test_only_a_legacy_connection_remembers_and_a_handle_counts_in_both_eras(folder: Path, era: Era) -> None:
    with serving(folder, era=era) as wire:
        handle = call(wire, "skills_load", names=["alpha"])["structuredContent"]["session"]
        without = call(wire, "skills_read", path="SKILL.md")
        assert bool(without.get("isError")) == (era == "modern")
        assert "Do alpha." in said(call(wire, "skills_read", path="SKILL.md", session=handle))
        other = call(wire, "skills_read", path="SKILL.md", session="made-up")
        assert other["isError"] and "skills_load" in said(other)


@pytest.mark.requirement("ASG-27", "RT-22")
def test_what_is_loaded_is_delivered_every_time(tools: Wire) -> None:
    """A host may hold several conversations over one connection; each has to see the instructions."""
    for _ in range(2):
        loaded = call(tools, "skills_load", names=["alpha"])
        assert "Do alpha." in said(loaded)
        assert "instructions" not in loaded["structuredContent"]["active_skills"][0]


@pytest.mark.requirement("X-16", "RT-25", "MCP-28")
@each_row("name", ["skills.load", "skills-load", "skills_load"])
def test_the_other_spellings_of_a_tool_are_understood(tools: Wire, name: str) -> None:
    assert active(call(tools, name, names=["beta"])) == ["beta"]


@pytest.mark.requirement("X-2", "RT-11")
def test_a_skill_that_breaks_a_rule_can_be_loaded_and_says_so(tools: Wire) -> None:
    assert "Odd" not in [skill["name"] for skill in tools.every_skill()]
    loaded = call(tools, "skills_load", names=["Odd"])
    assert active(loaded) == ["Odd"]
    (receipt,) = loaded["structuredContent"]["active_skills"]
    assert "the name holds 'O'" in receipt["problems"][0] and receipt["problems"][0] in said(loaded)
    found = call(tools, "skills_search", query="odd")["structuredContent"]["skills"]
    assert found[0]["name"] == "Odd" and found[0]["problems"]


@pytest.mark.requirement("X-30", "RT-9")
@each_row(
    ("name", "arguments", "words"),
    [
        ("skills_launch", {}, "skills_load"),
        ("skills_load", {}, "names"),
        ("skills_load", {"names": []}, "names"),
        ("skills_load", {"names": "alpha"}, "names"),
        ("skills_load", {"names": ["alpha", "alhpa"]}, "alpha"),
        ("skills_load", {"names": ["alpha"], "mode": "more"}, "replace"),
        ("skills_load", {"names": ["alpha"], "force": True}, "force"),
        ("skills_load", {"names": ["alpha"], "session": 5}, "session"),
        ("skills_unload", {}, "all"),
        ("skills_read", {"path": "SKILL.md"}, "skills_load"),
        ("skills_read", {}, "path"),
        ("skills_run_script", {"path": "scripts/run.py"}, "--allow-scripts"),
        ("skills_search", {}, "query"),
        ("skills_list", {"limit": 0}, "limit"),
    ],
)
def test_what_a_model_can_correct_is_no_protocol_error(
    unloaded: Wire, name: str, arguments: dict[str, Any], words: str
) -> None:
    result = unloaded.request("tools/call", {"name": name, "arguments": arguments})
    assert result["isError"] is True
    assert words in said(result) and "structuredContent" not in result and "Traceback" not in said(result)


def test_a_tool_that_is_not_ours_at_all_is_unknown_to_the_protocol(unloaded: Wire) -> None:
    with pytest.raises(WireError) as caught:
        call(unloaded, "make_coffee")
    assert caught.value.code == -32602
    assert "make_coffee" in caught.value.message and "skills_load" in caught.value.message


@pytest.mark.requirement("RT-8", "RT-9")
def test_too_many_skills_are_refused_and_nothing_changes(folder: Path, era: Era) -> None:
    with serving(folder, "--max-loaded", "1", era=era) as wire:
        handle = bound(wire, call(wire, "skills_load", names=["alpha"]))
        refused = call(wire, "skills_load", names=["beta"], mode="add", session=handle)
        assert refused["isError"] and "Load fewer" in said(refused)
        assert active(call(wire, "skills_unload", names=["none"], session=handle)) == ["alpha"]


@pytest.mark.requirement("MCP-27", "MCP-28", "RT-5", "ASG-21")
def test_the_definitions_keep_the_protocol_s_shape(unloaded: Wire) -> None:
    listed = unloaded.request("tools/list")
    parsed = types.ListToolsResult.model_validate(listed)
    assert [tool.name for tool in parsed.tools] == NAMES
    for tool in parsed.tools:
        jsonschema.Draft202012Validator.check_schema(tool.input_schema)
        assert tool.title and tool.description and tool.annotations and tool.annotations.read_only_hint
    assert unloaded.request("tools/list") == listed
    assert "- alpha: " in str(parsed.tools[2].description)


@pytest.mark.requirement("RT-3", "RT-4", "RT-5", "ASG-20", "ASG-21")
def test_the_handshake_tells_the_rule_and_the_skills(folder: Path, era: Era) -> None:
    with serving(folder, era=era, opened=False) as wire:
        seen = wire.open()["instructions"]
        assert "MUST call skills_load" in seen
        assert "<name>alpha</name>" in seen and "<name>Odd</name>" in seen
    with serving(folder, "--catalog-chars", "500", era=era, opened=False) as wire:
        seen = wire.open()["instructions"]
        assert seen.startswith("3 skills here") and seen.endswith(
            "<available_skills>\nalpha, beta, Odd\n</available_skills>"
        )


def test_skills_loaded_lately_have_descriptions_before_others(tmp_path: Path, era: Era) -> None:
    for number in range(60):
        write_skill(tmp_path / "skills" / f"s{number}", description=f"{'Does much. ' * 40}Use when {number} is there.")
    store = tmp_path / "usage.db"
    counting = ("--usage", f"sqlite:{store}", "--catalog-chars", "1500")
    with serving(tmp_path / "skills", *counting, era=era, opened=False) as wire:
        before = re.findall(r"^- (s\d+): ", wire.open()["instructions"], re.MULTILINE)
    other = next(f"s{number}" for number in range(60) if f"s{number}" not in before)
    now = time.time()
    UsageStore(str(store)).add(
        Batch({Count(day_of(now), "load", other, "", "", "", "tools"): Tally(1, now)}, questions={})
    )
    with serving(tmp_path / "skills", *counting, era=era, opened=False) as wire:
        after = re.findall(r"^- (s\d+): Use when", wire.open()["instructions"], re.MULTILINE)
    assert before and other in after


def test_a_long_body_comes_in_parts_that_make_the_whole(tmp_path: Path, era: Era) -> None:
    body = "".join(f"## Step {number}\n\nDo {number} things.\n\n" for number in range(2_300)).strip()
    assert len(body) > 60_000
    write_skill(tmp_path / "long", body=body)
    with serving(tmp_path, era=era) as wire:
        loaded = call(wire, "skills_load", names=["long"])
        handle = bound(wire, loaded)
        assert len(said(loaded)) < 40_000
        shown = said(loaded).partition(f'root_dir="{tmp_path}/long">\n')[2]
        whole, _, hint = shown.rpartition("\n\n[")
        whole += "\n\n"
        while "start_line=" in hint:
            line = int(hint.partition("start_line=")[2].split(".")[0].split("]")[0])
            part, *note = call(wire, "skills_read", path="SKILL.md", start_line=line, session=handle)["content"]
            whole += part["text"]
            hint = note[0]["text"] if note else ""
        assert whole == body


def test_results_say_what_came_and_went_since_the_model_was_told(folder: Path, era: Era) -> None:
    with serving(folder, era=era) as wire:
        wire.request("tools/list")
        if era == "modern":
            wire.listen(toolsListChanged=True)
        for name, given in (("skills_search", {"query": "alpha"}), ("skills_load", {"names": ["alpha"]})):
            assert "changed since" not in str(call(wire, name, **given))
        write_skill(folder / "gamma")
        shutil.rmtree(folder / "beta")
        while "beta" in (names := [skill["name"] for skill in wire.every_skill()]) or "gamma" not in names:
            wire.until(TOOLS)
        for name, given in (("skills_search", {"query": "alpha"}), ("skills_load", {"names": ["alpha"]})):
            seen = call(wire, name, **given)
            assert (
                "1 added and 1 removed" in said(seen) and "1 added and 1 removed" in seen["structuredContent"]["note"]
            )


def test_a_whole_catalogue_of_prompts_is_one_page(tmp_path: Path, era: Era) -> None:
    for number in range(600):
        write_skill(tmp_path / f"skill-{number:03}")
    with serving(tmp_path, era=era) as wire:
        page = wire.request("prompts/list")
        assert len(page["prompts"]) == 600 and "nextCursor" not in page
    with serving(tmp_path, "--prompt-page-size", "7", era=era) as wire:
        assert len(wire.request("prompts/list")["prompts"]) == 7


@pytest.mark.requirement("ASG-22")
def test_a_skill_for_the_user_alone_is_hidden_from_the_model(folder: Path, era: Era) -> None:
    manual = folder / "manual"
    write_skill(manual)
    text = (manual / "SKILL.md").read_text().replace("name: manual", "name: manual\ndisable-model-invocation: true")
    (manual / "SKILL.md").write_text(text)
    with serving(folder, era=era, opened=False) as wire:
        assert "manual" not in wire.open()["instructions"]
        assert "manual" not in str(wire.request("tools/list"))
        assert "manual" not in str(call(wire, "skills_list"))
        assert "manual" in [each["name"] for each in wire.request("prompts/list")["prompts"]]
        assert active(call(wire, "skills_load", names=["manual"])) == ["manual"]  # the user's prompt named it


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


def test_only_chosen_skills_are_prompts(folder: Path, era: Era) -> None:
    with serving(folder, "--prompt", "al*", era=era) as wire:
        assert [each["name"] for each in wire.request("prompts/list")["prompts"]] == ["alpha"]
        with pytest.raises(WireError) as caught:
            wire.request("prompts/get", {"name": "beta"})
        assert caught.value.code == -32602 and "alpha" in caught.value.message


def test_arguments_of_prompts_are_completed(era: Era, tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    text = (tmp_path / "a" / "SKILL.md").read_text()
    more = "arguments:\n  - {name: tone, required: true, enum: [warm, wry, cool]}\n---\n\n# Tone {{tone}}"
    (tmp_path / "a" / "SKILL.md").write_text(text.replace("---\n\n# Thing", more))
    with serving(tmp_path, era=era) as wire:
        asked = {"ref": {"type": "ref/prompt", "name": "a"}, "argument": {"name": "tone", "value": "w"}}
        assert wire.request("completion/complete", asked)["completion"]["values"] == ["warm", "wry"]
        got = wire.request("prompts/get", {"name": "a", "arguments": {"tone": "warm"}})
        assert "Tone warm" in got["messages"][0]["content"]["text"]
        with pytest.raises(WireError) as caught:
            wire.request("prompts/get", {"name": "a"})
        assert caught.value.code == -32602 and "tone" in caught.value.message


def test_a_picture_is_shown_and_other_binary_is_linked(folder: Path, era: Era) -> None:
    (folder / "alpha" / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (folder / "alpha" / "a.zip").write_bytes(b"PK\0\xff")
    with serving(folder, era=era) as wire:
        handle = bound(wire, call(wire, "skills_load", names=["alpha"]))
        words, picture = call(wire, "skills_read", path="a.png", session=handle)["content"]
        assert words["text"] == "a.png (image/png, 8 bytes)"
        assert (picture["type"], picture["mimeType"]) == ("image", "image/png")
        link = call(wire, "skills_read", path="a.zip", session=handle)["content"][1]
        assert link["type"] == "resource_link"
        assert wire.request("resources/read", {"uri": link["uri"]})["contents"][0]["blob"]


def test_an_edit_shows_in_the_next_call_and_a_removed_skill_is_not_active(folder: Path) -> None:
    with serving(folder) as wire:
        call(wire, "skills_load", names=["alpha", "beta"])
        write_skill(folder / "beta", body="# Beta\n\nDo it otherwise.\n")
        wire.until("notifications/skills/list_changed")
        assert "otherwise" in said(call(wire, "skills_read", path="SKILL.md"))
        shutil.rmtree(folder / "beta")
        wire.until(TOOLS)
        assert active(call(wire, "skills_unload", names=["none"])) == ["alpha"]


@pytest.mark.anyio
@pytest.mark.parametrize("mode", MODES)
async def test_the_sdk_s_client_uses_tools_and_prompts(mode: Literal["legacy", "auto"]) -> None:
    """It validates what comes back against the output schemas."""
    parameters = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], "serve", str(FIXTURES)])
    with anyio.fail_after(DEADLINE):
        async with Client(stdio_client(parameters), mode=mode) as client:
            listed = await client.list_tools()
            assert [tool.name for tool in listed.tools] == NAMES
            found = await client.call_tool("skills_search", {"query": "how do I word a commit"})
            assert found.structured_content["skills"][0]["name"] == "commit-messages"
            loaded = await client.call_tool("skills_load", {"names": ["sql-migrations"]})
            assert not loaded.is_error
            session = loaded.structured_content["session"]
            files = loaded.structured_content["active_skills"][0]["files"]
            for path in files:
                read = await client.call_tool("skills_read", {"path": path, "session": session})
                assert not read.is_error and read.content
            assert not (await client.call_tool("skills_unload", {"all": True, "session": session})).is_error
            names = [prompt.name for prompt in (await client.list_prompts()).prompts]
            assert "meeting-notes" in names
            got = await client.get_prompt("meeting-notes", {"topic": "tea"})
            assert "tea" in got.messages[0].content.text


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def root_dirs(wire: Wire, *names: str) -> dict[str, str]:
    """The directories that a receipt tells of, by skill."""
    loaded = call(wire, "skills_load", names=list(names))
    found = {each["name"]: each["root_dir"] for each in loaded["structuredContent"]["active_skills"]}
    for each in found.values():
        assert f'root_dir="{each}"' in said(loaded)
    return found


def test_a_host_on_this_machine_learns_the_directory_of_a_local_skill(folder: Path, tmp_path: Path, era: Era) -> None:
    archive = shutil.make_archive(str(tmp_path.with_name(f"{tmp_path.name}-more")), "zip", write_more(tmp_path))
    with serving(folder, archive, era=era) as wire:
        found = root_dirs(wire, "beta", "gamma")
    assert found == {"beta": str(folder / "beta"), "gamma": "skill://gamma"}
    assert (Path(found["beta"]) / "scripts/run.py").read_text() == "print('beta')\n"
    with serving(folder, "--no-local-paths", era=era) as wire:
        assert root_dirs(wire, "beta") == {"beta": "skill://beta"}


def write_more(place: Path) -> Path:
    """A folder beside the test's own with one skill, to be packed."""
    more = place.with_name(f"{place.name}-packed")
    write_skill(more / "gamma", body="# Gamma\n")
    return more
