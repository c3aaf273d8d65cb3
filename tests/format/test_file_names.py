"""File names that some platform cannot hold or tell apart."""

from __future__ import annotations

from mcp_skills_server.format.file_names import faults
from tables import each_row


def test_a_file_name_that_nobody_can_read_is_found():
    (found,) = faults(["a.md", "references/b\u200bc.md"])
    assert (found.path, found.is_hidden) == ("references/b\u200bc.md", True)
    assert "U+200B" in found.message and found.message.isprintable()


def test_a_name_that_windows_cannot_hold_is_found():
    bad = ("a:b", "a?", "a|b", 'a"b', "end.", "end ", "con", "CON.md", "nul.txt", "com1", "lpt9.a", "aux/b.md")
    assert [found.path for found in faults(bad) if found.message.startswith("Windows cannot hold the name ")] == [*bad]
    good = ("console.md", "a.b.c", "com10", "übung.md", "日本語.md", ".a", "con_")
    assert list(faults(good)) == []


@each_row(("one", "other"), [("A.md", "a.md"), ("\u00e9.md", "e\u0301.md"), ("Straße", "STRASSE")])
def test_names_that_a_platform_takes_for_one_are_found(one: str, other: str):
    (found,) = faults([one, other])
    assert (found.path, found.message) == (other, f"many platforms cannot tell it from {one}")
