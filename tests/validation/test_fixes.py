"""Safe corrections of a SKILL.md: what is written otherwise afterwards, and what is left to its author."""

from __future__ import annotations

from mcp_skills_server.codes import problem
from mcp_skills_server.format.frontmatter import parse
from mcp_skills_server.model import Problem
from mcp_skills_server.validation.fixes import fix_text
from mcp_skills_server.validation.rules import check
from tables import each_row

HEAD = "---\nname: a\ndescription: Counts the rows of tables. Use when somebody asks for sums.\n"


def fixed(fields: str) -> tuple[str, list[Problem], list[Problem]]:
    """Correct a skill with these fields; return what stands in their place, what was wrong and what is corrected."""
    text = f"{HEAD}{fields}\n---\nText.\n"
    document = parse(text.encode())
    found = [*document.problems, *check(document, "a")]
    made, done = fix_text(text, found, "a")
    return made.removeprefix(HEAD).removesuffix("\n---\nText.\n"), sorted(found, key=lambda each: each.line or 0), done


@each_row(("fields", "expected"), [
    ("allowed-tools: Bash(git add, git commit), Read", "allowed-tools: Bash(git add, git commit) Read"),
    ('allowed-tools: ["Read", "Bash(git:*)"]', 'allowed-tools: "Read Bash(git:*)"'),
    ("allowed-tools:\n  - Read\n  - Grep", "allowed-tools: Read Grep"),
    ("allowed-tools:\n  - Read\nlicense: MIT", "allowed-tools: Read\nlicense: MIT"),
    ("author: me\nallowed-tools: [Read, Grep]", 'metadata:\n  author: "me"\nallowed-tools: Read Grep'),
    ("allowed-tools: Read, Grep\nlicense: MIT", "allowed-tools: Read Grep\nlicense: MIT"),
    ("allowed-tools:\n  - Read\n  - Grep\nmetadata:\n  x: 1", 'allowed-tools: Read Grep\nmetadata:\n  x: "1"'),
    ("compatibility: It's \"x\": yes", "compatibility: 'It''s \"x\": yes'"),
    ("metadata:\n  version: 1.10", 'metadata:\n  version: "1.10"'), ("author: me", 'metadata:\n  author: "me"'),
    ("author: me\nmetadata:\n    x: y", 'metadata:\n    author: "me"\n    x: y'),
    ("metadata:\n  x: y\nauthor: 'me'", "metadata:\n  author: 'me'\n  x: y"),
])  # fmt: skip
def test_how_a_field_is_written_is_corrected(fields: str, expected: str) -> None:
    made, found, done = fixed(fields)
    assert (made, done) == (expected, found)


@each_row("fields", [
    "author: [me, you]", "metadata:\n  x: [1, 2]", "author:\n  name: me", "author: one\n  and two",
    "author: me\nmetadata: {x: y}", "license: 2", "author: me\nmetadata:\n  author: x", "allowed-tools: Bash(git, jq",
    "license: MIT\nauthor: one\n  and two\nmetadata:\n  x: y",
    "disable-model-invocation: true", "allowed-tools: Read Grep", "license: MIT",
])  # fmt: skip
def test_what_is_for_its_author_to_decide_stays(fields: str) -> None:
    assert fixed(fields)[::2] == (fields, [])


def test_a_line_that_the_file_does_not_have_is_not_corrected() -> None:
    one = problem("hidden-characters", "", 1)
    assert fix_text("a\u200b", [one], "a") == ("a", [one])
    for line in (0, 2, None):
        assert fix_text("a\u200b", [problem("hidden-characters", "", line)], "a") == ("a\u200b", [])
