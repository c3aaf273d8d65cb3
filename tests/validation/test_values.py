"""The rules of what fields hold: metadata, the shapes of extensions, characters that nobody sees."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_skills_server.format.frontmatter import parse
from mcp_skills_server.validation.rules import check
from tables import each_row

from .build import SOUND, codes, problems


@pytest.mark.requirement("AS-12")
@each_row("value", [{}, {"a": "b"}, {"a": "", "b c": "d"}])
def test_metadata_maps_text_to_text(value: Any):
    assert codes(SOUND | {"metadata": value}) == []


@pytest.mark.requirement("AS-12")
@each_row("value", [None, "a", ["a"], 3, {"a": 1}, {"a": None}, {"a": True}, {"a": ["b"]}, {"a": {}}])
def test_metadata_of_another_shape_is_an_error(value: Any):
    found = problems(SOUND | {"metadata": value})
    assert [(each.code, each.severity, each.line) for each in found] == [("metadata-type", "error", 4)]


@pytest.mark.requirement("AS-12", "ASG-18")
@each_row(
    ("written", "said", "hint"),
    [
        ("version: 1.10", "a number", 'write version: "1.10"'),
        ("version: 2", "a number", 'write version: "2"'),
        ("internal: true", "true or false", 'write internal: "true"'),
        ("tags: [a, b, 3]", "a list", 'write tags: "a, b, 3"'),
        ("empty:", "no value", 'write empty: ""'),
        ("empty: ~", "no value", 'write empty: ""'),
        ("host: {emoji: x, bins: [y]}", "a mapping", """write host: '{"emoji":"x","bins":["y"]}'"""),
        ('"on": 1', "a number", 'write "on": "1"'),
        ("quote: [it's, '\"']", "a list", 'write quote: "it\'s, \\""'),
        ("long: [" + "a, " * 100 + "b]", "a list", "write 'long' as one text in quotes"),
        ('"a\\n\\e": 1', "a number", 'write "a\\n\\u001b": "1"'),
    ],
)
def test_a_value_of_metadata_that_is_no_text_is_told_with_its_line_and_the_line_to_write(
    written: str, said: str, hint: str
):
    raw = f"---\nname: a\ndescription: {'d' * 30}\nmetadata:\n  good: x\n  {written}\n---\nText\n".encode()
    (found,) = (each for each in check(parse(raw), "a") if each.code != "hidden-characters")
    assert (found.code, found.line, found.hint) == ("metadata-type", 6, hint)
    assert f"metadata has {said} where text belongs" in found.message
    if not hint.endswith("as one text in quotes"):
        fixed = raw.decode().replace(written, hint.removeprefix("write "))
        assert [each for each in check(parse(fixed.encode()), "a") if each.code != "hidden-characters"] == []


@pytest.mark.requirement("AS-12")
def test_of_very_many_wrong_values_the_rest_is_counted():
    found = problems(SOUND | {"metadata": {f"k{number}": number for number in range(100)}})
    assert len(found) == 11 and "90 more values" in found[-1].message


@pytest.mark.requirement("AS-13")
@each_row(
    ("keys", "expected"),
    [(["a", "b"], 0), (["a", "A"], 1), (["a", "A", "b", "B"], 2), (["straße", "STRASSE"], 1)],
)
def test_metadata_keys_that_differ_by_case_alone_are_warned_of(keys: list[str], expected: int):
    assert codes(SOUND | {"metadata": dict.fromkeys(keys, "x")}) == ["metadata-keys"] * expected


@pytest.mark.requirement("S76-4", "S76-19")
def test_well_formed_fields_of_sep_2076_pass():
    fields = SOUND | {
        "arguments": [
            {"name": "topic", "title": "T", "description": "D", "required": True},
            {"name": "b", "default": ""},
        ],
        "dependencies": {
            "tools": ["search"],
            "prompts": ["summary", {"type": "ref/prompt", "name": "other"}],
            "resources": ["file:///a", {"type": "ref/resource", "uri": "skill://x/SKILL.md"}],
        },
        "icons": [{"src": "assets/icon.png", "mimeType": "image/png"}],
        "files": [{"path": "a.md", "title": "A", "description": "D", "required": False}],
    }
    assert problems(fields) == ()


@pytest.mark.requirement("S76-4")
@each_row(
    ("key", "value"),
    [
        ("arguments", "topic"),
        ("arguments", {"topic": {}}),
        ("arguments", ["topic"]),
        ("arguments", [{}]),
        ("arguments", [{"name": ""}]),
        ("arguments", [{"name": 7}]),
        ("arguments", [{"name": "a"}, {"name": "a"}]),
        ("arguments", [{"name": "a", "required": "yes"}]),
        ("arguments", [{"name": "a", "default": 3}]),
        ("arguments", [{"name": "a", "title": None}]),
        ("icons", "icon.png"),
        ("icons", [{"mimeType": "image/png"}]),
        ("icons", [{"src": "a.png", "mimeType": 1}]),
        ("files", [{"title": "no path"}]),
        ("files", [{"path": "a", "required": 1}]),
        ("dependencies", ["search"]),
        ("dependencies", {"tools": "search"}),
        ("dependencies", {"tools": [{"name": "search"}]}),
        ("dependencies", {"prompts": [{"uri": "x"}]}),
        ("dependencies", {"resources": [{"name": "x"}]}),
        ("dependencies", {"resources": [3]}),
    ],
)
def test_fields_of_sep_2076_of_another_shape_are_warned_of(key: str, value: Any):
    found = problems(SOUND | {key: value})
    assert [(each.code, each.line) for each in found] == [("field-type", 4)]


@pytest.mark.requirement("S76-19")
@each_row(
    ("written", "as_text"),
    [
        ("title: T", 'title: "T"'),
        ("title: 1", 'title: "1"'),
        ("version: 1.0", 'version: "1.0"'),
        ("version: 1.10", 'version: "1.10"'),
        ("version: '2'", 'version: "2"'),
        ("tags: [a, b]", 'tags: "a, b"'),
        ("author: {name: n}", """author: '{"name":"n"}'"""),
        ("internal: true", 'internal: "true"'),
    ],
)
def test_a_field_that_belongs_below_metadata_has_one_warning_that_says_what_to_write(written: str, as_text: str):
    head = f"---\nname: a\ndescription: Tells how this is done and when to use it.\n{written}\n---\nDo it.\n"
    (found,) = check(parse(head.encode()), "a")
    assert (found.code, found.line) == ("field-unknown", 4)
    assert found.hint == f"write {as_text} below 'metadata:', since strict validators refuse it here"


@each_row(
    ("lines", "field"),
    [
        ('description: "Does it. \\U000E0049\\U000E0067"', "description"),
        ('metadata:\n  deep: [{note: "a\\u200Bb"}]', "metadata"),
        ('metadata:\n  "a\\u00ADb": text', "metadata"),
        ('"no\\u3164te": text', "'note'"),
        ('license: "\\x1B[2J"', "license"),
    ],
)
def test_what_an_escape_hides_is_found_at_the_scan(lines: str, field: str):
    """The bytes of the file show nothing of it; the values that a model is shown do (11.19)."""
    described = "" if "description" in lines else "description: Does something with tables.\n"
    found = check(parse(f"---\nname: a\n{described}{lines}\n---\nText\n".encode()), "a")
    (hidden,) = (each for each in found if each.code == "hidden-characters")
    assert hidden.line == (3 if not described else 4)
    assert field in hidden.message and "U+" in hidden.message and hidden.message.isprintable()
    assert ("(2 in this field)" in hidden.message) is (lines.count("\\U") == 2)
    assert hidden.message.endswith("(2 in this field)") or "in this field" not in hidden.message


@pytest.mark.requirement("S76-4")
@pytest.mark.parametrize(("source", "fine"), [("assets/icon.png", True), ("javascript:alert(1)", False)])
def test_an_icon_from_where_no_page_may_take_it_is_reported_with_its_line(source: str, fine: bool):
    found = problems(SOUND | {"icons": [{"src": "a.png"}, {"src": source}]})
    expected = [] if fine else [("icon-source", 4, f"icon 2 comes from {source!r}")]
    assert [(each.code, each.line, each.message) for each in found] == expected
