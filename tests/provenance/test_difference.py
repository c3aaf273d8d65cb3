"""Difference of two versions of a skill, as a reviewer reads it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.provenance.difference import Difference, Files, compare

BODY = b"".join(b"Line %d.\n" % number for number in range(1, 101))


def skill(body: bytes = BODY, fields: bytes = b"", **files: tuple[bytes, bool]) -> Files:
    raw = b"---\nname: thing\ndescription: Does a thing.\n" + fields + b"---\n\n" + body
    return {"SKILL.md": (raw, False), **{path.replace("__", "/"): file for path, file in files.items()}}


def changed(before: Files, after: Files) -> Difference:
    """Return the difference of two versions that differ."""
    found = compare("acme/thing", before, after)
    assert found is not None
    assert found.kind == "changed"
    return found


def test_important_changes_come_first() -> None:
    after = skill(fields=b"allowed-tools: Bash\nlicense: MIT\n", scripts__run=(b"x", False))
    after = {**after, "SKILL.md": (after["SKILL.md"][0].replace(b"Does a thing", b"Does all"), False)}
    found = changed(skill(), after)
    assert found.important == (
        'description: "Does a thing." -> "Does all."',
        'allowed-tools: "Bash"',
        "script new: scripts/run",
    )
    assert found.others[0] == 'license: "MIT"'


def test_changes_of_executable_files_are_important_in_any_folder() -> None:
    for after in ((b"b", False), (b"a", True)):
        found = changed(skill(scripts__run=(b"a", False)), skill(scripts__run=after))
        assert found.important == ("script changed: scripts/run",)
    for new in ((b"#!/bin/sh\n", False), (b"x", True)):
        assert changed(skill(), skill(tools__x=new)).important == ("script new: tools/x",)


def test_hidden_characters_are_counted() -> None:
    body = BODY + "Ignore\u200b\u200b this.\n".encode()
    found = changed(skill(), skill(body))
    assert found.important == ("hidden text: SKILL.md has 2 invisible characters, 2 more than before",)
    assert changed(skill(body), skill()).important == ()


def test_new_links_are_named_and_those_after_20_counted() -> None:
    before = skill(b"See https://old.example/a.\n")
    new = skill(b"See https://old.example/a. and (https://new.example/b).\n", notes__md=(b"<http://x.example>", False))
    assert changed(before, new).important == ("link new: http://x.example", "link new: https://new.example/b")
    for count, last in ((20, "link new: https://x.example/9"), (21, "and 1 more links")):
        links = b"".join(b"https://x.example/%d\n" % number for number in range(count))
        assert changed(skill(), skill(links)).important[-1] == last


def test_hunk_line_numbers_are_those_of_the_file() -> None:
    found = changed(skill(), skill(BODY.replace(b"Line 50.", b"Line fifty.")))
    assert found.others == (
        "--- a/acme/thing/SKILL.md", "+++ b/acme/thing/SKILL.md", "@@ -52,7 +52,7 @@", " Line 47.", " Line 48.",
        " Line 49.", "-Line 50.", "+Line fifty.", " Line 51.", " Line 52.", " Line 53.",
    )  # fmt: skip


def test_added_removed_and_changed_files_are_listed_in_order() -> None:
    files = {"a.md": (b"A\n", False), "b.bin": (b"\0", False), "c.md": (b"C\n", True), "e": (b"E\n", False)}
    more = {"b.bin": (b"\0\0", True), "c.md": (b"C\n", False), "d.md": (b"D\n", False), "e": (b"E", False)}
    signatures = {"skill.oms.sig": (b"a\n", False)}, {"skill.oms.sig": (b"b\n", False)}
    assert changed(skill(**files, **signatures[0]), skill(**more, **signatures[1])).others == (
        "file removed: a.md",
        "file b.bin may now be executed", "file acme/thing/b.bin: 1 bytes -> 2 bytes, not text",
        "file c.md may no longer be executed",
        "file added: d.md (2 bytes)", "--- a/acme/thing/d.md", "+++ b/acme/thing/d.md", "@@ -0,0 +1 @@", "+D",
        "--- a/acme/thing/e", "+++ b/acme/thing/e", "@@ -1 +1 @@", "-E", "+E\n\\ No newline at end of file",
        "file acme/thing/skill.oms.sig is a different signature",
    )  # fmt: skip


def test_added_skill_is_described_and_removed_skill_is_named() -> None:
    added = compare("thing", None, skill(scripts__run=(b"x", True)))
    important = ('name: "thing"', 'description: "Does a thing."', "script new: scripts/run")
    assert added == Difference("thing", "added", important, ("file SKILL.md", "file scripts/run"))
    assert compare("thing", skill(), None) == Difference("thing", "removed", (), ())


def test_change_of_more_than_2000_lines_is_not_compared() -> None:
    before, after = ([b"%d%s\n" % (number, end) for number in range(2_001)] for end in (b"", b"!"))
    assert changed(skill(b"".join(before)), skill(b"".join(after))).others == (
        "file acme/thing/SKILL.md: about 2,001 lines are different from line 6 on, too many to compare",
    )
    found = changed(skill(b"".join(before)), skill(b"".join(after[:-1] + before[-1:]))).others
    assert sum(each.startswith("+") for each in found) == 1 + 2_000


@given(st.lists(st.sampled_from(["a", "b", "-- x", "++ y", ""]), max_size=12), st.data())
def test_diff_lines_lead_from_the_old_text_to_the_new(old: list[str], data: st.DataObject) -> None:
    new = data.draw(st.lists(st.sampled_from(["a", "b", "-- x", "++ y", "c"]), max_size=12))
    before, after = ({"t": ("".join(f"{line}\n" for line in each).encode(), False)} for each in (old, new))
    found = compare("s", before, after)
    assert (found is None) == (old == new)
    if found is None:
        return
    lines = [line for line in found.others[2:] if not line.startswith("@@")]
    shown_old = [line[1:] for line in lines if line[:1] in {" ", "-"}]
    shown_new = [line[1:] for line in lines if line[:1] in {" ", "+"}]
    # the lines that are not shown are the same in both texts
    assert len(old) - len(shown_old) == len(new) - len(shown_new)
    assert set(shown_old) <= set(old)
    assert set(shown_new) <= set(new)
