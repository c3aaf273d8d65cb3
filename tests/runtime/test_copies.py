"""Copies of one skill: one hit of the search with all its places, and one line of the catalogue."""

from __future__ import annotations

from pathlib import Path

import pytest

from dialects.build import skill
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import View
from mcp_skills_server.model import Skill
from mcp_skills_server.runtime import overlap
from mcp_skills_server.runtime.overlap import group_copies, is_copy
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.search import Search
from wire import write_skill

ONE = "Counts the sheep in a picture of a meadow. Use when somebody cannot sleep."
NEARLY = ONE.replace("cannot", "can not")
OTHER = "Shears sheep by machine and sorts the wool."


def registry(folder: Path) -> Registry:
    """One skill at three places, nearly the same at one of them, and another one of the same name."""
    for place, description in (("a", ONE), ("b", ONE), ("c", NEARLY), ("d", OTHER)):
        write_skill(folder / place / "sheep", description=description)
    write_skill(folder / "a" / "lambs", description=ONE)
    out = Registry([folder])
    out.load()
    return out


def test_copies_have_one_name_and_say_nearly_the_same(tmp_path: Path) -> None:
    skills = registry(tmp_path).snapshot.skills
    one = skills["a/sheep"]
    assert is_copy(one, skills["b/sheep"]) and is_copy(one, skills["c/sheep"])
    assert not is_copy(one, skills["d/sheep"]) and not is_copy(one, skills["a/lambs"])
    order = [skills[path] for path in ("c/sheep", "d/sheep", "a/lambs", "a/sheep", "b/sheep")]
    assert [(first.path, [copy.path for copy in others]) for first, others in group_copies(order)] == [
        ("c/sheep", ["a/sheep", "b/sheep"]), ("d/sheep", []), ("a/lambs", [])
    ]  # fmt: skip


def test_many_skills_of_one_name_take_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    def counted(one: Skill, other: Skill) -> bool:
        nonlocal compared
        compared += 1
        return is_copy(one, other)

    monkeypatch.setattr(overlap, "is_copy", counted)
    many = [skill(f"{number}/sheep", description=f"Sheep number {number} of farm {number}.") for number in range(500)]
    assert len(list(group_copies([*many, *many]))) == 500
    assert compared < 500 * 20


def test_copies_are_one_hit_with_all_their_places(tmp_path: Path) -> None:
    search = Search(View(registry(tmp_path)))
    hits = search.find_scored("count sheep in a meadow", 2, lambda _: True)
    assert len(hits) == 2
    (sheep,) = [hit for hit in hits if hit.skill.name == "sheep"]
    assert {sheep.skill.path, *(copy.path for copy in sheep.copies)} == {"a/sheep", "b/sheep", "c/sheep"}


@pytest.mark.anyio
async def test_a_model_hears_of_each_skill_once_and_where_else_it_is(tmp_path: Path) -> None:
    async with Runtime(registry(tmp_path)) as runtime, runtime.session() as session:
        found = await session.call("skills_search", {"query": "count sheep in a meadow"})
        named = {each["location"]: each.get("also_at") for each in found["structuredContent"]["skills"]}
        assert named["skill://a/sheep/SKILL.md"] == ["skill://b/sheep/SKILL.md", "skill://c/sheep/SKILL.md"]
        assert not {"skill://b/sheep/SKILL.md", "skill://c/sheep/SKILL.md"} & {*named}
        assert "also at skill://b/sheep/SKILL.md" in found["content"][0]["text"]
        told = await session.instructions()
        assert told.count("a/sheep") == 1 and "b/sheep" not in told and "d/sheep" in told
