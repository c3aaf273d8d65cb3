"""What is suggested for a name that there is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.format.nearest import nearest
from tables import each_row

NAMES = ["csv-profiling", "commit-messages", "colour-palettes", "sql-migrations", "references/guide.md"]


@each_row(
    ("wanted", "found"),
    [
        ("csv-profilng", "csv-profiling"),
        ("CSV-Profiling", "csv-profiling"),
        ("color-palettes", "colour-palettes"),
        ("commit-message", "commit-messages"),
        ("guide.md", "references/guide.md"),
        ("reference/guide.md", "references/guide.md"),
    ],
)
def test_a_slip_is_understood(wanted: str, found: str) -> None:
    assert nearest(wanted, NAMES)[0] == found


@each_row("wanted", ["", "zzz", "quite-another-thing"])
def test_what_is_like_none_gets_none(wanted: str) -> None:
    assert nearest(wanted, NAMES) == []


def test_no_more_than_wanted_and_the_best_first() -> None:
    assert nearest("abcd", ["abce", "abcd", "abxx", "axxx"], 2) == ["abcd", "abce"]


def test_the_very_name_is_first_whatever_characters_the_others_hold() -> None:
    assert nearest("", ["\0", ""])[0] == ""


@given(st.text(), st.lists(st.text()))
def test_only_what_there_is_is_suggested(wanted: str, names: list[str]) -> None:
    found = nearest(wanted, names)
    assert set(found) <= set(names) and len(found) <= 3
    assert wanted not in names or found[0].casefold()[-64:] == wanted.casefold()[-64:]
