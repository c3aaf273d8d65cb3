"""File names that are never served."""

from __future__ import annotations

from mcp_skills_server.format.ignored import ignored, summarize, unserved

TREE = (
    ".github/workflows/ci.yml", ".gitignore", "README.md", "alpha/.envrc", "alpha/.git/config", "alpha/SKILL.md",
    "alpha/scripts/__pycache__/run.pyc", "alpha/scripts/run.py", ".claude/settings.json",
    ".claude/skills/beta/SKILL.md", ".claude/skills/beta/.vscode/tasks.json", ".git/hooks/gamma/SKILL.md",
)  # fmt: skip


def test_unserved_files_of_a_tree_are_found() -> None:
    plain = {"README.md", "alpha/SKILL.md", "alpha/scripts/run.py"}
    assert {*TREE} - {*unserved(TREE, hidden=False)} == plain
    assert {*TREE} - {*unserved(TREE, hidden=True)} == plain | {".claude/skills/beta/SKILL.md"}
    # The dot folder of a root that is itself a skill has no served skill.
    found = unserved(["SKILL.md", ".claude/skills/beta/SKILL.md", "more/SKILL.md"], hidden=True)
    assert found == [".claude/skills/beta/SKILL.md"]


def test_files_below_an_ignored_folder_of_a_skill_are_ignored() -> None:
    dropped = ["a/.git/b/c", "node_modules/x.js", "notes~"]
    assert ignored(["SKILL.md", *dropped, "a.b/c"]) == dropped


def test_summary_names_five_printable_paths_and_counts_the_rest() -> None:
    assert summarize([f"{number}\x1b[2J" for number in range(7)]).endswith("3\\u{1b}[2J, 4\\u{1b}[2J and 2 more")
