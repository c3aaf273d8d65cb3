"""A plain value with a colon in it is read as text where it can be nothing else (ASG-13)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.codes import standing
from mcp_skills_server.format.frontmatter import parse
from mcp_skills_server.model import Standing
from steps import growth
from tables import each_row


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
