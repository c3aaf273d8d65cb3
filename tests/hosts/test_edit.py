"""Text edits of host configurations: which entries are ours, and adding and removing one."""

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

CURRENT = ["/opt/app/bin/mcp-skills-server"]


OURS = [
    "mcp-skills-server serve /skills", r"C:\Tools\mcp-skills-server.exe serve C:\skills",
    "python -m mcp_skills_server serve /skills", "/usr/bin/python3.13 -m mcp_skills_server serve /skills",
    r"C:\Python\pythonw.exe -m mcp_skills_server serve C:\skills", "py -3.12 -m mcp_skills_server serve",
    "python3 -Im mcp_skills_server serve", "python3 /opt/app/bin/mcp-skills-server serve",
    "uvx mcp-skills-server serve /skills", "uvx mcp-skills-server@1.2 serve",
    "uvx --from mcp-skills-server[acp]==1.2 mcp-skills-server serve",
    "uv run --directory /app mcp-skills-server serve", "pipx run --spec mcp-skills-server==1.2 mcp-skills-server serve",
]  # fmt: skip
OTHERS = [
    "", "npx -y filesystem /home/me/mcp-skills-server", "npx mcp-skills-server", "my-mcp-skills-server serve",
    "other --config mcp-skills-server", "mcp-skills-server-2 serve", "python -m mcp_skills_server_2 serve", "python",
    "pytest -m mcp_skills_server serve", "npx mcp_skills_server serve", "uvx --from mcp-skills-server other",
    "uvx mcp-skills-server-extras serve", "uvx",
]  # fmt: skip


@each_row("line", [*OURS, *OTHERS])
def test_command_line_of_this_server_is_recognized(line: str) -> None:
    assert starts_this_server(line.split(), CURRENT) is (line in OURS)


def test_custom_command_is_recognized_only_with_serve() -> None:
    assert starts_this_server(["/opt/wrapper", "serve", "/skills"], ["/opt/wrapper"])
    assert not starts_this_server(["/opt/wrapper", "/skills"], ["/opt/wrapper"])
    # The same interpreter may run another server.
    python = ["/opt/python", "-m", "mcp_skills_server"]
    assert not starts_this_server(["/opt/python", "-m", "other", "serve"], python)


@each_row(("entry", "expected"), [
    ({"command": "a", "args": ["b", "c"]}, ["a", "b", "c"]), ({"command": "a"}, ["a"]),
    ({"type": "local", "command": ["a", "b"]}, ["a", "b"]), ({"url": "https://example.com"}, []),
    ({"command": "a", "args": [1]}, []), ({"command": 3}, []), (["a"], []), (None, []),
])  # fmt: skip
def test_command_line_of_an_entry_is_read(entry: object, expected: list[str]) -> None:
    assert command_line_of(entry) == expected


def test_uninstall_keeps_the_header_of_an_empty_section() -> None:
    raw, codex = b'[mcp_servers]\n[mcp_servers.skills]\ncommand = "mcp-skills-server"\n', HOSTS["codex"]
    assert edit.uninstall(raw, codex, "skills", CURRENT) == b"[mcp_servers]\n"
    with pytest.raises(UsageError, match="not UTF-8 at line 2"):
        edit.uninstall(b"\n\xff", codex, "skills", CURRENT)
    assert edit.remote_entry_for(codex, "https://a.example", None) == {"url": "https://a.example"}


KEYS = st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
ENTRY = {"command": "mcp-skills-server", "args": ["serve", '/a "b" \\ \x7f ü\n']}


@given(
    st.dictionaries(KEYS, VALUES, max_size=4),
    st.none() | st.dictionaries(KEYS.filter(lambda key: key != "skills"), VALUES, max_size=3),
    st.integers(0, 4),
    st.sampled_from([None, 0, 1, 2, 4, "\t"]),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " :\n ")]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_json_entry_is_added_and_removed(  # noqa: PLR0917
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
    text = json.dumps(document, indent=indent, separators=separators, ensure_ascii=ascii_only)
    text = text.replace("\n", newline)
    for form in ("json", "json-comments", "jsonc"):
        added = jsontext.put(text, ("servers", "skills"), ENTRY, form)
        expected = {**document, "servers": {**(section or {}), "skills": ENTRY}}
        assert json.loads(added) == expected
        assert jsontext.put(added, ("servers", "skills"), ENTRY, form) == added
        without = jsontext.drop(added, ("servers", "skills"), form)
        if section:
            assert without == text
        else:
            assert json.loads(without) == {**document, "servers": {}}


@each_row(("text", "path", "value", "expected"), [
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
def test_json_edit_keeps_the_format_of_other_members(text: str, path: str, value: object, expected: str) -> None:
    keys = path.split("/")
    if value is None:
        assert jsontext.drop(text, keys, "jsonc") == expected
    else:
        assert jsontext.put(text, keys, value, "jsonc") == expected


@each_row(("text", "words"), [
    ("{}/*/", "comment of line 1 is not closed"), ("\n{}/*", "comment of line 2"), ('{"a": [,]}', "line 1"),
    ('{"a": 1,,}', "line 1"), ("{,}", "line 1"), ('/* a\n b */ {"a" 1}', "at line 2, column 12: "),
    ('{"a": 1, // b\n"c": x}', "at line 2, column 6: "),
])  # fmt: skip
def test_invalid_jsonc_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        jsontext.read(text, "jsonc")
    with pytest.raises(UsageError, match="'s' is not an object"):
        jsontext.put('{"s": 1}', ("s", "n"), 2, "json")


WHITESPACE_AND_COMMENTS = st.lists(
    st.sampled_from([" ", "\n", "\t", '// c } , "\n', '/* { " */', "/**/", "/*\n*/"]), max_size=3
).map("".join)


@given(st.lists(WHITESPACE_AND_COMMENTS, min_size=12, max_size=12), st.booleans(), st.booleans())
def test_jsonc_entry_is_added_and_removed_with_comments_kept(trivia: list[str], comma: bool, member: bool) -> None:
    template = '~{~"servers"~:~{~'
    if member:
        template += '"a"~:~{"x": [1,~2]}~'
        if comma:
            template += ","
    text = template + "~}~}~"
    for each in trivia:
        text = text.replace("~", each, 1)
    before = jsontext.read(text, "jsonc")
    added = jsontext.put(text, ("servers", "skills"), ENTRY, "jsonc")
    assert jsontext.read(added, "jsonc") == {"servers": {**before["servers"], "skills": ENTRY}}
    assert added.count("/*") == text.count("/*") and added.count("// c") == text.count("// c")
    without = jsontext.drop(added, ("servers", "skills"), "jsonc")
    assert jsontext.read(without, "jsonc") == before
    assert without.count("/*") == text.count("/*") and without.count("// c") == text.count("// c")


TOML_PARTS = [
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


@given(
    st.lists(st.sampled_from(TOML_PARTS), unique=True),
    st.booleans(),
    st.sampled_from(["\n", "\r\n"]),
)
def test_toml_entry_is_added_changed_and_removed(parts: list[str], ends_with_newline: bool, newline: str) -> None:
    text = "".join(parts)
    if not ends_with_newline:
        text = text.removesuffix("\n")
    text = text.replace("\n", newline)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # the parts contradict each other
        return
    added = tomltext.put(text, "mcp_servers", "skills", ENTRY)
    expected = {**document, "mcp_servers": {**document.get("mcp_servers", {}), "skills": ENTRY}}
    assert tomllib.loads(added) == expected
    assert tomltext.put(added, "mcp_servers", "skills", ENTRY) == added
    changed = tomltext.put(added, "mcp_servers", "skills", {"new": "n", "args": ["serve"], "more": ["m"]})
    servers = {**expected["mcp_servers"], "skills": {**ENTRY, "new": "n", "args": ["serve"], "more": ["m"]}}
    assert tomllib.loads(changed) == {**expected, "mcp_servers": servers}
    if text.strip():
        assert tomltext.drop(added, "mcp_servers", "skills") == text
        assert tomltext.drop(changed, "mcp_servers", "skills") == text


@pytest.mark.parametrize("before", ["", "first = [\n  [1],\n  [2],\n]\n"])
def test_toml_value_of_200_possible_ends_is_the_longest(before: str) -> None:
    entry = '[mcp_servers.skills]\ncommand = "x"\n'

    def text(lines: int) -> str:
        # Each line is a possible end of the value, and the last one is its end.
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
def test_toml_edit_keeps_the_comment_after_a_value(old: str, new: str) -> None:
    head = "[mcp_servers.skills]\n"
    assert tomltext.put(head + old, "mcp_servers", "skills", {"command": "y"}) == head + new


@each_row(("head", "expected"), [
    ("[s.n]\n", '[s.n]\ncommand = "y"\nargs = ["a"]\ntype = "stdio"\n'),
    ("[s.n]", '[s.n]\ncommand = "y"\nargs = ["a"]\ntype = "stdio"'),
    ("[s.n]\r\n", '[s.n]\r\ncommand = "y"\r\nargs = ["a"]\r\ntype = "stdio"\r\n'),
    ('[s.n]\ncommand = "x"\n', '[s.n]\nargs = ["a"]\ntype = "stdio"\ncommand = "y"\n'),
    ('[s.n]\r\ncommand = "x"\r\n', '[s.n]\r\nargs = ["a"]\r\ntype = "stdio"\r\ncommand = "y"\r\n'),
])  # fmt: skip
def test_new_toml_keys_follow_the_header_in_order(head: str, expected: str) -> None:
    entry = {"command": "y", "args": ["a"], "type": "stdio"}
    assert tomltext.put(head, "s", "n", entry) == expected


@each_row(("text", "name"), [
    ("[s.n]\nargs.first = 1\n", "s.n.args"), ("[s]\nn = { command = 'x' }\n", "s.n"), ("s.n.command = 'x'\n", "s.n"),
])  # fmt: skip
def test_toml_entry_in_inline_or_dotted_form_is_refused(text: str, name: str) -> None:
    with pytest.raises(UsageError, match=f"^{name} has a form that cannot be edited here"):
        tomltext.put(text, "s", "n", {"args": ["a"]})
    if name == "s.n":
        with pytest.raises(UsageError, match=f"^{name} has a form"):
            tomltext.drop(text, "s", "n")


SEPARATED = """\
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


def test_separated_toml_tables_keep_their_order() -> None:
    """A library that builds a tree of the document writes them back together."""
    changed = tomltext.put(SEPARATED, "mcp_servers", "skills", {"command": "new"})
    assert changed == SEPARATED.replace('"old"', '"new"')
    assert tomltext.drop(SEPARATED, "mcp_servers", "skills") == SEPARATED.replace(
        '[mcp_servers.skills]\ncommand = "old" # ours\n', ""
    )
    assert tomltext.drop("[a.b]\nx = 1\n\n# c\n[a.b.c]\n\n", "a", "b") == "\n# c\n\n"


def test_toml_keys_have_their_line_numbers() -> None:
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
