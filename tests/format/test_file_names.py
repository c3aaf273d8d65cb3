"""File names that some platforms cannot store or distinguish."""

from __future__ import annotations

from mcp_skills_server.format.file_names import faults
from tables import each_row


def test_hidden_character_in_a_file_name_is_found():
    (found,) = faults(["a.md", "references/b\u200bc.md"])
    assert (found.path, found.is_hidden) == ("references/b\u200bc.md", True)
    assert "U+200B" in found.message and found.message.isprintable()


def test_file_name_that_windows_forbids_is_found():
    bad = ("a:b", "a?", "a|b", 'a"b', "end.", "end ", "con", "CON.md", "nul.txt", "com1", "lpt9.a", "aux/b.md")
    assert [found.path for found in faults(bad) if found.message.startswith("Windows cannot hold the name ")] == [*bad]
    good = ("console.md", "a.b.c", "com10", "übung.md", "日本語.md", ".a", "con_")
    assert list(faults(good)) == []


@each_row(("one", "other"), [("A.md", "a.md"), ("\u00e9.md", "e\u0301.md"), ("Straße", "STRASSE")])
def test_file_names_that_a_platform_does_not_distinguish_are_found(one: str, other: str):
    (found,) = faults([one, other])
    assert (found.path, found.message) == (other, f"many platforms cannot tell it from {one}")
