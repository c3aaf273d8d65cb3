"""Loading and unloading, on a real disk, through the tools that a model calls; and what happens when skills change."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from catalog.forest import loaded, plant, skill_md, skills
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.model import SKILL_MD, Skill, Standing
from mcp_skills_server.runtime import active_skills
from mcp_skills_server.runtime.runtime import Runtime, RuntimeSettings
from mcp_skills_server.runtime.session import Session
from runtime.support import (
    SKILL_FILES,
    BlockedRead,
    active_names,
    call_tool,
    error_of,
    listed_names,
    long_skill_md,
    read_text,
    text_of,
    unexpected_call,
)
from tables import each_row

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("RT-10", "RT-7")
async def test_load_replaces_by_default_and_adds_in_order_without_duplicates(session: Session) -> None:
    await call_tool(session, "skills_load", names=["refunds", "pdf-processing", "refunds"])
    assert session.active_skills == ["refunds", "pdf-processing"]
    receipt = await call_tool(session, "skills_load", names=["data-analysis", "refunds"], mode="add")
    assert active_names(receipt) == session.active_skills == ["refunds", "pdf-processing", "data-analysis"]
    shown = await session.instructions()
    assert re.findall(r'<skill name="(.*)">', shown) == session.active_skills
    assert active_names(await call_tool(session, "skills_load", names=["data-analysis"])) == ["data-analysis"]


def needing(name: str, *others: str) -> dict[str, str]:
    return {f"{name}/SKILL.md": skill_md(name, f"dependencies: {{skills: [{', '.join(others)}]}}")}


async def test_dependencies_are_loaded_one_level_deep_if_enabled(tmp_path: Path) -> None:
    files = needing("a", "b", "gone", "a") | needing("b", "c", "a") | needing("c", "d") | skills("d")
    registry = loaded(plant(tmp_path, files))
    async with Runtime(registry, RuntimeSettings(load_dependencies=True)) as runtime, runtime.session() as session:
        receipt = await call_tool(session, "skills_load", names=["a"])
        assert active_names(receipt) == ["b", "a"], "what was asked for is the latest"
        note = receipt["structuredContent"]["note"]
        assert "needed: c." in note and "unknown skills: gone." in note
        assert "not here" not in str(await call_tool(session, "skills_load", names=["d"]))
    many = [f"m{number}" for number in range(65)]
    registry = loaded(plant(tmp_path, needing("all", *many) | skills(*many)))
    async with Runtime(registry, RuntimeSettings(load_dependencies=True, max_loaded=99)) as runtime:
        assert active_names(await call_tool(runtime.session(), "skills_load", names=["all"])) == [*many[:64], "all"]
    async with Runtime(registry, RuntimeSettings(load_dependencies=True, max_loaded=1)) as runtime:
        words = await error_of(runtime.session(), "skills_load", {"names": ["a"]})
        assert "At most 1 skill" in words and "would make 2" in words
    async with Runtime(registry) as runtime, runtime.session() as session:
        assert active_names(await call_tool(session, "skills_load", names=["a"])) == ["a"], "off by default"


async def test_load_of_too_many_names_is_refused_before_lookup(session: Session) -> None:
    words = await error_of(session, "skills_load", {"names": [f"wrong-{number}" for number in range(10_000)]})
    assert "too long (maxItems: 64)" in words and len(words) < 600
    words = await error_of(session, "skills_load", {"names": [f"zzzz-{number}" for number in range(64)]})
    assert words.count("Unknown skill") == words.count("skills_list shows what there is") == 3


@pytest.mark.requirement("X-30")
async def test_load_is_all_or_nothing(session: Session, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    await call_tool(session, "skills_load", names=["refunds"])
    before = await session.instructions()
    for mode in ("replace", "add"):
        names = ["data-analysis", "pdf-procesing", "no-such-thing"]
        words = await error_of(session, "skills_load", {"names": names, "mode": mode})
        assert words.startswith("Nothing was loaded.") and "'no-such-thing'" in words
        assert "Unknown skill: 'pdf-procesing'; nearest: pdf-processing" in words
    body = registry.body

    def failing(skill: Skill) -> Any:
        if skill.name == "pdf-processing":
            raise StaleFileError("/nowhere")
        return body(skill)

    monkeypatch.setattr(registry, "body", failing)
    assert "try again" in await error_of(session, "skills_load", {"names": ["data-analysis", "pdf-processing"]})
    assert session.active_skills == ["refunds"]
    assert await session.instructions() == before


@pytest.mark.requirement("RT-8", "RT-9", "X-30")
async def test_load_beyond_eight_skills_is_refused(tmp_path: Path) -> None:
    session = Runtime(loaded(plant(tmp_path, skills(*(f"s{number}" for number in range(10)))))).session()
    eight = [f"s{number}" for number in range(8)]
    assert len(active_names(await call_tool(session, "skills_load", names=eight))) == 8
    words = await error_of(session, "skills_load", {"names": ["s8"], "mode": "add"})
    assert "At most 8 skills" in words and "would make 9" in words and "Load fewer" in words
    assert words.endswith(f"or unload some with skills_unload first. Loaded now: {', '.join(eight)}.")
    assert session.active_skills == eight
    assert active_names(await call_tool(session, "skills_load", names=["s0", "s7"], mode="add")) == eight
    assert "Load fewer" in await error_of(session, "skills_load", {"names": [f"s{number}" for number in range(9)]})
    assert active_names(await call_tool(session, "skills_load", names=["s8"])) == ["s8"]


@pytest.mark.requirement("RT-1", "RT-11", "RT-14")
@each_row(
    "form",
    ["refunds", "acme/billing/refunds", "skill://acme/billing/refunds/SKILL.md", "skill://acme/billing/refunds",
     "skill://acme/billing/refunds/", "SKILL://acme/billing/refunds/SKILL.md"],
)  # fmt: skip
async def test_skill_is_loaded_and_unloaded_by_name_path_or_location(session: Session, form: str) -> None:
    (entry,) = (await call_tool(session, "skills_load", names=[form]))["structuredContent"]["active_skills"]
    assert entry["name"] == "refunds"
    assert entry["location"] == "skill://acme/billing/refunds/SKILL.md"
    assert entry["root_dir"] == "skill://acme/billing/refunds"
    assert active_names(await call_tool(session, "skills_unload", names=[form])) == []


@each_row(
    "form",
    ["", "Refunds", "acme/billing", "skill://", "skill://acme/billing", "skill://pdf-processing/references/guide.md",
     "skill://acme/billing/../billing/refunds", "file:///acme", "/", "\ud800"],
)  # fmt: skip
async def test_unknown_skill_reference_is_refused(session: Session, form: str) -> None:
    assert "Unknown skill" in await error_of(session, "skills_load", {"names": [form]})


@pytest.mark.requirement("RT-1", "RT-3", "RT-11")
async def test_disk_paths_are_shown_only_with_absolute_paths_setting(session: Session, registry: Registry) -> None:
    place = Path(registry.roots[0].path) / "pdf-processing"
    answers = [
        await call_tool(session, "skills_load", names=["pdf-processing"]),
        await call_tool(session, "skills_list"),
    ]
    assert str(place.parent) not in json.dumps([*answers, session.tools(), await session.instructions()])
    assert "Unknown skill" in await error_of(session, "skills_load", {"names": [str(place / SKILL_MD)]})
    able = Runtime(registry, RuntimeSettings(absolute_paths=True)).session()
    assert f"<location>{place / SKILL_MD}</location>" in await able.instructions()
    for form in (str(place / SKILL_MD), "skill://pdf-processing/SKILL.md", "pdf-processing"):
        (entry,) = (await call_tool(able, "skills_load", names=[form]))["structuredContent"]["active_skills"]
        assert (entry["location"], entry["root_dir"]) == (str(place / SKILL_MD), str(place))
    assert "Unknown skill" in await error_of(able, "skills_load", {"names": [str(place / "no" / SKILL_MD)]})
    assert listed_names(await call_tool(able, "skills_list")) == ["refunds", "data-analysis", "pdf-processing"]


async def test_skills_of_one_name_are_told_apart_by_path(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("x/report", "y/report")))
    session, earlier = Runtime(registry).session(), Runtime(registry).session()
    words = await error_of(session, "skills_load", {"names": ["report"]})
    assert words.endswith("Several skills are named 'report'; ask for one of: x/report, y/report")
    assert active_names(await call_tool(session, "skills_load", names=["y/report"])) == ["y/report"]
    assert listed_names(await call_tool(session, "skills_list")) == ["x/report", "y/report"]
    shown = await session.instructions()
    assert "<name>x/report</name>" in shown and '<skill name="y/report">' in shown
    assert (await read_text(session, SKILL_MD, skill="y/report")).startswith("---")
    (tmp_path / "x/report" / SKILL_MD).unlink()
    registry.refresh()
    assert active_names(await call_tool(earlier, "skills_load", names=["report"])) == ["report"]
    plant(tmp_path, skills("x/report"))
    registry.refresh()
    (name,) = earlier.active_skills
    assert (await read_text(earlier, SKILL_MD, skill=name)).startswith("---")
    assert active_names(await call_tool(earlier, "skills_unload", names=[name])) == []


@pytest.mark.requirement("X-2")
async def test_lenient_skill_is_served_with_its_problems(tmp_path: Path) -> None:
    odd = {"odd/SKILL.md": skill_md("Odd_Name", body="Do it oddly."), "odd/data.bin": b"\0"}
    registry = loaded(plant(tmp_path, odd | skills("fine")))
    session = Runtime(registry).session()
    assert registry.snapshot.skills["odd"].standing is Standing.LENIENT
    listing = await call_tool(session, "skills_list")
    assert listed_names(listing) == ["fine", "Odd_Name"]
    fine, marked = listing["structuredContent"]["skills"]
    assert "problems" not in fine
    assert any("holds" in each for each in marked["problems"])
    receipt = await call_tool(session, "skills_load", names=["fine", "Odd_Name"])
    fine, marked = receipt["structuredContent"]["active_skills"]
    assert "problems" not in fine and marked["problems"]
    assert f"The skill Odd_Name has problems: {marked['problems'][0]}" in text_of(receipt)
    assert "Do it oddly." in await session.instructions()
    # Nobody serves it as a resource, so there is nothing to link to.
    assert len((await call_tool(session, "skills_read", path="data.bin"))["content"]) == 1


@pytest.mark.requirement("X-2", "ASG-17")
async def test_unusable_skill_is_neither_loaded_nor_listed(tmp_path: Path) -> None:
    broken = {"broken/SKILL.md": "---\nname: broken\n", "fine/inner/SKILL.md": "---\n"}
    registry = loaded(plant(tmp_path, broken | skills("fine")))
    session = Runtime(registry, RuntimeSettings(absolute_paths=True)).session()
    place = str(Path(registry.roots[0].path) / "broken" / SKILL_MD)
    for form in ("broken", "skill://broken/SKILL.md", place, "skill://fine/inner", "skill://fine/inner/SKILL.md"):
        assert "Unknown skill" in await error_of(session, "skills_load", {"names": [form]})
    assert listed_names(await call_tool(session, "skills_list")) == ["fine"]
    assert listed_names(await call_tool(session, "skills_search", query="broken")) == []
    assert "broken" not in await session.instructions()


@pytest.mark.requirement("ASG-22")
async def test_skill_with_disabled_model_invocation_is_loaded_by_exact_name_only(tmp_path: Path) -> None:
    hidden = {"release/SKILL.md": skill_md("release", "disable-model-invocation: true", body="Ship it.")}
    session = Runtime(loaded(plant(tmp_path, hidden | skills("report")))).session()
    assert listed_names(await call_tool(session, "skills_list")) == ["report"]
    assert listed_names(await call_tool(session, "skills_search", query="release")) == []
    assert "release" not in await session.instructions()
    assert "release" not in json.dumps(session.tools())
    assert "nearest: release" not in await error_of(session, "skills_load", {"names": ["releas"]})
    # Asked for by its very name, as a user does.
    assert active_names(await call_tool(session, "skills_load", names=["release"])) == ["release"]
    assert "Ship it." in await session.instructions()


async def test_load_of_several_skills_is_limited_in_bytes(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    both = ["data-analysis", "refunds"]
    size = len(SKILL_FILES["data-analysis/SKILL.md"]) + len(SKILL_FILES["acme/billing/refunds/SKILL.md"])
    monkeypatch.setattr(active_skills, "MOST_BYTES", size)
    await call_tool(session, "skills_load", names=both)
    monkeypatch.setattr(active_skills, "MOST_BYTES", size - 1)
    words = await error_of(session, "skills_load", {"names": both})
    assert f"These skills have {size:,} bytes of instructions, and one call loads at most {size - 1:,}" in words
    monkeypatch.setattr(active_skills, "MOST_BYTES", 1)
    await call_tool(session, "skills_load", names=["refunds"])


@pytest.mark.requirement("RT-14")
async def test_unload_ignores_skills_that_are_not_loaded(session: Session) -> None:
    await call_tool(session, "skills_load", names=["refunds", "pdf-processing", "data-analysis"])
    receipt = await call_tool(session, "skills_unload", names=["pdf-processing", "no-such-thing", "pdf-processing"])
    assert active_names(receipt) == session.active_skills == ["refunds", "data-analysis"]
    assert "digest" in receipt["structuredContent"]["active_skills"][0]
    assert active_names(await call_tool(session, "skills_unload", names=["no-such-thing"])) == [
        "refunds",
        "data-analysis",
    ]
    assert "pdf-processing" not in (await session.instructions()).partition("<active_skills>")[2]


@pytest.mark.requirement("RT-14")
async def test_unload_requires_names_or_all(session: Session) -> None:
    await call_tool(session, "skills_load", names=["refunds", "pdf-processing"])
    for nothing in ({}, {"all": False}, {"names": []}, {"all": False, "names": []}):
        words = await error_of(session, "skills_unload", nothing)
        assert "names" in words and "all=true" in words
        assert session.active_skills == ["refunds", "pdf-processing"]
    for more in ({}, {"names": ["refunds"]}, {"names": []}, {}):
        assert active_names(await call_tool(session, "skills_unload", all=True, **more)) == []
        await call_tool(session, "skills_load", names=["refunds", "pdf-processing"])


@pytest.mark.requirement("RT-12", "RT-21")
async def test_loaded_skill_follows_edits_until_it_breaks_or_is_removed(
    tmp_path: Path, session: Session, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    await call_tool(session, "skills_load", names=["refunds", "pdf-processing", "data-analysis"])
    place = tmp_path / "acme/billing/refunds" / SKILL_MD
    changed = skill_md("refunds", "license: MIT", "disable-model-invocation: true", body="Ask the user.")
    place.write_text(changed)
    registry.refresh()
    shown = await session.instructions()
    assert "Ask the user." in shown and "Ask for the receipt." not in shown and "<name>refunds</name>" not in shown
    receipt = await call_tool(session, "skills_unload", names=["pdf-processing"])
    entry, _ = receipt["structuredContent"]["active_skills"]
    assert entry["properties"]["license"] == "MIT"
    assert entry["digest"] == f"sha256:{sha256(changed.encode()).hexdigest()}"
    place.write_text("---\nname: refunds\n")
    registry.refresh()
    shown = await session.instructions()
    assert "Ask the user." not in shown and "Look at the data" in shown
    assert (
        active_names(await call_tool(session, "skills_unload", names=["refunds"]))
        == session.active_skills
        == ["data-analysis"]
    )
    with monkeypatch.context() as patch:
        patch.setattr(registry, "read", unexpected_call)
        patch.setattr(registry, "body", unexpected_call)
        assert await session.instructions() == shown  # a body is read once
    (tmp_path / "data-analysis" / SKILL_MD).unlink()
    registry.refresh()
    assert "Look at the data" not in await session.instructions() and session.active_skills == []


@pytest.mark.requirement("RT-8")
async def test_concurrent_loads_respect_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = loaded(plant(tmp_path, {"a/SKILL.md": long_skill_md("a")} | skills("b", "c", "d")))
    session = Runtime(registry, RuntimeSettings(max_loaded=2)).session()
    blocked = BlockedRead(registry, monkeypatch)
    answers = await blocked.run_both(
        lambda: session.call("skills_load", {"names": ["a", "b"], "mode": "add"}),
        lambda: session.call("skills_load", {"names": ["c", "d"], "mode": "add"}),
    )
    assert len(session.active_skills) == 2
    assert [answer.get("isError", False) for answer in answers].count(True) == 1


@each_row(
    ("tool", "arguments", "then"),
    [
        ("skills_load", {"names": ["b"]}, ["b"]), ("skills_load", {"names": ["b"], "mode": "add"}, ["a", "b"]),
        ("skills_unload", {"all": True}, []),
    ],
)  # fmt: skip
async def test_load_during_refresh_of_instructions_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, arguments: dict[str, Any], then: list[str]
) -> None:
    registry = loaded(plant(tmp_path, {"a/SKILL.md": long_skill_md("a", "Old.")} | skills("b")))
    session = Runtime(registry).session()
    await call_tool(session, "skills_load", names=["a"])
    (tmp_path / "a" / SKILL_MD).write_text(long_skill_md("a", "New."))
    registry.refresh()
    blocked = BlockedRead(registry, monkeypatch)
    await blocked.run_both(session.instructions, lambda: call_tool(session, tool, **arguments))
    assert session.active_skills == then
    assert "Old." not in await session.instructions()
