"""What is suggested for a name that there is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.format.nearest import nearest
from tables import each_row

NAMES = ["csv-profiling", "commit-messages", "colour-palettes", "sql-migrations", "references/guide.md"]


@each_row(("wanted", "found"), [
    ("csv-profilng", "csv-profiling"), ("CSV-Profiling", "csv-profiling"), ("color-palettes", "colour-palettes"),
    ("commit-message", "commit-messages"), ("guide.md", "references/guide.md"),
    ("reference/guide.md", "references/guide.md"), ("", None), ("zzz", None), ("quite-another-thing", None),
])  # fmt: skip
def test_a_slip_is_understood_and_what_is_like_none_gets_none(wanted: str, found: str | None) -> None:
    assert next(iter(nearest(wanted, NAMES)), None) == found


def test_no_more_than_wanted_and_the_best_first() -> None:
    assert nearest("abcd", ["abce", "abcd", "abxx", "axxx"], 2) == ["abcd", "abce"]
    assert nearest("", ["\0", ""])[0] == ""


@given(st.text(), st.lists(st.text()))
def test_only_what_there_is_is_suggested(wanted: str, names: list[str]) -> None:
    found = nearest(wanted, names)
    assert set(found) <= set(names) and len(found) <= 3
    assert wanted not in names or found[0].casefold()[-64:] == wanted.casefold()[-64:]
