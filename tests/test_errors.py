"""How errors repeat what they are about: short, and with a count of what is left out."""

from __future__ import annotations

import pytest

from mcp_skills_server.errors import MOST_ECHOED, clipped, listed


@pytest.mark.parametrize(
    ("count", "last"), [(1, "n0"), (19, "n18"), (20, "n19"), (21, "n19 and 1 more"), (1000, "n19 and 980 more")]
)
def test_twenty_names_are_listed_and_the_others_counted(count: int, last: str) -> None:
    said = listed([f"n{number}" for number in range(count)])
    assert said.split(", ")[-1] == last and len(said.split(", ")) == min(count, 20)


def test_of_no_names_there_are_none() -> None:
    assert listed([]) == "none"


@pytest.mark.parametrize("more", [-1, 0, 1, 10_000])
def test_a_text_is_repeated_up_to_a_length(more: int) -> None:
    text = "x" * (MOST_ECHOED + more)
    said = clipped(text)
    assert len(said) <= MOST_ECHOED and (said == text) is (more <= 0)
    assert text.startswith(said.removesuffix("..."))
