"""Skills that say the same of themselves: how alike they are, and copies, which are one hit and one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dialects.build import skill
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model import Skill
from mcp_skills_server.runtime import overlap
from mcp_skills_server.runtime.overlap import group_copies, is_copy, overlaps, pairs
from mcp_skills_server.runtime.runtime import Runtime
from wire import write_skill

ONE = "Counts the sheep in a picture of a meadow. Use when somebody cannot sleep."
NEARLY = ONE.replace("cannot", "can not")
OTHER = "Shears sheep by machine and sorts the wool."


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """One skill at three places, nearly the same at one of them, and another one of the same name."""
    for place, description in (("a", ONE), ("b", ONE), ("c", NEARLY), ("d", OTHER)):
        write_skill(tmp_path / place / "sheep", description=description)
    write_skill(tmp_path / "a" / "lambs", description=ONE)
    out = Registry([tmp_path])
    out.load()
    return out


def test_the_most_alike_come_first_by_the_words_that_decide_and_nobody_is_compared_with_itself() -> None:
    one = skill("pdf", description="Fills in the forms of a PDF")
    same = skill("portable", description="Fills PDF forms with much more that only it does")
    others = [skill("pears", description="Peels pears"), same, skill("-", description="")]
    found = overlaps(one, [one, *others])
    assert [(each.other.path, each.share) for each in found] == [("portable", 1.0), ("-", 0.0), ("pears", 0.0)]
    assert found[0].words == ["fills", "forms", "pdf"]
    assert [(first.path, each.other.path) for first, each in pairs([*others, one], 0.5)] == [("portable", "pdf")]


def test_copies_have_one_name_and_say_nearly_the_same(registry: Registry) -> None:
    skills = registry.snapshot.skills
    order = [skills[path] for path in ("c/sheep", "d/sheep", "a/lambs", "a/sheep", "b/sheep")]
    assert [(first.path, [copy.path for copy in others]) for first, others in group_copies(order)] == [
        ("c/sheep", ["a/sheep", "b/sheep"]), ("d/sheep", []), ("a/lambs", [])
    ]  # fmt: skip


def test_many_skills_of_one_name_take_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Skill] = []
    monkeypatch.setattr(overlap, "is_copy", lambda one, other: compared.append(other) or is_copy(one, other))
    many = [skill(f"{number}/sheep", description=f"Sheep number {number} of farm {number}.") for number in range(500)]
    assert len(list(group_copies([*many, *many]))) == 500
    assert len(compared) < 500 * 20


@pytest.mark.anyio
async def test_a_model_hears_of_each_skill_once_and_where_else_it_is(registry: Registry) -> None:
    async with Runtime(registry) as runtime, runtime.session() as session:
        found = await session.call("skills_search", {"query": "count sheep in a meadow", "limit": 2})
        named = {each["location"]: each.get("also_at") for each in found["structuredContent"]["skills"]}
        assert len(named) == 2  # as many as were asked for, without the copies
        assert named["skill://a/sheep/SKILL.md"] == ["skill://b/sheep/SKILL.md", "skill://c/sheep/SKILL.md"]
        assert "also at skill://b/sheep/SKILL.md" in found["content"][0]["text"]
        told = await session.instructions()
        assert told.count("a/sheep") == 1 and "b/sheep" not in told and "d/sheep" in told
