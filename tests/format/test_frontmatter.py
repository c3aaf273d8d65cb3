"""SKILL.md bytes in; frontmatter, body, lines and problems out."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_skills_server.codes import standing
from mcp_skills_server.format.frontmatter import Document, parse
from mcp_skills_server.model import Json, Standing
from steps import growth
from tables import each_row

from .skill_md import codes, document, each_parser, typed

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


def test_the_fields_of_metadata_keep_their_lines_and_what_was_written():
    found = document("metadata:\n  version: 1.10\n  tags: [a, b]\n  'on': yes\n  more: {version: 2}\nversion: 3")
    assert found.metadata == {"version": (3, "1.10"), "tags": (4, None), "on": (5, "yes"), "more": (6, None)}


@pytest.mark.requirement("AS-2")
@each_row("raw", [b"---\n---\n", b"---\n---", b"---\n\n---\nText", b"---\n# note\n---\n", b"---\n~\n---\n"])
def test_empty_frontmatter_is_a_problem_of_its_own(raw: bytes):
    found = parse(raw)
    assert found.frontmatter is None
    assert codes(found) == ["frontmatter-not-mapping"]
    assert "empty" in found.problems[0].message


@pytest.mark.requirement("AS-2")
@each_row(
    ("raw", "words"),
    [
        (b"", "empty"), (b" \n\n", "empty"), (b"# Title\n", "does not begin"),
        (b"name: a\n---\n", "does not begin"), (b" ---\nname: a\n---\n", "blanks before"),
        (b" --- \nname: a\n---\n", "blanks before"), (b"\n---\nname: a\n---\n", "blank lines"),
        (b"----\nname: a\n----\n", "does not begin"), (b"--- # note\nname: a\n---\n", "does not begin"),
        (b"+++\nname = 'a'\n+++\n", "does not begin"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_begin_with_a_fence_has_no_frontmatter(raw: bytes, words: str):
    found = parse(raw)
    assert (found.frontmatter, codes(found), found.problems[0].line) == (None, ["frontmatter-missing"], 1)
    assert words in found.problems[0].message


@pytest.mark.requirement("AS-2", "ASG-12")
@each_row(("raw", "line"), [
    (b"---", 1), (b"---\n", 1), (b"---\nname: a\n\n# Title\n", 1), (b"---\nname: a\n  ---\nText\n", 3),
    (b"---\nname: a\n  --- \nText\n", 3), (b"---\nname: a\n--- # note\nText\n", 1),
    (b"---\nname: a --- b\nText ---\n", 1),
])  # fmt: skip
def test_a_frontmatter_that_never_ends_is_told_with_the_line_that_nearly_ends_it(raw: bytes, line: int):
    found = parse(raw)
    assert (found.frontmatter, codes(found), found.problems[0].line) == (None, ["frontmatter-unclosed"], line)


@pytest.mark.requirement("ASG-12", "S40-13")
@each_row(
    ("lines", "expected"),
    [
        ("description: first --- then", "first --- then"),
        ("description: '---'", "---"),
        ("description: |\n  above\n  ---\n  below", "above\n---\nbelow\n"),
        ("description: >-\n  above\n   ---\n  below", "above\n ---\nbelow"),
        ("description: first\n  --- then", "first --- then"),
        ("description: -----", "-----"),
    ],
)
def test_only_a_whole_line_is_a_fence(lines: str, expected: str):
    found = document(lines)
    assert (found.frontmatter, found.body, codes(found)) == ({"description": expected}, "Read on.", [])


# Bytes


@pytest.mark.requirement("S76-7", "ASG-12")
@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_of_other_systems_read_like_lf(end: str):
    text = "---\nname: a\ndescription: |\n  one\n  two\n---\n\nText\nmore\n"
    found = parse(text.replace("\n", end).encode())
    assert found == parse(text.encode())
    assert found.frontmatter == {"name": "a", "description": "one\ntwo\n"}
    assert (found.body, found.body_line) == ("Text\nmore", 8)


def test_a_byte_order_mark_is_passed_over():
    assert parse(b"\xef\xbb\xbf---\nname: a\n---\nText\n") == parse(b"---\nname: a\n---\nText\n")


@pytest.mark.requirement("S76-7")
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_that_is_not_utf_8_is_named_with_its_line(mark: bytes):
    found = parse(mark + b"---\nname: a\n---\n\nCaf\xe9\n")
    assert (found.frontmatter, codes(found), found.problems[0].line) == (None, ["not-utf8"], 5)
    assert "0xe9" in found.problems[0].message


def test_a_nul_byte_is_named_with_its_line():
    found = parse(b"---\nname: a\n---\n\none\ntwo \0\n")
    assert (found.frontmatter, codes(found), found.problems[0].line) == (None, ["nul-byte"], 6)


# Wild input


def _check_promises(found: Document) -> None:
    json.dumps([found.frontmatter, found.body], allow_nan=False, ensure_ascii=False).encode("utf-8")
    assert (found.frontmatter is None) == (standing(found.problems) is Standing.UNUSABLE)
    assert all(each.line is None or each.line >= 1 for each in found.problems)
    assert "\r" not in found.body
    assert found.body == found.body.rstrip()


@pytest.mark.requirement("S40-13")
@given(st.binary(max_size=200))
def test_any_bytes_give_a_document_that_json_can_hold(raw: bytes):
    _check_promises(parse(raw))


@pytest.mark.requirement("S40-13")
@given(st.text(max_size=80), st.text(max_size=40))
@example("v: \x85", "")
@example('v: "\\ud800"', "")
@example("v: &a [*a]", "")
def test_any_frontmatter_gives_a_document_that_json_can_hold(text: str, body: str):
    _check_promises(parse(f"---\n{text}\n---\n{body}".encode()))


_SIGNS = [*"ab[]{}|>'\"#%@\n\té\u2028", ": ", "- ", "? ", ", ", "  ", "&x ", "*x", "!t ", "<<", "---", "...", "\\u"]
_VALUES = ["1", ".nan", "0x1", "12:30", "~"]
_YAML_PARTS = st.lists(st.sampled_from(_SIGNS + _VALUES), max_size=40).map("".join)


@given(_YAML_PARTS)
def test_any_pieces_of_yaml_give_a_document_that_json_can_hold(text: str):
    _check_promises(document(text))


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
    found = parse(f"---\n{json.dumps(fields, ensure_ascii=False)}\n---\nRead on.\n".encode())
    assert typed(found.frontmatter) == typed(fields)
    assert found.body == "Read on."


@pytest.mark.requirement("ASG-13")
@each_row("value", [
    "Two steps: first this, then that.", "Use when: asked", "Ends with a colon:", "It's here: 'so' and \"so\"",
    "a: b: c", "https://example.com is fine: really",
])  # fmt: skip
def test_an_unquoted_colon_is_a_warning_with_the_line_to_write(value: str) -> None:
    """What is advised is YAML that means the same."""
    text = "---\nname: a\ndescription: {}\nlicense: MIT\n---\nBody.\n"
    read = parse(text.format(value).encode())
    assert read.frontmatter == {"name": "a", "description": value, "license": "MIT"}
    (found,) = read.problems
    assert (found.code, found.severity, found.line) == ("yaml-colon", "warning", 3)
    assert standing(read.problems) is Standing.LENIENT
    fixed = text.replace("description: {}", found.hint.removeprefix("write "))
    again = parse(fixed.encode())
    assert (again.frontmatter, again.problems) == (read.frontmatter, ())
    assert (again.body, again.body_line, again.lines) == (read.body, read.body_line, read.lines)


def test_every_such_line_is_reported() -> None:
    read = parse(b"---\nname: a\ndescription: x: y\n\nlicense: MIT: yes\n---\n")
    assert [(each.code, each.line) for each in read.problems] == [("yaml-colon", 3), ("yaml-colon", 5)]


@pytest.mark.requirement("ASG-13")
@each_row("lines", [
    "description: a: b\n  more", "description: a: b\n\n  c: d", "description: a: b\n- c", "description: a: b # c",
    "description: [a: b: c]: d", "description: &x a: b", "metadata:\n  note: a: b",
    "description: a: b\nlicense: 'never closed", "description: a: b\ndescription: c",
    'note: "begins\ndescription: a: b"\nlicense: c: d', "description: - a: b",
])  # fmt: skip
def test_what_may_mean_something_else_stays_an_error(lines: str) -> None:
    read = parse(f"---\nname: a\n{lines}\n---\nBody.\n".encode())
    assert read.frontmatter is None
    assert {each.severity for each in read.problems} == {"error"}


@pytest.mark.hypothesis
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30), st.text("ab :#'-\"", max_size=20))
def test_what_is_read_is_what_is_written(one: str, other: str) -> None:
    """Never more and never less than the line holds."""
    value = f"x{other}: {one}"
    read = parse(f"---\nname: a\ndescription: {value}\n---\n".encode())
    if read.frontmatter is not None and any(each.code == "yaml-colon" for each in read.problems):
        assert read.frontmatter["description"] == value.strip()


@each_row("shape", ["a: b: c\n", "a: b: c", "a: ", ":", "a:\t", " \n", "a: '' "])
def test_it_takes_steps_as_long_as_the_text(shape: str) -> None:
    assert growth(lambda times: lambda: parse(f"---\n{shape * times}\n---\n".encode()), 300) <= 6
