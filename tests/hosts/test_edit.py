"""Edits of configurations as text, on wild input: an entry comes and goes, all else stays. Which entries are ours."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.errors import UsageError
from mcp_skills_server.hosts import edit, jsontext, tomltext
from mcp_skills_server.hosts.edit import command_line_of, starts_this_server
from mcp_skills_server.hosts.table import HOSTS
from tables import each_row

NOW = ["/opt/app/bin/mcp-skills-server"]


@each_row("line", [
    "mcp-skills-server serve /skills", r"C:\Tools\mcp-skills-server.exe serve C:\skills",
    "python -m mcp_skills_server serve /skills", "/usr/bin/python3.13 -m mcp_skills_server serve /skills",
    r"C:\Python\pythonw.exe -m mcp_skills_server serve C:\skills", "py -3.12 -m mcp_skills_server serve",
    "python3 -Im mcp_skills_server serve", "python3 /opt/app/bin/mcp-skills-server serve",
    "uvx mcp-skills-server serve /skills", "uvx mcp-skills-server@1.2 serve",
    "uvx --from mcp-skills-server[acp]==1.2 mcp-skills-server serve",
    "uv run --directory /app mcp-skills-server serve", "pipx run --spec mcp-skills-server==1.2 mcp-skills-server serve",
])  # fmt: skip
def test_ours(line: str) -> None:
    assert starts_this_server(line.split(), NOW)


@each_row("line", [
    "", "npx -y filesystem /home/me/mcp-skills-server", "npx mcp-skills-server", "my-mcp-skills-server serve",
    "other --config mcp-skills-server", "mcp-skills-server-2 serve", "python -m mcp_skills_server_2 serve", "python",
    "pytest -m mcp_skills_server serve", "npx mcp_skills_server serve", "uvx --from mcp-skills-server other",
    "uvx mcp-skills-server-extras serve", "uvx",
])  # fmt: skip
def test_not_ours(line: str) -> None:
    assert not starts_this_server(line.split(), NOW)


def test_the_command_that_is_meant_now_is_ours_only_as_it_is_written_here() -> None:
    assert starts_this_server(["/opt/wrapper", "serve", "/skills"], ["/opt/wrapper"])
    assert not starts_this_server(["/opt/wrapper", "/skills"], ["/opt/wrapper"])
    # The same Python runs other servers too.
    python = ["/opt/python", "-m", "mcp_skills_server"]
    assert not starts_this_server(["/opt/python", "-m", "other", "serve"], python)


@each_row(("entry", "wanted"), [
    ({"command": "a", "args": ["b", "c"]}, ["a", "b", "c"]), ({"command": "a"}, ["a"]),
    ({"type": "local", "command": ["a", "b"]}, ["a", "b"]), ({"url": "https://example.com"}, []),
    ({"command": "a", "args": [1]}, []), ({"command": 3}, []), (["a"], []), (None, []),
])  # fmt: skip
def test_the_words_of_an_entry(entry: object, wanted: list[str]) -> None:
    assert command_line_of(entry) == wanted


def test_a_section_stays_where_it_has_a_header() -> None:
    raw, codex = b'[mcp_servers]\n[mcp_servers.skills]\ncommand = "mcp-skills-server"\n', HOSTS["codex"]
    assert edit.uninstall(raw, codex, "skills", NOW) == b"[mcp_servers]\n"
    with pytest.raises(UsageError, match="not UTF-8 at line 2"):
        edit.uninstall(b"\n\xff", codex, "skills", NOW)
    assert edit.remote_entry_for(codex, "https://a.example", None) == {"url": "https://a.example"}


KEYS = st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
OURS = {"command": "mcp-skills-server", "args": ["serve", '/a "b" \\ \x7f ü\n']}


@given(
    st.dictionaries(KEYS, VALUES, max_size=4),
    st.none() | st.dictionaries(KEYS.filter(lambda key: key != "skills"), VALUES, max_size=3),
    st.integers(0, 4),
    st.sampled_from([None, 0, 1, 2, 4, "\t"]),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " :\n ")]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_json_comes_and_goes(  # noqa: PLR0917
    rest: dict[str, Any],
    section: dict[str, Any] | None,
    place: int,
    indent: int | str | None,
    separators: tuple[str, str],
    newline: str,
    ascii_only: bool,
) -> None:
    items = [(key, value) for key, value in rest.items() if key != "servers"]
    if section is not None:
        items.insert(place, ("servers", section))
    document = dict(items)
    text = json.dumps(document, indent=indent, separators=separators, ensure_ascii=ascii_only).replace("\n", newline)
    for form in ("json", "json-comments", "jsonc"):
        with_ours = jsontext.put(text, ("servers", "skills"), OURS, form)
        wanted = {**document, "servers": {**(section or {}), "skills": OURS}}
        assert json.loads(with_ours) == wanted
        assert jsontext.put(with_ours, ("servers", "skills"), OURS, form) == with_ours
        without = jsontext.drop(with_ours, ("servers", "skills"), form)
        if section:
            assert without == text
        else:
            assert json.loads(without) == {**document, "servers": {}}


@each_row(("text", "path", "value", "wanted"), [
    ('{\n    "a": 1\n}', "s/n", {"c": "ü"},
     '{\n    "a": 1,\n    "s": {\n        "n": {\n            "c": "ü"\n        }\n    }\n}'),
    ('{\n\t"s": {\n\t\t"x": 1,\n\t\t"y": 2\n\t}\n}', "s/n", 3,
     '{\n\t"s": {\n\t\t"x": 1,\n\t\t"y": 2,\n\t\t"n": 3\n\t}\n}'),
    ('{\n  "x": 1, "y": 2\n}', "n", 3, '{\n  "x": 1, "y": 2,\n  "n": 3\n}'),
    ('\r{\r  "x": 1\r}', "n", 3, '\r{\r  "x": 1,\n  "n": 3\r}'),
    ('{"x": 1, "y": 2}', "n", 3, '{"x": 1, "y": 2, "n": 3}'), ('{"n": 1}', "n", {"a": 1}, '{"n": {"a": 1}}'),
    ('{\n  "n": 0, "y": 2}', "n", [3], '{\n  "n": [\n    3\n  ], "y": 2}'), ('{"n": {"a": 1}}', "n", 2, '{"n": 2}'),
    ('{\n  "n": 0\n}', "n", [3], '{\n  "n": [\n    3\n  ]\n}'),
    ('{"a": 1 /* c */, "b": 2}', "a", None, '{ /* c */ "b": 2}'), ('{"a": 1 , "b": 2}', "a", None, '{"b": 2}'),
    ('{"a": 1}', "s/n", None, '{"a": 1}'), ('{"s": {}}', "s/n", None, '{"s": {}}'),
])  # fmt: skip
def test_one_member_changes_and_all_else_stays_as_it_was_written(
    text: str, path: str, value: object, wanted: str
) -> None:
    keys = path.split("/")
    done = jsontext.drop(text, keys, "jsonc") if value is None else jsontext.put(text, keys, value, "jsonc")
    assert done == wanted


@each_row(("text", "words"), [
    ("{}/*/", "comment of line 1 is not closed"), ("\n{}/*", "comment of line 2"), ('{"a": [,]}', "line 1"),
    ('{"a": 1,,}', "line 1"), ("{,}", "line 1"),
])  # fmt: skip
def test_what_is_not_closed_and_a_comma_after_nothing_are_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        jsontext.read(text, "jsonc")
    with pytest.raises(UsageError, match="'s' is not an object"):
        jsontext.put('{"s": 1}', ("s", "n"), 2, "json")


TRIVIA = st.lists(st.sampled_from([" ", "\n", "\t", '// c } , "\n', '/* { " */', "/**/", "/*\n*/"]), max_size=3).map(
    "".join
)


@given(st.lists(TRIVIA, min_size=12, max_size=12), st.booleans(), st.booleans())
def test_jsonc_comes_and_goes(trivia: list[str], comma: bool, member: bool) -> None:
    t = trivia
    inner = f'"a"{t[4]}:{t[5]}{{"x": [1,{t[6]}2]}}{t[7]}{"," if comma else ""}{t[8]}' if member else t[8]
    text = f'{t[0]}{{{t[1]}"servers"{t[2]}:{t[3]}{{{t[9]}{inner}}}{t[10]}}}{t[11]}'
    before = jsontext.read(text, "jsonc")
    with_ours = jsontext.put(text, ("servers", "skills"), OURS, "jsonc")
    assert jsontext.read(with_ours, "jsonc") == {"servers": {**before["servers"], "skills": OURS}}
    assert with_ours.count("/*") == text.count("/*") and with_ours.count("// c") == text.count("// c")
    try:
        without = jsontext.drop(with_ours, ("servers", "skills"), "jsonc")
        assert jsontext.read(without, "jsonc") == before
        assert without.count("/*") == text.count("/*") and without.count("// c") == text.count("// c")
    except UsageError as error:
        pytest.fail(str(error))


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
    prose = 'x = """\n' + "a\n" * 300 + '"""\n'
    assert tomltext.put(prose + entry, "mcp_servers", "skills", {"command": "x"}) == prose + entry


@each_row(("old", "new"), [
    ('command = "x" # why\n', 'command = "y" # why\n'),
    ('command = "x"\t#why # twice\r\n', 'command = "y"\t#why # twice\r\n'),
    ('command = "#x" # why\n', 'command = "y" # why\n'), ('command = "#x"\n', 'command = "y"\n'),
    ('command = """\n# x\n#x""" # why\n', 'command = "y" # why\n'), ('command = """\n#x#"""  \n', 'command = "y"  \n'),
    ('command = "x" #', 'command = "y" #'), ('command = "x"', 'command = "y"'),
])  # fmt: skip
def test_a_value_that_changes_keeps_the_comment_behind_it(old: str, new: str) -> None:
    head = "[mcp_servers.skills]\n"
    assert tomltext.put(head + old, "mcp_servers", "skills", {"command": "y"}) == head + new


@each_row(("closed", "newline"), [(True, "\n"), (False, "\n"), (True, "\r\n")])
def test_new_keys_stand_below_the_header_in_their_order(closed: bool, newline: str) -> None:
    entry = {"command": "y", "args": ["a"], "type": "stdio"}
    head, lines = "[s.n]" + newline * closed, ['command = "y"', 'args = ["a"]', 'type = "stdio"']
    assert tomltext.put(head, "s", "n", entry) == newline.join(["[s.n]", *lines, ""][: None if closed else -1])
    there = newline.join(["[s.n]", 'command = "x"', ""])
    assert tomltext.put(there, "s", "n", entry) == newline.join(["[s.n]", *lines[1:], lines[0], ""])


def test_a_key_that_is_a_table_is_left_to_its_owner() -> None:
    with pytest.raises(UsageError, match="args has a form that cannot be edited here"):
        tomltext.put("[s.n]\nargs.first = 1\n", "s", "n", {"args": ["a"]})


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
    assert tomltext.drop("[a.b]\nx = 1\n\n# c\n[a.b.c]\n\n", "a", "b") == "\n# c\n\n"


def test_every_key_has_its_line() -> None:
    text = (
        "\nroots = [\n  'a',\n]\n'a.b' = 1\nx.y = 2\n\n[[source]] # c\nfrom = '''\n[[source]]\n'''\n"
        "[source.more]\nz = 1\n[[source]]\nfrom = {q = 1}\n[t.u]\n# c\nv = 1\n"
    )
    assert tomltext.lines_of(text) == {
        ("roots",): 2, ("a.b",): 5, ("x",): 6, ("x", "y"): 6, ("source",): 8, ("source", 0): 8,
        ("source", 0, "from"): 9, ("source", 0, "more"): 12, ("source", 0, "more", "z"): 13, ("source", 1): 14,
        ("source", 1, "from"): 15, ("source", 1, "from", "q"): 15, ("t",): 16, ("t", "u"): 16, ("t", "u", "v"): 18,
    }  # fmt: skip
    assert tomltext.lines_of(text.replace("\n", "\r\n")) == tomltext.lines_of(text)
    assert tomltext.lines_of("a = 1\nb = [\n" + "[],\n" * 1000 + "]\n") == {("a",): 1}
