"""Automatic fixes of a SKILL.md."""

from __future__ import annotations

from mcp_skills_server.codes import problem
from mcp_skills_server.format.frontmatter import parse
from mcp_skills_server.model import Problem
from mcp_skills_server.validation.fixes import fix_text
from mcp_skills_server.validation.rules import check
from tables import each_row

HEAD = "---\nname: a\ndescription: Counts the rows of tables. Use when somebody asks for sums.\n"


def fix(fields: str) -> tuple[str, list[Problem], list[Problem]]:
    """Fix a skill with these fields; return the fixed fields, all problems, and the fixed problems."""
    text = f"{HEAD}{fields}\n---\nText.\n"
    document = parse(text.encode())
    found = [*document.problems, *check(document, "a")]
    after, done = fix_text(text, found, "a")
    return after.removeprefix(HEAD).removesuffix("\n---\nText.\n"), sorted(found, key=lambda each: each.line or 0), done


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
    ("license: yes # sure", 'license: "yes" # sure'), ("author: me\t# or not", 'metadata:\n  author: "me"\t# or not'),
    ("metadata:\n  x: 1 # one", 'metadata:\n  x: "1" # one'),
    ("author: 'a # b' # c", "metadata:\n  author: 'a # b' # c"),
    ("allowed-tools: 'Read, Bash(it''s)'", "allowed-tools: Read Bash(it's)"),
    ('allowed-tools: ["Bash(a #b)", Read]', 'allowed-tools: "Bash(a #b) Read"'),
    ('"allowed-tools": [Read, Grep]', "allowed-tools: Read Grep"),
    ("metadata:\n  x: [1, b]", 'metadata:\n  x: "1, b"'),
    ("metadata: {tags: [a], m: 8}", 'metadata:\n  tags: "a"\n  m: "8"'),
    ("metadata:\n  x:\n  - a\n  - b\n  y: z", 'metadata:\n  x: "a, b"\n  y: z'),
    ("metadata:\n  x:\n    k: 1\nlicense: MIT", "metadata:\n  x: '{\"k\":1}'\nlicense: MIT"),
    ("metadata: {a: b, m: 1.10}", 'metadata:\n  a: "b"\n  m: "1.10"'),
    ("argument-hint: [--verbose]", 'argument-hint: "[--verbose]"'),
])  # fmt: skip
def test_fix_rewrites_the_form_of_a_field(fields: str, expected: str) -> None:
    after, found, done = fix(fields)
    assert after == expected
    assert sorted(done) == sorted(found)


@each_row("fields", [
    "author: [me, you]", "metadata:\n  x: [1, 2] # why", "metadata: {x: 1} # why", "metadata: {x: 1,\n  y: 2}",
    "author:\n  name: me", "author: one\n  and two",
    "author: me\nmetadata: {x: y}", "license: 2", "author: me\nmetadata:\n  author: x", "allowed-tools: Bash(git, jq",
    "license: MIT\nauthor: one\n  and two\nmetadata:\n  x: y",
    "disable-model-invocation: true", "allowed-tools: Read Grep", "license: MIT",
    "allowed-tools: [Read, Grep] # why", "allowed-tools: Read, Grep # why", 'allowed-tools: "Read, Grep" # why',
    "allowed-tools:\n  - Read # why\n  - Grep", "allowed-tools: # why\n  - Read", "author: # nobody", "License: MIT",
    "Allowed_Tools: Read", "allowed-tools:\n  - Read\n\n  - Grep", "allowed-tools: [My tool]",
    "license: MIT\nauthor: one\n\n  and two\nmetadata:\n  x: y",

    "context: fork\nagent: Explore\nmodel: opus\neffort: high\npaths: src\nwhen_to_use: When it rains.\nshell: bash",
    "descripton: x", "Model: opus", "argument-hint: [a, \"b\"]",
])  # fmt: skip
def test_fix_leaves_what_only_the_author_can_decide(fields: str) -> None:
    after, _, done = fix(fields)
    assert (after, done) == (fields, [])


def test_field_is_moved_into_the_frontmatter_and_not_into_an_example_of_it() -> None:
    body = "---\n```yaml\nmetadata:\n  x: y\n```\nmetadata is text.\n"
    text = f"{HEAD}author: me\n{body}"
    after, done = fix_text(text, check(parse(text.encode()), "a"), "a")
    assert (after, len(done)) == (f'{HEAD}metadata:\n  author: "me"\n{body}', 1)


def test_fix_keeps_the_line_ends_of_windows() -> None:
    fields = "license: yes\nallowed-tools:\n  - Read\n  - Grep\nauthor: me\nmetadata:\n  x: 1"
    text = f"{HEAD}{fields}\n---\nText\u200b.\n"
    found = [*parse(text.encode()).problems, *check(parse(text.encode()), "a"), problem("hidden-characters", "", 1)]
    after, done = fix_text(text, found, "a")
    assert len(done) == 5 and "\u200b" not in after
    assert fix_text(text.replace("\n", "\r\n"), found, "a") == (after.replace("\n", "\r\n"), done)


def test_problem_outside_the_lines_of_the_file_is_not_fixed() -> None:
    first = problem("hidden-characters", "", 1)
    assert fix_text("a\u200b", [first], "a") == ("a", [first])
    for line in (0, 2, None):
        assert fix_text("a\u200b", [problem("hidden-characters", "", line)], "a") == ("a\u200b", [])
