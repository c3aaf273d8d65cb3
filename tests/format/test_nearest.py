"""Suggestions for an unknown name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.format.nearest import nearest
from tables import each_row

NAMES = ["csv-profiling", "commit-messages", "colour-palettes", "sql-migrations", "references/guide.md"]


@each_row(("wanted", "expected"), [
    ("csv-profilng", "csv-profiling"), ("CSV-Profiling", "csv-profiling"), ("color-palettes", "colour-palettes"),
    ("commit-message", "commit-messages"), ("guide.md", "references/guide.md"),
    ("reference/guide.md", "references/guide.md"), ("", None), ("zzz", None), ("quite-another-thing", None),
])  # fmt: skip
def test_misspelt_name_has_a_suggestion_and_a_different_one_none(wanted: str, expected: str | None) -> None:
    assert next(iter(nearest(wanted, NAMES)), None) == expected


def test_suggestions_are_limited_and_sorted_by_similarity() -> None:
    assert nearest("abcd", ["abce", "abcd", "abxx", "axxx"], 2) == ["abcd", "abce"]
    assert nearest("", ["\0", ""])[0] == ""


@given(st.text(), st.lists(st.text()))
def test_suggestions_for_any_text_are_existing_names(wanted: str, names: list[str]) -> None:
    found = nearest(wanted, names)
    assert set(found) <= set(names) and len(found) <= 3
    assert wanted not in names or found[0].casefold()[-64:] == wanted.casefold()[-64:]
