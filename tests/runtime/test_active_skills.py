"""Loading and unloading of skills by tool calls, and reloading after changes on disk."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import anyio
import pytest

from catalog.forest import DEADLINE, load_registry, skill_md, skills, write_files
from mcp_skills_server.catalog.recalls import Advisory
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import SKILL_MD, Skill, Standing
from mcp_skills_server.runtime import active_skills
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.session import Session
from mcp_skills_server.runtime.settings import RuntimeSettings
from runtime.support import (
    SKILL_FILES,
    active_names,
    call_tool,
    error_of,
    listed_names,
    read_text,
    text_of,
    unexpected_call,
)
from tables import each_row

pytestmark = pytest.mark.anyio


async def load(session: Session, *names: str, **options: Any) -> Any:
    return await call_tool(session, "skills_load", names=[*names], **options)


async def load_error(session: Session, *names: str, **options: Any) -> str:
    return await error_of(session, "skills_load", {"names": [*names], **options})


async def unload(session: Session, *names: str) -> Any:
    return await call_tool(session, "skills_unload", names=[*names])


@pytest.mark.requirement("RT-10", "RT-7")
async def test_load_replaces_by_default_or_adds_in_order(session: Session) -> None:
    await load(session, "refunds", "pdf-processing", "refunds")
    assert session.active_skills == ["refunds", "pdf-processing"]
    receipt = await load(session, "data-analysis", "refunds", mode="add")
    assert active_names(receipt) == session.active_skills == ["refunds", "pdf-processing", "data-analysis"]
    instructions = await session.instructions()
    assert re.findall(r'<skill name="(.*)">', instructions) == session.active_skills
    assert active_names(await load(session, "data-analysis")) == ["data-analysis"]


def skill_with_dependencies(name: str, *dependencies: str) -> dict[str, str]:
    text = skill_md(name, f"dependencies: {{skills: [{', '.join(dependencies)}]}}")
    return {f"{name}/SKILL.md": text}


async def test_dependencies_are_loaded_one_level_deep_if_enabled(tmp_path: Path) -> None:
    files = skills("d") | skill_with_dependencies("a", "b", "gone", "a")
    files |= skill_with_dependencies("b", "c", "a") | skill_with_dependencies("c", "d")
    registry = load_registry(write_files(tmp_path, files))
    session = Runtime(registry, RuntimeSettings(load_dependencies=True)).session()
    receipt = await load(session, "a")
    assert active_names(receipt) == ["b", "a"], "the requested skill is the latest"
    note = receipt["structuredContent"]["note"]
    assert "needed: c." in note
    assert "unknown skills: gone." in note
    assert "note" not in (await load(session, "d"))["structuredContent"]
    session = Runtime(registry, RuntimeSettings(load_dependencies=True, max_loaded=1)).session()
    message = await load_error(session, "a")
    assert "At most 1 skill" in message
    assert "would make 2" in message
    assert active_names(await load(Runtime(registry).session(), "a")) == ["a"], "off by default"
    many = [f"m{number}" for number in range(65)]
    registry = load_registry(write_files(tmp_path, skill_with_dependencies("all", *many) | skills(*many)))
    session = Runtime(registry, RuntimeSettings(load_dependencies=True, max_loaded=99)).session()
    assert active_names(await load(session, "all")) == [*many[:64], "all"]


async def test_load_of_too_many_names_is_refused_before_lookup(session: Session) -> None:
    message = await load_error(session, *(f"wrong-{number}" for number in range(10_000)))
    assert "too long (maxItems: 64)" in message
    assert len(message) < 600
    message = await load_error(session, *(f"zzzz-{number}" for number in range(64)))
    assert message.count("Unknown skill") == message.count("skills_list shows what there is") == 3


@pytest.mark.requirement("X-30")
async def test_load_is_all_or_nothing(session: Session, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    await load(session, "refunds")
    before = await session.instructions()
    for mode in ("replace", "add"):
        message = await load_error(session, "data-analysis", "pdf-procesing", "no-such-thing", mode=mode)
        assert message.startswith("Nothing was loaded.")
        assert "'no-such-thing'" in message
        assert "Unknown skill: 'pdf-procesing'; nearest: pdf-processing" in message
    body = registry.body

    def failing(skill: Skill) -> Any:
        if skill.name == "pdf-processing":
            raise StaleFileError("/nowhere")
        return body(skill)

    monkeypatch.setattr(registry, "body", failing)
    assert "try again" in await load_error(session, "data-analysis", "pdf-processing")
    assert session.active_skills == ["refunds"]
    assert await session.instructions() == before


@pytest.mark.requirement("RT-8", "RT-9", "X-30")
async def test_load_beyond_eight_skills_is_refused(tmp_path: Path) -> None:
    eight = [f"s{number}" for number in range(8)]
    session = Runtime(load_registry(write_files(tmp_path, skills(*eight, "s8")))).session()
    assert active_names(await load(session, *eight)) == eight
    assert await load_error(session, "s8", mode="add") == (
        "At most 8 skills can be loaded at once, and this would make 9. Load fewer, or unload some "
        f"with skills_unload first. Loaded now: {', '.join(eight)}."
    )
    assert session.active_skills == eight
    assert active_names(await load(session, "s0", "s7", mode="add")) == eight
    assert "Load fewer" in await load_error(session, *eight, "s8")
    assert active_names(await load(session, "s8")) == ["s8"]


@pytest.mark.requirement("RT-1", "RT-11", "RT-14")
@each_row(
    "reference",
    ["refunds", "acme/billing/refunds", "skill://acme/billing/refunds/SKILL.md", "skill://acme/billing/refunds",
     "skill://acme/billing/refunds/", "SKILL://acme/billing/refunds/SKILL.md"],
)  # fmt: skip
async def test_skill_is_loaded_by_name_path_or_location(session: Session, reference: str) -> None:
    (entry,) = (await load(session, reference))["structuredContent"]["active_skills"]
    assert entry["name"] == "refunds"
    assert entry["location"] == "skill://acme/billing/refunds/SKILL.md"
    assert entry["root_dir"] == "skill://acme/billing/refunds"
    assert active_names(await unload(session, reference)) == []


@each_row(
    "reference",
    ["", "Refunds", "acme/billing", "skill://", "skill://acme/billing", "skill://pdf-processing/references/guide.md",
     "skill://acme/billing/../billing/refunds", "file:///acme", "/", "\ud800"],
)  # fmt: skip
async def test_unknown_skill_reference_is_refused(session: Session, reference: str) -> None:
    assert "Unknown skill" in await load_error(session, reference)


@pytest.mark.requirement("RT-1", "RT-3", "RT-11")
async def test_disk_paths_are_shown_only_if_enabled(session: Session, registry: Registry) -> None:
    directory = Path(registry.roots[0].path) / "pdf-processing"
    location = str(directory / SKILL_MD)
    results = [await load(session, "pdf-processing"), await call_tool(session, "skills_list")]
    texts = json.dumps([*results, session.tools(), await session.instructions()])
    assert str(directory.parent) not in texts
    assert "Unknown skill" in await load_error(session, location)
    session = Runtime(registry, RuntimeSettings(absolute_paths=True)).session()
    assert f"<location>{location}</location>" in await session.instructions()
    for reference in (location, "skill://pdf-processing/SKILL.md", "pdf-processing"):
        (entry,) = (await load(session, reference))["structuredContent"]["active_skills"]
        assert entry["location"] == location
        assert entry["root_dir"] == str(directory)
    assert "Unknown skill" in await load_error(session, str(directory / "no" / SKILL_MD))
    listing = await call_tool(session, "skills_list")
    assert listed_names(listing) == ["refunds", "data-analysis", "pdf-processing"]


async def test_skills_of_the_same_name_are_distinguished_by_path(tmp_path: Path) -> None:
    registry = load_registry(write_files(tmp_path, skills("x/report", "y/report")))
    session, earlier = Runtime(registry).session(), Runtime(registry).session()
    message = await load_error(session, "report")
    assert message.endswith("Several skills are named 'report'; ask for one of: x/report, y/report")
    assert active_names(await load(session, "y/report")) == ["y/report"]
    assert listed_names(await call_tool(session, "skills_list")) == ["x/report", "y/report"]
    instructions = await session.instructions()
    assert "<name>x/report</name>" in instructions
    assert '<skill name="y/report">' in instructions
    assert (await read_text(session, SKILL_MD, skill="y/report")).startswith("---")
    (tmp_path / "x/report" / SKILL_MD).unlink()
    registry.refresh()
    assert active_names(await load(earlier, "report")) == ["report"]
    write_files(tmp_path, skills("x/report"))
    registry.refresh()
    (name,) = earlier.active_skills  # still loaded by a name that is ambiguous now
    assert (await read_text(earlier, SKILL_MD, skill=name)).startswith("---")
    assert active_names(await unload(earlier, name)) == []


@pytest.mark.requirement("X-2")
async def test_lenient_skill_is_served_with_its_problems(tmp_path: Path) -> None:
    lenient = {"odd/SKILL.md": skill_md("Odd_Name", body="Do it oddly."), "odd/data.bin": b"\0"}
    registry = load_registry(write_files(tmp_path, lenient | skills("fine")))
    session = Runtime(registry).session()
    assert registry.snapshot.skills["odd"].standing is Standing.LENIENT
    listing = await call_tool(session, "skills_list")
    assert listed_names(listing) == ["fine", "Odd_Name"]
    fine, odd = listing["structuredContent"]["skills"]
    assert "problems" not in fine
    assert any("holds" in each for each in odd["problems"])
    receipt = await load(session, "fine", "Odd_Name")
    fine, odd = receipt["structuredContent"]["active_skills"]
    assert "problems" not in fine
    assert f"The skill Odd_Name has problems: {odd['problems'][0]}" in text_of(receipt)
    assert "Do it oddly." in await session.instructions()
    # It is not served as a resource, so the result has no link to it.
    assert len((await call_tool(session, "skills_read", path="data.bin"))["content"]) == 1


@pytest.mark.requirement("X-2", "ASG-17")
async def test_unusable_skill_is_neither_loaded_nor_listed(tmp_path: Path) -> None:
    broken = {"broken/SKILL.md": "---\nname: broken\n", "fine/inner/SKILL.md": "---\n"}
    registry = load_registry(write_files(tmp_path, broken | skills("fine")))
    session = Runtime(registry, RuntimeSettings(absolute_paths=True)).session()
    location = str(Path(registry.roots[0].path) / "broken" / SKILL_MD)
    for reference in (
        "broken", "skill://broken/SKILL.md", location, "skill://fine/inner", "skill://fine/inner/SKILL.md",
    ):  # fmt: skip
        assert "Unknown skill" in await load_error(session, reference)
    assert listed_names(await call_tool(session, "skills_list")) == ["fine"]
    assert listed_names(await call_tool(session, "skills_search", query="broken")) == []
    assert "broken" not in await session.instructions()


@pytest.mark.requirement("ASG-22")
async def test_hidden_skill_is_loaded_by_exact_name_only(tmp_path: Path) -> None:
    hidden = {"release/SKILL.md": skill_md("release", "disable-model-invocation: true", body="Ship it.")}
    session = Runtime(load_registry(write_files(tmp_path, hidden | skills("report")))).session()
    assert listed_names(await call_tool(session, "skills_list")) == ["report"]
    assert listed_names(await call_tool(session, "skills_search", query="release")) == []
    assert "release" not in await session.instructions()
    assert "release" not in json.dumps(session.tools())
    assert "nearest: release" not in await load_error(session, "releas")
    assert active_names(await load(session, "release")) == ["release"]
    assert "Ship it." in await session.instructions()


async def test_bytes_of_one_load_are_limited(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    both = ["data-analysis", "refunds"]
    size = len(SKILL_FILES["data-analysis/SKILL.md"]) + len(SKILL_FILES["acme/billing/refunds/SKILL.md"])
    monkeypatch.setattr(active_skills, "MAX_BYTES", size)
    await load(session, *both)
    monkeypatch.setattr(active_skills, "MAX_BYTES", size - 1)
    message = await load_error(session, *both)
    assert f"These skills have {size:,} bytes of instructions, and one call loads at most {size - 1:,}" in message
    monkeypatch.setattr(active_skills, "MAX_BYTES", 1)
    await load(session, "refunds")


@pytest.mark.requirement("RT-14")
async def test_unload_ignores_skills_that_are_not_loaded(session: Session) -> None:
    await load(session, "refunds", "pdf-processing", "data-analysis")
    receipt = await unload(session, "pdf-processing", "no-such-thing", "pdf-processing")
    assert active_names(receipt) == session.active_skills == ["refunds", "data-analysis"]
    assert "digest" in receipt["structuredContent"]["active_skills"][0]
    assert active_names(await unload(session, "no-such-thing")) == ["refunds", "data-analysis"]
    assert "pdf-processing" not in (await session.instructions()).partition("<active_skills>")[2]


@pytest.mark.requirement("RT-14")
async def test_unload_requires_names_or_all(session: Session) -> None:
    await load(session, "refunds", "pdf-processing")
    for arguments in ({}, {"all": False}, {"names": []}, {"all": False, "names": []}):
        message = await error_of(session, "skills_unload", arguments)
        assert message == "Give skills_unload the names of the skills to unload, or all=true"
        assert session.active_skills == ["refunds", "pdf-processing"]
    for arguments in ({}, {"names": ["refunds"]}, {"names": []}):
        assert active_names(await call_tool(session, "skills_unload", all=True, **arguments)) == []
        await load(session, "refunds", "pdf-processing")


@pytest.mark.requirement("RT-12", "RT-21")
async def test_loaded_skill_follows_edits_until_it_breaks_or_is_removed(
    tmp_path: Path, session: Session, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    await load(session, "refunds", "pdf-processing", "data-analysis")
    refunds = tmp_path / "acme/billing/refunds" / SKILL_MD
    changed = skill_md("refunds", "license: MIT", "disable-model-invocation: true", body="Ask the user.")
    refunds.write_text(changed)
    registry.refresh()
    instructions = await session.instructions()
    assert "Ask the user." in instructions
    assert "Ask for the receipt." not in instructions
    assert "<name>refunds</name>" not in instructions
    receipt = await unload(session, "pdf-processing")
    entry, _ = receipt["structuredContent"]["active_skills"]
    assert entry["properties"]["license"] == "MIT"
    assert entry["digest"] == f"sha256:{sha256(changed.encode()).hexdigest()}"
    refunds.write_text("---\nname: refunds\n")  # unusable
    registry.refresh()
    instructions = await session.instructions()
    assert "Ask the user." not in instructions
    assert "Look at the data" in instructions
    refunds.write_text(changed)
    registry.refresh()
    assert "Ask the user." in await session.instructions(), "it is usable again"
    refunds.write_text("---\nname: refunds\n")
    registry.refresh()
    assert active_names(await unload(session, "refunds")) == session.active_skills == ["data-analysis"]
    with monkeypatch.context() as patch:
        patch.setattr(registry, "read", unexpected_call)
        patch.setattr(registry, "body", unexpected_call)
        assert await session.instructions() == instructions, "a body is read once"
    (tmp_path / "data-analysis" / SKILL_MD).unlink()
    registry.refresh()
    assert "Look at the data" not in await session.instructions()
    assert session.active_skills == []


async def test_unreadable_loaded_skill_can_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = load_registry(write_files(tmp_path, {"a/SKILL.md": skill_md("a", body="Old.")} | skills("b")))
    session = Runtime(registry).session()
    await load(session, "a")
    (tmp_path / "a" / SKILL_MD).write_text(skill_md("a", body="New."))
    registry.refresh()
    body = registry.body

    def body_of_others(skill: Skill) -> Any:
        if skill.path == "a":
            raise StaleFileError("a")
        return body(skill)

    monkeypatch.setattr(registry, "body", body_of_others)
    assert "cannot be read" in await load_error(session, "b", mode="add")
    assert active_names(await load(session, "b")) == session.active_skills == ["b"]
    assert "Old." not in await session.instructions()


async def test_recalled_skill_leaves_the_instructions_while_another_one_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"a/SKILL.md": skill_md("a", body="Old."), "b/SKILL.md": skill_md("b", body="Bad.")}
    registry = load_registry(write_files(tmp_path, files))
    session = Runtime(registry).session()
    await load(session, "a", "b")
    digest = registry.snapshot.skills["b"].digests[SKILL_MD]
    (tmp_path / "a" / SKILL_MD).write_text(skill_md("a", body="New."))
    registry.refresh()
    monkeypatch.setattr(registry, "body", Mock(side_effect=StaleFileError("a")))
    assert "Bad." in await session.instructions()
    registry.recall([Advisory(digest, "it is bad", "low")])
    instructions = await session.instructions()
    assert "Old." in instructions
    assert "Bad." not in instructions


async def run_both(
    monkeypatch: pytest.MonkeyPatch, first: Callable[[], Awaitable[Any]], second: Callable[[], Awaitable[Any]]
) -> list[Any]:
    """Start `second` while `first` waits for its read of a skill, and return both results."""
    released = anyio.Event()
    prepare = active_skills._prepare
    results: list[Any] = []

    async def prepare_later(*arguments: Any) -> Any:
        await released.wait()
        return await prepare(*arguments)

    async def run(function: Callable[[], Awaitable[Any]]) -> None:
        results.append(await function())

    monkeypatch.setattr(active_skills, "_prepare", prepare_later)
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as group:
            for function in (first, second):
                group.start_soon(run, function)
                await anyio.wait_all_tasks_blocked()
            released.set()
    return results


@pytest.mark.requirement("RT-8")
async def test_concurrent_loads_respect_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = load_registry(write_files(tmp_path, skills("a", "b", "c", "d")))
    session = Runtime(registry, RuntimeSettings(max_loaded=2)).session()
    results = await run_both(
        monkeypatch,
        lambda: session.call("skills_load", {"names": ["a", "b"], "mode": "add"}),
        lambda: session.call("skills_load", {"names": ["c", "d"], "mode": "add"}),
    )
    assert len(session.active_skills) == 2
    assert [result.get("isError", False) for result in results].count(True) == 1
