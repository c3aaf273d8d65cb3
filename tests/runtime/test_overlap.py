"""Overlap of skills by the words of their descriptions, and grouping of near-duplicates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from catalog.forest import load_registry
from dialects.build import skill
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model import Skill
from mcp_skills_server.runtime import overlap
from mcp_skills_server.runtime.overlap import group_copies, is_copy, overlaps, pairs
from mcp_skills_server.runtime.runtime import Runtime
from wire import write_skill

DESCRIPTION = "Counts the sheep in a picture of a meadow. Use when somebody cannot sleep."
SIMILAR = DESCRIPTION.replace("cannot", "can not")
DIFFERENT = "Shears sheep by machine and sorts the wool."


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Three copies of a skill, another skill of the same name, and one of another name."""
    for folder, description in (("a", DESCRIPTION), ("b", DESCRIPTION), ("c", SIMILAR), ("d", DIFFERENT)):
        write_skill(tmp_path / folder / "sheep", description=description)
    write_skill(tmp_path / "a" / "lambs", description=DESCRIPTION)
    return load_registry(tmp_path)


def test_overlaps_are_ranked_by_share_of_common_words() -> None:
    pdf = skill("pdf", description="Fills in the forms of a PDF", heading="Other")
    pdf = replace(pdf, reading=pdf.reading._replace(headings=("Peels pears",)))
    portable = skill("portable", description="Fills PDF forms with much more that only it does")
    others = [skill("pears", description="Peels pears"), portable, skill("-", description=""), skill("forms", only={})]
    found = overlaps(pdf, [pdf, *others])
    shares = [("forms", 1.0), ("portable", 1.0), ("-", 0.0), ("pears", 0.0)]
    assert [(each.other.path, each.share) for each in found] == shares
    assert found[1].words == ["fills", "forms", "pdf"]
    expected = [("forms", "pdf"), ("portable", "forms"), ("portable", "pdf")]
    assert [(first.path, each.other.path) for first, each in pairs([*others, pdf], 1.0)] == expected


def test_word_common_to_more_than_200_skills_makes_no_pairs() -> None:
    for count, found in ((200, 200 * 199 // 2), (201, 0)):
        assert len(pairs([skill(f"s{number}", description="sheep") for number in range(count)], 0.5)) == found


def test_copies_share_name_and_nearly_all_words(registry: Registry) -> None:
    skills = registry.snapshot.skills
    order = [skills[path] for path in ("c/sheep", "d/sheep", "a/lambs", "a/sheep", "b/sheep")]
    assert [(first.path, [copy.path for copy in others]) for first, others in group_copies(order)] == [
        ("c/sheep", ["a/sheep", "b/sheep"]), ("d/sheep", []), ("a/lambs", [])
    ]  # fmt: skip


def test_grouping_of_copies_takes_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Skill] = []
    monkeypatch.setattr(overlap, "is_copy", lambda one, other: compared.append(other) or is_copy(one, other))
    many = [skill(f"{number}/sheep", description=f"Sheep number {number} of farm {number}.") for number in range(500)]
    assert len(list(group_copies([*many, *many]))) == 500
    assert len(compared) == sum(min(number, 16) for number in range(500))


def test_copies_share_four_of_five_words() -> None:
    one = skill("a", description="One two three four")
    for description, groups in (("One two three four five", 1), ("One two three four five six", 2)):
        assert len(list(group_copies([one, skill("a", description=description)]))) == groups
        assert len(list(group_copies([skill("a"), skill("x/a", description=description)]))) == 2
    assert is_copy(one, one)
    assert not is_copy(one, skill("b", description="One two three four"))


@pytest.mark.anyio
async def test_search_and_instructions_show_copies_once(registry: Registry) -> None:
    async with Runtime(registry) as runtime, runtime.session() as session:
        found = await session.call("skills_search", {"query": "count sheep in a meadow", "limit": 2})
        copies = {each["location"]: each.get("also_at") for each in found["structuredContent"]["skills"]}
        assert len(copies) == 2, "copies do not count toward the limit"
        assert copies["skill://a/sheep/SKILL.md"] == ["skill://b/sheep/SKILL.md", "skill://c/sheep/SKILL.md"]
        assert "also at skill://b/sheep/SKILL.md" in found["content"][0]["text"]
        instructions = await session.instructions()
        assert instructions.count("a/sheep") == 1
        assert "b/sheep" not in instructions
        assert "d/sheep" in instructions
