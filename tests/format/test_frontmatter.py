"""Parsing of SKILL.md into frontmatter, body, lines and problems."""

from __future__ import annotations

import json
import math
from codecs import BOM_UTF8

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_skills_server.codes import standing
from mcp_skills_server.format import yaml_reader
from mcp_skills_server.format.fields import hides
from mcp_skills_server.format.frontmatter import Document, parse
from mcp_skills_server.model import Json, Standing
from steps import step_growth
from tables import each_row

from .skill_md import codes, document, each_parser, framed, typed


@pytest.mark.requirement("AS-2", "ASG-12")
@each_parser
def test_skill_md_is_frontmatter_between_two_fences_and_a_body():
    found = parse(b"---\nname: a\ndescription: b\n---\n# Title\n\nText.\n")
    fields = {"name": "a", "description": "b"}
    assert found == Document(fields, {"name": 2, "description": 3}, "# Title\n\nText.", 5, (), written=fields)


@pytest.mark.requirement("ASG-12", "S76-19")
@each_row(("rest", "body", "line"), [
    ("Text", "Text", 4), ("Text\n", "Text", 4), ("\n\nText\n\n\n", "Text", 6),
    ("  \n\t\n\n    code\n", "    code", 7), ("Text  \n \n", "Text", 4), ("one\n---\ntwo\n", "one\n---\ntwo", 4),
    ("", "", 4), ("   ", "", 4),
])  # fmt: skip
def test_body_is_stripped_of_blank_lines_and_has_its_first_line(rest: str, body: str, line: int):
    found = parse(f"---\nname: a\n---\n{rest}".encode())
    assert (found.body, found.body_line) == (body, line)


@pytest.mark.requirement("AS-2")
@each_row("opening", ["---", "--- ", "---\t", "--- \t  "])
@each_row("closing", ["---", "---  ", "---\t"])
@each_row("rest", ["", "\n", "\nText\n", "\n\n--- \nText\n"])
def test_fence_may_have_trailing_blanks(opening: str, closing: str, rest: str):
    """YAML allows them after its markers; 24 of 31,753 public files have some."""
    plain = parse(f"---\nname: a\nmetadata:\n  b: c\n---{rest}".encode())
    assert plain.frontmatter == {"name": "a", "metadata": {"b": "c"}}
    assert parse(f"{opening}\nname: a\nmetadata:\n  b: c\n{closing}{rest}".encode()) == plain


@each_parser
def test_line_breaks_that_only_yaml_knows_shift_no_line():
    found = document("name: a\u2028\u2028\ndescription: b: c\nlicense: d # e")
    assert found.lines == {"name": 2, "description": 3, "license": 4}
    assert [(problem.code, problem.line) for problem in found.problems] == [("yaml-ambiguous", 2), ("yaml-colon", 3)]


def test_fields_have_lines_and_metadata_has_its_source_text():
    metadata = "metadata:\n  version: 1.10\n  tags: [a, b]\n  'on': yes\n  more: {version: 2}"
    found = document(f"# note\nname: a\n{metadata}\n\nlicense: >\n  x\nversion: 3\n...")
    assert found.metadata == {"version": (5, "1.10"), "tags": (6, None), "on": (7, "yes"), "more": (8, None)}
    assert found.lines == {"name": 3, "metadata": 4, "license": 10, "version": 12}


@pytest.mark.requirement("AS-2", "ASG-12", "S76-7")
@each_row(("raw", "code", "line", "words"), [
    *((raw, "frontmatter-not-mapping", 2, "empty")
      for raw in (b"---\n---\n", b"---\n---", b"---\n\n---\nText", b"---\n# note\n---\n", b"---\n~\n---\n")),
    *((raw, "frontmatter-missing", 1, words) for raw, words in (
        (b"", "empty"), (b" \n\n", "empty"), (b"# Title\n", "does not begin"), (b"name: a\n---\n", "does not begin"),
        (b" ---\nname: a\n---\n", "blanks before"), (b" --- \nname: a\n---\n", "blanks before"),
        (b"\n---\nname: a\n---\n", "blank lines"), (b"----\nname: a\n----\n", "does not begin"),
        (b"--- # note\nname: a\n---\n", "does not begin"), (b"+++\nname = 'a'\n+++\n", "does not begin"))),
    *((raw, "frontmatter-unclosed", line, "never ends" if line == 1 else "blanks before") for raw, line in (
        (b"---", 1), (b"---\n", 1), (b"---\nname: a\n\n# Title\n", 1), (b"---\n  ---\nText\n", 2),
        (b"---\nname: a\n  --- \nText\n", 3), (b"---\nname: a\n--- # note\nText\n", 1),
        (b"---\nname: a --- b\nText ---\n", 1))),
    *((mark + b"---\nname: a\n---\n\nCaf\xe9\n", "not-utf8", 5, "0xe9") for mark in (b"", BOM_UTF8)),
    (b"---\nname: a\n---\n\none\ntwo \0\n", "nul-byte", 6, ""), (b"\n\0\n", "nul-byte", 2, ""),
    (b"\n\xe9\n", "not-utf8", 2, "0xe9"),
])  # fmt: skip
def test_unreadable_file_has_one_problem_with_its_line(raw: bytes, code: str, line: int, words: str):
    found = parse(raw)
    assert (found.frontmatter, codes(found), found.problems[0].line) == (None, [code], line)
    assert (found.body, found.body_line) == ("", 1) or code == "frontmatter-not-mapping"
    assert words in found.problems[0].message


@pytest.mark.requirement("ASG-12", "S40-13")
@each_row(("written", "expected"), [
    ("first --- then", "first --- then"), ("'---'", "---"), ("|\n  above\n  ---\n  below", "above\n---\nbelow\n"),
    (">-\n  above\n   ---\n  below", "above\n ---\nbelow"), ("first\n  --- then", "first --- then"),
    ("-----", "-----"),
])  # fmt: skip
def test_fence_is_a_whole_line(written: str, expected: str):
    found = document(f"description: {written}")
    assert (found.frontmatter, found.body, codes(found)) == ({"description": expected}, "Read on.", [])


@pytest.mark.requirement("S76-7", "ASG-12")
@each_row("end", ["\r\n", "\r"])
def test_other_line_ends_and_a_byte_order_mark_are_normalized(end: str):
    text = "---\nname: a\ndescription: |\n  one\n  two\n---\n\nText\nmore\n"
    found = parse(BOM_UTF8 + text.replace("\n", end).encode())
    assert found == parse(text.encode())
    assert found.frontmatter == {"name": "a", "description": "one\ntwo\n"}
    assert (found.body, found.body_line) == ("Text\nmore", 8)


_SIGNS = [*"ab[]{}|>'\"#%@\n\té\u2028", ": ", "- ", "? ", ", ", "  ", "&x ", "*x", "!t ", "<<", "---", "...", "\\u"]
_VALUES = ["1", ".nan", "0x1", "12:30", "~"]
_YAML = st.text(max_size=80) | st.lists(st.sampled_from(_SIGNS + _VALUES), max_size=40).map("".join)


@pytest.mark.requirement("S40-13")
@given(st.binary(max_size=200) | st.builds(framed, _YAML, st.text(max_size=40)))
@example(framed("v: \x85"))
@example(framed('v: "\\ud800"'))
@example(framed("v: &a [*a]"))
@example(framed("{\u2028\u2028!"))
@example(framed("description: a\u2028\u2028 b # c"))
def test_any_bytes_are_parsed_to_valid_json(raw: bytes):
    found = parse(raw)
    json.dumps([found.frontmatter, found.body], allow_nan=False, ensure_ascii=False).encode("utf-8")
    assert (found.frontmatter is None) == (standing(found.problems) is Standing.UNUSABLE)
    assert all(each.line is None or each.line >= 1 for each in found.problems)
    assert "\r" not in found.body and found.body == found.body.rstrip()


_TEXT = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Cn"), exclude_characters="\u2028\u2029\ufeff"), max_size=30
)
_JSON: st.SearchStrategy[Json] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: not math.isinf(float(repr(number))))
    | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.requirement("S40-13")
@given(st.dictionaries(_TEXT, _JSON, max_size=5))
def test_json_frontmatter_is_parsed_verbatim(fields: dict[str, Json]):
    found = document(json.dumps(fields, ensure_ascii=False))
    assert (typed(found.frontmatter), found.body) == (typed(fields), "Read on.")


@pytest.mark.requirement("ASG-13")
@each_row("value", [
    "Two steps: first this, then that.", "Use when: asked", "Ends with a colon:", "It's here: 'so' and \"so\"",
    "a: b: c", "https://example.com is fine: really",
])  # fmt: skip
def test_unquoted_colon_is_a_warning_with_a_hint_that_fixes_it(value: str) -> None:
    lines = "name: a\ndescription: {}\n\nx-y: MIT: yes-"
    found = document(lines.format(value))
    assert found.frontmatter == {"name": "a", "description": value, "x-y": "MIT: yes-"}
    described, licensed = found.problems
    assert (described.code, described.severity, described.line) == ("yaml-colon", "warning", 3)
    assert (licensed.code, licensed.line) == ("yaml-colon", 5)
    assert standing(found.problems) is Standing.LENIENT
    fixed = lines.replace("description: {}", described.hint.removeprefix("write "))
    after = document(fixed.replace("x-y: MIT: yes-", licensed.hint.removeprefix("write ")))
    assert (after.frontmatter, after.problems) == (found.frontmatter, ())
    assert (after.body, after.body_line, after.lines) == (found.body, found.body_line, found.lines)


@each_row(("value", "is_written"), [("x" * 1182, True), ("x" * 1183, False), ("\u200b", False)])
def test_hint_has_the_fixed_line_if_it_is_short_and_visible(value: str, is_written: bool) -> None:
    (found,) = document(f"description: a: {value}").problems
    expected = "put the value of description in single quotes"
    if is_written:
        expected = f"write description: 'a: {value}'"
    assert found.hint == expected


@pytest.mark.requirement("ASG-13")
@each_row("lines", [
    "description: a: b\n  more", "description: a: b\n\n  c: d", "description: a: b\n- c", "description: a: b # c",
    "description: [a: b: c]: d", "description: &x a: b", "description: a: b\ndescription: c", "description: - a: b",
])  # fmt: skip
def test_ambiguous_colon_is_an_error(lines: str) -> None:
    found = document(f"name: a\n{lines}")
    assert found.frontmatter is None
    assert standing(found.problems) is Standing.UNUSABLE


@pytest.mark.requirement("ASG-13", "ASG-17")
@each_row(("lines", "line", "left_out"), [
    ("tags: [next,@x/y]", 4, "tags"), ("globs: *.ts", 4, "globs"), ("metadata:\n  author: a: b", 5, "metadata"),
    ("tags: [a, b", 4, "tags"), ('x: "open', 4, "x"), ("x: 'it's'", 4, "x"), ("x: {a", 4, "x"),
    ("x: @y\n\n# z", 4, "x"),
    ("x:\n\t- a", 5, "x"), ("x: |\n  a\n b", 6, "x"), ("x:\n- a\n- [", 6, "x"), ("'q r': %s", 4, "q r"),
    ("argument-hint: a: b # c", 4, "argument-hint"), ('x: "\\q"', 4, "x"),
])  # fmt: skip
def test_field_with_a_syntax_error_is_left_out_and_the_others_stay(lines: str, line: int, left_out: str) -> None:
    kept = "license: >+\n  MIT\n\n  or more\n"
    found = document(f"name: a\ndescription: Use it.\n{lines}\n{kept}version: 1.2")
    expected = {"name": "a", "description": "Use it.", "license": "MIT\nor more\n", "version": 1.2}
    assert (found.frontmatter, found.body) == (expected, "Read on.")
    (problem,) = found.problems
    assert (problem.code, problem.severity, problem.line) == ("yaml-field", "error", line)
    assert problem.message.startswith(f"the field '{left_out}' is ignored: not valid YAML")
    assert standing(found.problems) is Standing.LENIENT
    last = lines.count("\n") + 9
    assert found.lines == {"name": 2, "description": 3, "license": last - 4, "version": last}


def test_every_broken_field_is_repaired_or_left_out() -> None:
    lines = 'name: a\nnote: "begins\ndescription: a: b"\nx: @\ndescription: Two: steps\ny: [\nlicense: c: d\nz: `'
    found = document(lines)
    # A line within quotes is no field.
    assert found.frontmatter == {
        "name": "a", "note": "begins description: a: b", "description": "Two: steps", "license": "c: d",
    }  # fmt: skip
    assert [(each.code, each.line) for each in found.problems] == [
        ("yaml-field", 5), ("yaml-colon", 6), ("yaml-field", 7), ("yaml-colon", 8), ("yaml-field", 9),
    ]  # fmt: skip


def test_fields_before_a_broken_one_are_read_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile file of 35 KB took ten seconds when all of it was read again for each broken field."""
    lines = "\n".join([*(f"k{number}: v" for number in range(2000)), *(f"x{number}: @" for number in range(32))])
    read: list[int] = []

    class CountingReader(yaml_reader.YamlReader):
        def __init__(self, text: str) -> None:
            super().__init__(text)
            read.append(len(text))

    monkeypatch.setattr(yaml_reader, "YamlReader", CountingReader)
    found = document(lines)
    assert found.frontmatter is not None and len(found.frontmatter) == 2000
    assert [each.code for each in found.problems] == ["yaml-field"] * 32
    assert sum(read) < 3 * len(lines)


@each_row("lines", [
    "description: @here", "description: 'open", "license: MIT\n--- # two\nx: y",
    "license: MIT\n--- # two\ndescription: b",
    "license: MIT\nstray text\nname: b", "description: b\n- stray",
    "\n".join(f"x{number}: @" for number in range(33)),
])  # fmt: skip
def test_other_syntax_errors_are_fatal(lines: str) -> None:
    found = document(f"name: a\n{lines}")
    assert found.frontmatter is None
    assert [each.code for each in found.problems][-1] == "yaml-syntax"


@each_row("value", ["[true", "@false", "'no"])
def test_broken_flag_stays_as_a_null_that_hides_the_skill(value: str) -> None:
    for flag in ("disable-model-invocation", "user-invocable"):
        found = document(f"name: a\n{flag}: {value}\ndescription: Use it.")
        assert found.frontmatter == {"name": "a", flag: None, "description": "Use it."}
        assert hides(found.frontmatter, flag)


@pytest.mark.hypothesis
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30), st.text("ab :#'-\"", max_size=20))
def test_value_with_a_colon_is_the_rest_of_its_line(start: str, end: str) -> None:
    value = f"x{end}: {start}"
    found = document(f"description: {value}")
    if found.frontmatter is not None and any(each.code == "yaml-colon" for each in found.problems):
        assert found.frontmatter["description"] == value.strip()


@each_row("shape", ["a: b: c\n", "a: b: c", "a: ", ":", "a:\t", " \n", "a: '' ", "a: @\n", "a: [\n", "- [", '"\nb: '])
def test_parsing_takes_linear_time(shape: str) -> None:
    assert step_growth(lambda times: lambda: document(shape * times), 300) <= 6


@each_row(("fields", "fault", "hint"), [
    ("description: 'It's for chat.'", "an apostrophe ends a value in '...'", 'write description: "It\'s for chat."'),
    ("description: 'open", "the quote ' is never closed", 'write description: "open"'),
    ('description: "Foo" and bar', "nothing may follow the closing quote", "write description: '\"Foo\" and bar'"),
    ("description: **Bold** text", "a value that begins with '*' needs quotes", 'write description: "**Bold** text"'),
    ("description: @here", "a value that begins with '@' needs quotes", 'write description: "@here"'),
    ("description: > Helps.", "'>' stands alone on its line", 'write description: "Helps."'),
    ("description: Helps.\n\n  Words: one", "the value of line 3 has ': ' or goes on below",
     'write description: "Helps. Words: one"'),
    ("argument-hint: [module] [admin|dash]", "a value that begins with '[' needs quotes",
     'write argument-hint: "[module] [admin|dash]"'),
    ("description: @" + "x" * 2000, "a value that begins with '@' needs quotes",
     "put the value in quotes, on one line"),
])  # fmt: skip
def test_broken_value_has_its_reason_and_the_line_to_write(fields: str, fault: str, hint: str) -> None:
    (found,) = parse(f"---\nname: a\n{fields}\n---\n".encode()).problems
    assert fault in found.message
    assert found.hint == hint


@each_row(("field", "hint"), [
    ("description: Posts to #news now.", "write description: 'Posts to #news now.', or begin the comment on a line"),
    ("description: Posts. # a remark", "write description: 'Posts. # a remark', or begin the comment on a line"),
    ("license: MIT #1", "write license: 'MIT #1', or begin the comment on a line"),
    ("description: Posts\n  to #news.", "put the value in quotes"),
    *((quiet, None) for quiet in ("license: MIT # why", "description: 'Posts.' # why", "description: C#", "a: # why",
        "metadata:\n  a: b #c", "description: >\n  Posts to #news.", "list: [a, b] #c", "license: MIT ## why")),
])  # fmt: skip
def test_value_that_a_comment_cuts_has_the_line_to_write(field: str, hint: str | None) -> None:
    found = parse(f"---\nname: a\n{field}\n---\n".encode()).problems
    assert [each.code for each in found] == ["yaml-comment"] * (hint is not None)
    assert all(each.hint.startswith(str(hint)) and each.line == 3 for each in found)


@each_row(("text", "message"), [
    ("../../shared/SKILL.md", "a link that git wrote as text"), ("../SKILL.md\n", "a link that git wrote as text"),
    ("<!-- generated -->\n---\nname: a\n---\n", "'<!-- generated -->' precedes the first '---'"),
    ("# Comment\n---\nname: a\n---\n", "'# Comment' precedes the first '---'"),
    ("# Title\n\nText.", "the file does not begin with a line '---'"),
])  # fmt: skip
def test_text_before_the_frontmatter_is_named(text: str, message: str) -> None:
    (found,) = parse(text.encode()).problems
    assert (found.code, found.line) == ("frontmatter-missing", 1) and message in found.message


@each_row(("lines", "line", "message", "hint"), [
    ("name:sorter\ndescription: Sort.", 2, "not valid YAML: no blank follows the colon", "write name: sorter"),
    ("name:\u00a0sorter\ndescription: a", 2, "not valid YAML: no blank follows the colon", "write name: sorter"),
    ("name: a\ndescription: &b the rows.", 3, "'&b' is no part of the value of description", "put the value in quotes"),
])  # fmt: skip
def test_value_that_yaml_cuts_or_does_not_see_has_its_line(lines: str, line: int, message: str, hint: str):
    (found,) = parse(f"---\n{lines}\n---\nRead on.\n".encode()).problems
    assert (found.line, found.message, found.hint) == (line, message, hint)
