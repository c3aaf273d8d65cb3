"""SKILL.md bytes in; frontmatter, body, lines and problems out."""

from __future__ import annotations

import json
import math
from codecs import BOM_UTF8

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_skills_server.codes import standing
from mcp_skills_server.format.frontmatter import Document, parse
from mcp_skills_server.model import Json, Standing
from steps import growth
from tables import each_row

from .skill_md import codes, document, each_parser, framed, typed

# The two parts


@pytest.mark.requirement("AS-2", "ASG-12")
@each_parser
def test_a_file_is_frontmatter_between_two_fences_and_a_body():
    found = parse(b"---\nname: a\ndescription: b\n---\n# Title\n\nText.\n")
    fields = {"name": "a", "description": "b"}
    assert found == Document(fields, {"name": 2, "description": 3}, "# Title\n\nText.", 5, (), written=fields)


@pytest.mark.requirement("ASG-12", "S76-19")
@each_row(("rest", "body", "line"), [
    ("Text", "Text", 4), ("Text\n", "Text", 4), ("\n\nText\n\n\n", "Text", 6),
    ("  \n\t\n\n    code\n", "    code", 7), ("Text  \n \n", "Text", 4), ("one\n---\ntwo\n", "one\n---\ntwo", 4),
    ("", "", 4), ("   ", "", 4),
])  # fmt: skip
def test_the_body_is_trimmed_of_blank_lines_and_knows_its_first_line(rest: str, body: str, line: int):
    found = parse(f"---\nname: a\n---\n{rest}".encode())
    assert (found.body, found.body_line) == (body, line)


@pytest.mark.requirement("AS-2")
@each_row("opening", ["---", "--- ", "---\t", "--- \t  "])
@each_row("closing", ["---", "---  ", "---\t"])
@each_row("rest", ["", "\n", "\nText\n", "\n\n--- \nText\n"])
def test_blanks_may_follow_a_fence(opening: str, closing: str, rest: str):
    """As YAML's own markers have it; 24 of 31,753 real files do."""
    plain = parse(f"---\nname: a\nmetadata:\n  b: c\n---{rest}".encode())
    assert plain.frontmatter == {"name": "a", "metadata": {"b": "c"}}
    assert parse(f"{opening}\nname: a\nmetadata:\n  b: c\n{closing}{rest}".encode()) == plain


def test_fields_keep_their_lines_and_those_of_metadata_what_was_written():
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
def test_a_file_without_frontmatter_or_text_is_one_problem_with_its_line(raw: bytes, code: str, line: int, words: str):
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
def test_only_a_whole_line_is_a_fence(written: str, expected: str):
    found = document(f"description: {written}")
    assert (found.frontmatter, found.body, codes(found)) == ({"description": expected}, "Read on.", [])


@pytest.mark.requirement("S76-7", "ASG-12")
@each_row("end", ["\r\n", "\r"])
def test_line_ends_of_other_systems_and_a_byte_order_mark_are_passed_over(end: str):
    text = "---\nname: a\ndescription: |\n  one\n  two\n---\n\nText\nmore\n"
    found = parse(BOM_UTF8 + text.replace("\n", end).encode())
    assert found == parse(text.encode())
    assert found.frontmatter == {"name": "a", "description": "one\ntwo\n"}
    assert (found.body, found.body_line) == ("Text\nmore", 8)


# Wild input

_SIGNS = [*"ab[]{}|>'\"#%@\n\té\u2028", ": ", "- ", "? ", ", ", "  ", "&x ", "*x", "!t ", "<<", "---", "...", "\\u"]
_VALUES = ["1", ".nan", "0x1", "12:30", "~"]
_YAML = st.text(max_size=80) | st.lists(st.sampled_from(_SIGNS + _VALUES), max_size=40).map("".join)


@pytest.mark.requirement("S40-13")
@given(st.binary(max_size=200) | st.builds(framed, _YAML, st.text(max_size=40)))
@example(framed("v: \x85"))
@example(framed('v: "\\ud800"'))
@example(framed("v: &a [*a]"))
def test_any_bytes_give_a_document_that_json_can_hold(raw: bytes):
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
def test_json_in_yaml_comes_back_verbatim(fields: dict[str, Json]):
    found = document(json.dumps(fields, ensure_ascii=False))
    assert (typed(found.frontmatter), found.body) == (typed(fields), "Read on.")


@pytest.mark.requirement("ASG-13")
@each_row("value", [
    "Two steps: first this, then that.", "Use when: asked", "Ends with a colon:", "It's here: 'so' and \"so\"",
    "a: b: c", "https://example.com is fine: really",
])  # fmt: skip
def test_an_unquoted_colon_is_a_warning_with_the_line_to_write(value: str) -> None:
    """What is advised is YAML that means the same."""
    lines = "name: a\ndescription: {}\n\nx-y: MIT: yes-"
    read = document(lines.format(value))
    assert read.frontmatter == {"name": "a", "description": value, "x-y": "MIT: yes-"}
    described, licensed = read.problems
    assert (described.code, described.severity, described.line) == ("yaml-colon", "warning", 3)
    assert (licensed.code, licensed.line) == ("yaml-colon", 5)
    assert standing(read.problems) is Standing.LENIENT
    fixed = lines.replace("description: {}", described.hint.removeprefix("write "))
    again = document(fixed.replace("x-y: MIT: yes-", licensed.hint.removeprefix("write ")))
    assert (again.frontmatter, again.problems) == (read.frontmatter, ())
    assert (again.body, again.body_line, again.lines) == (read.body, read.body_line, read.lines)


@each_row(("value", "is_written"), [("x" * 1182, True), ("x" * 1183, False), ("\u200b", False)])
def test_a_short_line_to_write_is_told_whole(value: str, is_written: bool) -> None:
    (found,) = document(f"description: a: {value}").problems
    assert found.hint == (
        f"write description: 'a: {value}'" if is_written else "put the value of description in single quotes"
    )


@pytest.mark.requirement("ASG-13")
@each_row("lines", [
    "description: a: b\n  more", "description: a: b\n\n  c: d", "description: a: b\n- c", "description: a: b # c",
    "description: [a: b: c]: d", "description: &x a: b", "metadata:\n  note: a: b",
    "description: a: b\nlicense: 'never closed", "description: a: b\ndescription: c",
    'note: "begins\ndescription: a: b"\nlicense: c: d', "description: - a: b",
])  # fmt: skip
def test_what_may_mean_something_else_stays_an_error(lines: str) -> None:
    read = document(f"name: a\n{lines}")
    assert read.frontmatter is None
    assert {each.severity for each in read.problems} == {"error"}


@pytest.mark.hypothesis
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30), st.text("ab :#'-\"", max_size=20))
def test_what_is_read_is_what_is_written(one: str, other: str) -> None:
    """Never more and never less than the line holds."""
    value = f"x{other}: {one}"
    read = document(f"description: {value}")
    if read.frontmatter is not None and any(each.code == "yaml-colon" for each in read.problems):
        assert read.frontmatter["description"] == value.strip()


@each_row("shape", ["a: b: c\n", "a: b: c", "a: ", ":", "a:\t", " \n", "a: '' "])
def test_it_takes_steps_as_long_as_the_text(shape: str) -> None:
    assert growth(lambda times: lambda: document(shape * times), 300) <= 6
