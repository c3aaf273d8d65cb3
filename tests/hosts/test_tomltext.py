"""Edits of TOML as text, on wild input: an entry comes and goes, and all else stays."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.errors import UsageError
from mcp_skills_server.hosts import tomltext
from tables import each_row

OURS = {"command": "mcp-skills-server", "args": ["serve", '/a "b" \\ \x7f ü\n']}


@given(
    st.lists(
        st.sampled_from(
            [
                "# a comment\n",
                "\n",
                "x1 = [\n  1, # ]\n  2,\n]\n",
                'x2 = """\n[mcp_servers.skills]\n"""\n',
                "[t1]\n",
                "[[t2]]\n",
                '[mcp_servers.other]\ncommand = "x" # y\n',
                "[mcp_servers.other.env]\n",
                "  [ t3 . 'a.b' ]  # c\n  y = {a = 1}\n",
                "[mcp_servers]\n",
            ]
        ),
        unique=True,
    ),
    st.booleans(),
    st.sampled_from(["\n", "\r\n"]),
)
def test_toml_comes_and_goes(parts: list[str], closed: bool, newline: str) -> None:
    text = "".join(parts)
    text = (text if closed else text.removesuffix("\n")).replace("\n", newline)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    with_ours = tomltext.put(text, "mcp_servers", "skills", OURS)
    wanted = {**document, "mcp_servers": {**document.get("mcp_servers", {}), "skills": OURS}}
    assert tomllib.loads(with_ours) == wanted
    assert tomltext.put(with_ours, "mcp_servers", "skills", OURS) == with_ours
    changed = tomltext.put(with_ours, "mcp_servers", "skills", {"new": "n", "args": ["serve"], "more": ["m"]})
    expected = {**wanted["mcp_servers"], "skills": {**OURS, "new": "n", "args": ["serve"], "more": ["m"]}}
    assert tomllib.loads(changed) == {**wanted, "mcp_servers": expected}
    if text.strip():
        assert tomltext.drop(with_ours, "mcp_servers", "skills") == text
        assert tomltext.drop(changed, "mcp_servers", "skills") == text


@pytest.mark.parametrize("before", ["", "first = [\n  [1],\n  [2],\n]\n"])
def test_a_value_of_two_hundred_lines_that_may_be_its_end_is_the_longest(before: str) -> None:
    entry = '[mcp_servers.skills]\ncommand = "x"\n'

    def text(lines: int) -> str:
        # The first line is a try too, and the last one ends the value.
        return f"{before}long = [\n" + "  [1],\n" * (lines - 1) + f"]\n{entry}"

    changed = tomltext.put(text(200), "mcp_servers", "skills", {"command": "y"})
    assert changed == text(200).replace('"x"', '"y"')
    with pytest.raises(UsageError, match="too long to be edited here"):
        tomltext.put(text(201), "mcp_servers", "skills", {"command": "y"})


@each_row(
    ("old", "new"),
    [
        ('command = "x" # why\n', 'command = "y" # why\n'),
        ('command = "x"\t#why # twice\r\n', 'command = "y"\t#why # twice\r\n'),
        ('command = "#x" # why\n', 'command = "y" # why\n'),
        ('command = "#x"\n', 'command = "y"\n'),
        ('command = """\n# x\n#x""" # why\n', 'command = "y" # why\n'),
        ('command = """\n#x#"""  \n', 'command = "y"  \n'),
        ('command = "x" #', 'command = "y" #'),
        ('command = "x"', 'command = "y"'),
    ],
)
def test_a_value_that_changes_keeps_the_comment_behind_it(old: str, new: str) -> None:
    head = "[mcp_servers.skills]\n"
    assert tomltext.put(head + old, "mcp_servers", "skills", {"command": "y"}) == head + new


APART = """\
[mcp_servers.other]
command = "x"
[[profiles]]
name = "a"

# about the first one's variables
[mcp_servers.other.env]
A = "1"
[mcp_servers.skills]
command = "old" # ours

# about the last one
[mcp_servers.third]
command = "z"
"""


def test_tables_that_stand_apart_stay_in_their_order() -> None:
    """A library that builds a tree of the document writes them back together."""
    changed = tomltext.put(APART, "mcp_servers", "skills", {"command": "new"})
    assert changed == APART.replace('"old"', '"new"')
    assert tomltext.drop(APART, "mcp_servers", "skills") == APART.replace(
        '[mcp_servers.skills]\ncommand = "old" # ours\n', ""
    )


def test_every_key_has_its_line() -> None:
    text = (
        "# one\nroots = [\n  'a',\n]\n'a.b' = 1\nx.y = 2\n\n[[source]] # c\nfrom = '''\n[[source]]\n'''\n"
        "[source.more]\nz = 1\n[[source]]\nfrom = {q = 1}\n[t.u]\nv = 1\n"
    )
    assert tomltext.lines_of(text) == {
        ("roots",): 2,
        ("a.b",): 5,
        ("x",): 6,
        ("x", "y"): 6,
        ("source",): 8,
        ("source", 0): 8,
        ("source", 0, "from"): 9,
        ("source", 0, "more"): 12,
        ("source", 0, "more", "z"): 13,
        ("source", 1): 14,
        ("source", 1, "from"): 15,
        ("source", 1, "from", "q"): 15,
        ("t",): 16,
        ("t", "u"): 16,
        ("t", "u", "v"): 17,
    }
    assert tomltext.lines_of(text.replace("\n", "\r\n")) == tomltext.lines_of(text)
    assert tomltext.lines_of("a = 1\nb = [\n" + "[],\n" * 1000 + "]\n") == {("a",): 1}
