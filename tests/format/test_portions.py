"""How much of a list one answer holds."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from dialects.build import skill
from mcp_skills_server.dialects import sep2640
from mcp_skills_server.format.portions import MOST_BYTES, portion, weight


@given(st.lists(st.integers(0, MOST_BYTES), max_size=8))
def test_a_portion_is_the_first_entries_that_fit_and_one_at_least(sizes: list[int]):
    kept = portion(sizes, lambda size: size)
    assert kept == sizes[: len(kept)] and bool(kept) is bool(sizes)
    assert sum(kept) <= MOST_BYTES or len(kept) == 1
    assert len(kept) == len(sizes) or sum(sizes[: len(kept) + 1]) > MOST_BYTES


@given(st.text(max_size=2000), st.lists(st.text("a/\u00e9b", min_size=1, max_size=30), max_size=40))
def test_a_skill_weighs_about_what_its_entry_takes(description: str, files: list[str]):
    one = skill("acme/refunds", files, description=description)
    entry = sep2640.entry(one, dict.fromkeys(one.files, "sha256:" + "0" * 64))
    size = len(json.dumps(entry))
    assert size - 400 <= weight(one) * 2 and weight(one) <= 2 * size + 400


def test_fifty_skills_of_a_megabyte_are_many_pages():
    many = [skill(f"s{each}", description="x" * (1 << 20)) for each in range(50)]
    assert len(portion(many, weight)) == 3
