"""File names that some platform cannot hold or tell apart."""

from __future__ import annotations

from mcp_skills_server.format.file_names import faults
from tables import each_row


def test_a_file_name_that_nobody_can_read_is_found():
    (found,) = faults(["a.md", "references/b\u200bc.md"])
    assert (found.path, found.is_hidden) == ("references/b\u200bc.md", True)
    assert "U+200B" in found.message and found.message.isprintable()


@each_row("name", ["a:b", "a?", "a|b", 'a"b', "end.", "end ", "con", "CON.md", "nul.txt", "com1", "lpt9.a", "aux/b.md"])
def test_a_name_that_windows_cannot_hold_is_found(name: str):
    (found,) = faults([name])
    assert (found.path, found.is_hidden) == (name, False)
    assert found.message.startswith("Windows cannot hold the name ")


@each_row("name", ["console.md", "a.b.c", "com10", "übung.md", "日本語.md", ".a", "con_"])
def test_a_name_that_every_platform_holds_is_let_through(name: str):
    assert list(faults([name])) == []


@each_row(("one", "other"), [("A.md", "a.md"), ("\u00e9.md", "e\u0301.md"), ("Straße", "STRASSE")])
def test_names_that_a_platform_takes_for_one_are_found(one: str, other: str):
    (found,) = faults([one, other])
    assert (found.path, found.message) == (other, f"many platforms cannot tell it from {one}")
