"""Safe corrections of a SKILL.md: what is written otherwise afterwards, and what is left to its author."""

from __future__ import annotations

from mcp_skills_server.format.frontmatter import parse
from mcp_skills_server.validation.fixes import fix_text
from mcp_skills_server.validation.rules import check
from tables import each_row

HEAD = "---\nname: a\ndescription: Counts the rows of tables. Use when somebody asks for sums.\n"


def fixed(fields: str) -> str:
    """Correct a skill with these fields; return what stands in their place."""
    text = f"{HEAD}{fields}\n---\nText.\n"
    document = parse(text.encode())
    made, done = fix_text(text, [*document.problems, *check(document, "a")], "a")
    assert bool(done) is (made != text)
    return made.removeprefix(HEAD).removesuffix("\n---\nText.\n")


@each_row(("fields", "expected"), [
    ("allowed-tools: Bash(git add, git commit), Read", "allowed-tools: Bash(git add, git commit) Read"),
    ('allowed-tools: ["Read", "Bash(git:*)"]', 'allowed-tools: "Read Bash(git:*)"'),
    ("allowed-tools:\n  - Read\n  - Grep", "allowed-tools: Read Grep"),
    ("allowed-tools:\n  - Read\nlicense: MIT", "allowed-tools: Read\nlicense: MIT"),
    ("allowed-tools: Read, Grep\nlicense: MIT", "allowed-tools: Read Grep\nlicense: MIT"),
    ("allowed-tools:\n  - Read\n  - Grep\nmetadata:\n  x: 1", 'allowed-tools: Read Grep\nmetadata:\n  x: "1"'),
    ("compatibility: It's \"x\": yes", "compatibility: 'It''s \"x\": yes'"),
    ("metadata:\n  version: 1.10", 'metadata:\n  version: "1.10"'), ("author: me", 'metadata:\n  author: "me"'),
    ("author: me\nmetadata:\n    x: y", 'metadata:\n    author: "me"\n    x: y'),
    ("metadata:\n  x: y\nauthor: 'me'", "metadata:\n  author: 'me'\n  x: y"),
])  # fmt: skip
def test_how_a_field_is_written_is_corrected(fields: str, expected: str) -> None:
    assert fixed(fields) == expected


@each_row("fields", [
    "author: [me, you]", "metadata:\n  x: [1, 2]", "author:\n  name: me", "author: one\n  and two",
    "author: me\nmetadata: {x: y}", "license: MIT\nauthor: one\n  and two\nmetadata:\n  x: y",
    "disable-model-invocation: true", "allowed-tools: Read Grep", "license: MIT",
])  # fmt: skip
def test_what_is_for_its_author_to_decide_stays(fields: str) -> None:
    assert fixed(fields) == fields
