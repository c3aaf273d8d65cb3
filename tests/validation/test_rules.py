"""The table of rules: what a rule needs, and what all of them say of one file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from format.broken import BROKEN
from mcp_skills_server.codes import CODES, Code, standing
from mcp_skills_server.format.frontmatter import Document, parse
from mcp_skills_server.model import Standing
from mcp_skills_server.validation import lint, rules, text
from mcp_skills_server.validation.rule import Finding, Rules, SkillMd
from mcp_skills_server.validation.rules import EXTENSION_FIELDS, SPECIFIED_FIELDS, check, check_deeply
from tables import each_row

from .build import SOUND, document, problems


def test_a_sound_skill_has_no_problem():
    assert problems(SOUND) == ()
    assert check_deeply(document(SOUND), ()) == ()


def test_what_could_not_be_read_is_not_judged_twice():
    broken = parse(b"---\nname: [\n---\n")
    assert check(broken, "a") == ()
    assert check_deeply(broken, ()) == ()


@pytest.mark.requirement("X-2", "S40-5", "ASG-14", "ASG-15")
@each_row(
    ("fields", "directory", "expected"),
    [
        (SOUND, "sound-skill", Standing.VALID),
        (SOUND | {"author": "x", "allowed-tools": ["Read"], "hooks": {}}, "sound-skill", Standing.VALID),
        (SOUND | {"metadata": {"a": 1}}, "sound-skill", Standing.LENIENT),
        (SOUND | {"compatibility": ""}, "sound-skill", Standing.LENIENT),
        (SOUND | {"license": 5}, "sound-skill", Standing.LENIENT),
        (SOUND, "other", Standing.LENIENT),
        (SOUND | {"name": "a" * 65}, "a" * 65, Standing.LENIENT),
        (SOUND | {"name": "Sound"}, "Sound", Standing.LENIENT),
        (SOUND | {"description": ""}, "sound-skill", Standing.LENIENT),
        (SOUND | {"description": "x" * 1025}, "sound-skill", Standing.LENIENT),
        ({"license": "MIT"}, "sound-skill", Standing.LENIENT),
    ],
)
def test_only_what_keeps_the_specification_stands_as_valid(fields: dict[str, Any], directory: str, expected: Standing):
    assert standing(problems(fields, directory)) is expected


@pytest.mark.requirement("ASG-18")
def test_everything_wrong_in_one_file_is_told_at_once():
    fields = {
        "name": "Not_This",
        "description": "x" * 1025,
        "license": 1,
        "compatibility": "",
        "metadata": {"a": 1},
        "allowed-tools": "A, B",
        "author": "x",
        "arguments": "y",
    }
    assert [(each.code, each.line) for each in problems(fields, "this", "")] == [
        ("name-characters", 2),
        ("name-mismatch", 2),
        ("description-length", 3),
        ("license-type", 4),
        ("compatibility-length", 5),
        ("allowed-tools-form", 7),
        ("metadata-type", 6),
        ("field-unknown", 8),
        ("field-type", 9),
        ("body-empty", 11),
    ]


_KEYS = st.sampled_from([*sorted(SPECIFIED_FIELDS | EXTENSION_FIELDS), "title", "version", "tags", "hooks", "x"])
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "src", "path", "uri", "tools", "prompts", "resources", "a"]), inner)
    ),
    max_leaves=8,
)


@given(st.dictionaries(_KEYS, _ANY), st.text(max_size=20), st.text(max_size=40))
def test_no_frontmatter_is_too_odd_to_be_judged(fields: dict[str, Any], directory: str, body: str):
    found = Document(fields, {}, body, 2, ())
    for each in (*check(found, directory), *check_deeply(found, [])):
        assert CODES[each.code].severity == each.severity
        assert each.line is not None
        assert "\n" not in each.message


RULES = [row for table in (rules.RULES, text.RULES, lint.NAMES, lint.CATALOG) for row in table.rows]
FOUND_ON_READING = {
    # Notes that take all files of a skill, or all skills.
    *("file-unused", "description-overlap"),
    # The parsers, which stay with what they parse.
    *("not-utf8", "nul-byte", "frontmatter-missing", "frontmatter-unclosed", "frontmatter-not-mapping", "yaml-syntax"),
    *("yaml-colon", "yaml-duplicate-key", "yaml-tag", "yaml-alias", "yaml-depth", "yaml-size", "yaml-value"),
    *("yaml-ambiguous", "yaml-key"),
    *("manifest-syntax", "manifest-field", "manifest-form", "manifest-incomplete", "manifest-runtime"),
    "manifest-disagrees",
    # The scan, which sees the disk.
    *(
        "skill-md-irregular",
        "skill-md-case",
        "skill-md-too-large",
        "unreadable",
        "root-missing",
        "shadowed",
        "too-deep",
    ),
    *("too-many-files", "too-many-bytes", "link-outside", "file-name", "file-name-backslash", "file-irregular"),
    *("hard-link", "too-deep"),
    # Sources and gates, which know what was fetched and what the operator asked for.
    *("source-refused", "commit-unsigned", "switched-off"),
    *("lock-missing", "lock-differs", "signature-missing", "signature-invalid", "signature-files", "signature-expired"),
}
"""The codes without a rule: whoever reads the bytes finds them, and nobody could look for them afterwards."""


def test_every_code_has_a_row_and_a_function_and_a_bundle() -> None:
    ruled = {each.code for each in RULES}
    assert ruled | FOUND_ON_READING == set(CODES) == {path.name for path in BROKEN.iterdir()}
    assert not ruled & FOUND_ON_READING


def test_no_function_stands_in_the_table_twice() -> None:
    assert len({each.check for each in RULES}) == len(RULES)


def test_a_rule_is_its_row_and_its_function_and_what_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = Rules[SkillMd]()
    tiny.rows = [*rules.RULES.rows]
    with pytest.raises(KeyError, match="'shouting' has no row"):
        tiny.rule("shouting")
    monkeypatch.setitem(CODES, "shouting", Code("warning", Standing.VALID, "", "write it in small letters"))

    @tiny.rule("shouting")
    def _shouting(skill: SkillMd) -> Iterator[Finding]:  # pyright: ignore[reportUnusedFunction]
        if skill.document.body.isupper():
            yield Finding("the body is all capitals", skill.document.body_line)

    monkeypatch.setattr(rules, "RULES", tiny)
    (found,) = problems(SOUND, body="READ ON.\n")
    assert str(found.at("a/SKILL.md", "a")) == (
        "a/SKILL.md:5: warning: the body is all capitals; write it in small letters [shouting]"
    )
    assert problems(SOUND) == ()
    assert check_deeply(document(SOUND, "READ ON.\n"), ()) == ()
