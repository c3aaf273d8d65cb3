"""Concepts: words of the trade that are asked for each other."""

from __future__ import annotations

import re
from importlib.resources import files

from mcp_skills_server.runtime.search_text import words_of
from mcp_skills_server.runtime.thesaurus import Thesaurus, thesaurus
from tables import each_row


def concepts(text: str, *, parts: bool = True) -> set[str]:
    return {*thesaurus().concepts(words_of(text), parts=parts)}


@each_row(
    ("asked", "offered"),
    [
        ("cut our bill", "cost optimization"), ("blind", "accessibility"), ("Rechnungen", "invoice"),
        ("contraseñas", "secrets"), ("アクセシビリティ", "screen reader"),
        ("Datenbankschema", "relational"),  # a compound of two words
        ("données personnelles", "GDPR"), ("代码审查", "pull request"),  # phrases, with blanks and without
    ],
)  # fmt: skip
def test_synonyms_share_a_concept(asked: str, offered: str) -> None:
    assert concepts(asked) & concepts(offered, parts=False)


def test_unrelated_words_share_no_concept() -> None:
    assert not concepts("recipe") & concepts("kubernetes")
    assert not concepts("xylophone")
    assert not concepts("invoice" * 100_000)  # at once: the cost is quadratic


def test_lookup_covers_endings_stems_and_compounds() -> None:
    table = Thesaurus()
    for number, entry in enumerate(
        ("zyxwv", "kqjhg", "zyx", "qzj*", "qw*", "wxyz", "x" * 40, "y" * 41, "one_zyxwv_two", "kqjhgf")
    ):
        table._add(entry, 9_000 + number)

    def found(text: str, *, parts: bool = True) -> list[int]:
        return [int(each[2:-1]) for each in table.concepts(text.split(), parts=parts) if each.startswith("c9")]

    for word, numbers in (
        ("zyxwv", [0]), ("zyxwvabc", [0]), ("zyxwva", [0]), ("zyxwvabcd", []), ("wxyzab", []), ("zyxs", [2]),
        ("zyxa", []), ("qzj", [3]), ("qzjabc", [3]), ("qwab", []), ("x" * 40, [6]), ("y" * 41, []),
        ("one zyxwv two", [8, 0]), ("one zyxwv", [0]),
        ("kqjhgfa", [9]), ("zyxwvkqjhg", [0, 1]), ("kqjhgzyxwvs", [1, 0]),
        ("aaaaakqjhg", [1]), ("kqjhgaaaaa", [1]),
        ("aaaakqjhg", []), ("wxyzaaaaaaa", []), ("zyxwv" + "a" * 35, [0]), ("zyxwv" + "a" * 36, []),
        ("aaaaaaazyxwv", [0]),
    ):  # fmt: skip
        assert found(word) == numbers, word
    assert found("zyxwvkqjhg", parts=False) == []


def test_thesaurus_file_is_well_formed() -> None:
    lines = files("mcp_skills_server.runtime").joinpath("thesaurus.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) > 200
    for line in lines:
        entries = line.replace("|", " ").split()
        assert len(entries) > 2, line
        for entry in entries:
            assert re.fullmatch(r"[^\W_]+(?:[_+][^\W_]+|\+\+)*\*?", entry) and words_of(entry.rstrip("*")), entry
