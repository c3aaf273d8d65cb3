"""The thesaurus: concepts, which are groups of synonyms."""

from __future__ import annotations

import re
from importlib.resources import files

from mcp_skills_server.runtime.search_text import words_of
from mcp_skills_server.runtime.thesaurus import Thesaurus, thesaurus
from tables import each_row


def concepts(text: str, *, parts: bool = True) -> set[str]:
    return {*thesaurus().concepts(words_of(text), parts=parts)}


@each_row(("query", "text"), [
    ("cut our bill", "cost optimization"), ("blind", "accessibility"), ("Rechnungen", "invoice"),
    ("contraseñas", "secrets"), ("アクセシビリティ", "screen reader"),
    ("Datenbankschema", "relational"),  # a compound of two words
    ("données personnelles", "GDPR"), ("代码审查", "pull request"),  # phrases, with and without spaces
])  # fmt: skip
def test_synonyms_share_a_concept(query: str, text: str) -> None:
    assert concepts(query) & concepts(text, parts=False)


def test_unrelated_words_share_no_concept() -> None:
    assert not concepts("recipe") & concepts("kubernetes")
    assert not concepts("xylophone")
    assert not concepts("invoice" * 100_000)  # a long word is skipped, as the cost is quadratic


def test_lookup_covers_endings_stems_and_compounds() -> None:
    entries = ("zyxwv", "kqjhg", "zyx", "qzj*", "qw*", "wxyz", "x" * 40, "y" * 41, "one_zyxwv_two", "kqjhgf")
    built = Thesaurus()
    for number, entry in enumerate(entries):
        built._add(entry, 9_000 + number)

    def numbers_of(text: str, *, parts: bool = True) -> list[int]:
        """Return the indexes in `entries` of the concepts of a text."""
        found = built.concepts(text.split(), parts=parts)
        return [int(each[2:-1]) for each in found if each.startswith("c9")]

    for text, numbers in (
        ("zyxwv", [0]), ("zyxwvabc", [0]), ("zyxwva", [0]), ("zyxwvabcd", []), ("wxyzab", []), ("zyxs", [2]),
        ("zyxa", []), ("qzj", [3]), ("qzjabc", [3]), ("qwab", []), ("x" * 40, [6]), ("y" * 41, []),
        ("one zyxwv two", [8, 0]), ("one zyxwv", [0]),
        ("kqjhgfa", [9]), ("zyxwvkqjhg", [0, 1]), ("kqjhgzyxwvs", [1, 0]),
        ("aaaaakqjhg", [1]), ("kqjhgaaaaa", [1]),
        ("aaaakqjhg", []), ("wxyzaaaaaaa", []), ("zyxwv" + "a" * 35, [0]), ("zyxwv" + "a" * 36, []),
        ("aaaaaaazyxwv", [0]),
    ):  # fmt: skip
        assert numbers_of(text) == numbers, text
    assert numbers_of("zyxwvkqjhg", parts=False) == []


def test_thesaurus_file_is_well_formed() -> None:
    text = files("mcp_skills_server.runtime").joinpath("thesaurus.txt").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) > 200
    for line in lines:
        entries = line.replace("|", " ").split()
        assert len(entries) > 2, line
        for entry in entries:
            assert re.fullmatch(r"[^\W_]+(?:[_+][^\W_]+|\+\+)*\*?", entry), entry
            assert words_of(entry.rstrip("*")), entry
