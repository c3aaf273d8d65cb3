"""README, docs and the generated reference: their commands, links, options and Python programs work."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from tools.reference import man, pages

import mcp_skills_server
from commands.calls import run
from mcp_skills_server.cli import COMMANDS, cli
from mcp_skills_server.codes import CODES
from tables import each_row
from wire import DEADLINE, FIXTURES, ROOT

PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("deploy/**/*.md")]
PROGRAMS = ("mcp-skills-server ", "make ", "npx ", "curl ", "git ", "pip ", "python ", "docker ", "oras ")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHELLS = ("", "sh", "bash", "console")
GRAMMAR = re.compile(r"\.\.\.|…|\[[A-Z]|\bHOST\b|<[a-z]")
"""Placeholders of a usage line, which cannot be pasted."""


def commands(text: str) -> list[str]:
    """Return the shell lines of a page, with continuation lines joined."""
    blocks = (block for language, block in BLOCK.findall(text) if language in SHELLS)
    found = (line for block in blocks for line in re.sub(r"\\\n *", " ", block).splitlines())
    return [line for line in found if line.startswith(PROGRAMS)]


@each_row("page", PAGES)
def test_every_command_of_a_code_block_can_be_pasted(page: Path) -> None:
    for line in commands(page.read_text(encoding="utf-8")):
        if "$(" in line or "<<" in line or line.count("'") % 2:
            continue
        command = " ".join(shlex.split(line, comments=True))
        bare = re.sub(r"#.*", "", line).rstrip()
        assert not GRAMMAR.search(command), line
        assert not re.search(r"\S {3,}\S", bare), f"words without a '#' before them: {line}"


@each_row("path", re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
def test_module_that_contributing_names_exists(path: str) -> None:
    assert (ROOT / path).is_file() or (ROOT / "src" / "mcp_skills_server" / path).is_file()


LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


@each_row("page", PAGES)
def test_every_link_to_a_page_resolves(page: Path) -> None:
    for path, anchor in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if "//" not in path:
            target = page.parent / path if path else page
            assert target.exists(), path
            if anchor:
                headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", target.read_text(encoding="utf-8")), re.MULTILINE)
                slugs = {re.sub(r"[^\w\s-]", "", each.lower()).replace(" ", "-") for each in headings}
                assert anchor in slugs, (path, anchor)


def parameters(words: Sequence[str]) -> set[str]:
    command: click.Command | None = cli
    context = click.Context(cli)
    for word in words[1:]:
        if not isinstance(command, click.Group):
            break
        command = command.get_command(context, word)
    assert command is not None, words
    return {name for each in command.get_params(context) for name in (*each.opts, *each.secondary_opts)}


@each_row("page", PAGES)
def test_every_documented_option_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for line in commands(text):
        if line.startswith("mcp-skills-server "):
            words = shlex.split(line, comments=True)
            ours = words[: words.index("--")] if "--" in words else words
            given = {word.partition("=")[0] for word in ours if word.startswith("--")}
            assert given <= parameters(words) | {"--version"}, line
    if page.parent.name == "docs" and page.name != "requirements.md":
        named = set(re.findall(r"`(--[a-z][a-z-]+)(?![\w-])", BLOCK.sub("", text)))
        assert named <= {name for command in COMMANDS for name in parameters(["", command])} | FOREIGN | OF_GROUPS


FOREIGN = {
    "--allow-tool", "--allowed-tools", "--auto-approve", "--build-arg", "--enable", "--init",
    "--skip-git-repo-check", "--skip-trust", "--tmpfs", "--ulimit", "--yolo",
}  # fmt: skip
"""Options of other programs."""
OF_GROUPS = {"--root", "--scripts", "--group", "--expires", "--message", "--digest", "--revoke", "--file", "--version"}
"""Options of `token new`, `config grants`, `proposals`, `scripts` and of the program."""


@each_row(("page", "wanted"), [
    ("README.md", ["list", "list", "validate", "install", "new"]), ("docs/index.md", ["validate", "install"]),
    ("docs/tutorial.md", ["new", "validate", "show", "install", "install"]),
])  # fmt: skip
def test_commands_of_readme_and_tutorial_run_in_order(page: str, wanted: list[str], tmp_path: Path) -> None:
    ran: list[str] = []
    shutil.copytree(FIXTURES / "csv-profiling", tmp_path / "skills" / "csv-profiling")
    for line in commands((ROOT / page).read_text(encoding="utf-8")):
        program, command, *rest = shlex.split(line, comments=True)
        if program == "mcp-skills-server" and command != "ui":  # `ui` runs until it is stopped
            words = [command, *(each.replace("~", str(tmp_path)) for each in rest)]
            assert run(*words, cwd=tmp_path / "skills", HOME=str(tmp_path)).returncode == 0
            ran.append(command)
    assert ran == wanted
    assert '"serve"' in "".join(path.read_text() for path in tmp_path.rglob("claude_desktop_config.json"))


REFERENCE = ROOT / "docs" / "reference.md"
MANUAL = ROOT / "docs" / "mcp-skills-server.1"
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAMES = sorted({*mcp_skills_server.__all__} - {"__version__"})


def programs(page: Path) -> list[str]:
    return PYTHON.findall(page.read_text(encoding="utf-8"))


def test_reference_has_every_exported_name_once() -> None:
    named = re.findall(r"^::: mcp_skills_server\.(\w+)$", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == NAMES


@pytest.mark.anyio
@pytest.mark.needs_program("bwrap")
async def test_reference_examples_use_every_exported_name_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(FIXTURES, tmp_path / "skills")
    monkeypatch.chdir(tmp_path)
    text = "\n".join(programs(REFERENCE))
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    assert [each for each in NAMES if each not in used] == []
    code = compile(text, REFERENCE.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    result = eval(code, {"__name__": "reference"})
    if inspect.isawaitable(result):
        await result


def test_generated_pages_have_every_option_and_code() -> None:
    generated = pages()
    assert [code for code in CODES if f"| `{code}` |" not in generated["codes.md"]] == []
    named = set(re.findall(r"`(--[a-z-]+)", generated["options.md"]))
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert {each for option in command.params for each in option.opts if each.startswith("--")} <= named, name
    assert re.search(
        r"^\| `--page-size` .*\| `MCP_SKILLS_PAGE_SIZE` \| `50` \|.*\| serve", generated["options.md"], re.MULTILINE
    )


@each_row(("name", "text"), [*pages().items(), (MANUAL.name, man())])
def test_generated_page_is_up_to_date(name: str, text: str) -> None:
    """`make golden` rewrites it."""
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text


@each_row("page", sorted(ROOT.glob("docs/*.md")))
def test_imports_of_documented_programs_exist(page: Path) -> None:
    for program in programs(page):
        tree = compile(program, page.name, "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(mcp_skills_server.__name__):
                module = importlib.import_module(node.module or "")
                assert [each.name for each in node.names if not hasattr(module, each.name)] == [], page.name


def test_demo_shows_a_question_its_skill_an_edit_and_the_command_for_ones_own_folder() -> None:
    words = [sys.executable, str(ROOT / "tools" / "demo.py")]
    environment = {**os.environ, "DEMO_STAY": "0"}
    pipe = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    done = subprocess.run(words, env=environment, timeout=DEADLINE, text=True, cwd=ROOT, check=False, **pipe)
    assert done.returncode == 0, done.stderr
    for part in (
        "reads unasked", "- csv-profiling: ", "Which columns of sales.csv", "| # CSV profiling",
        "instructions end now with: 'Name the column with most gaps first.'", "install claude-desktop ~/skills\n",
    ):  # fmt: skip
        assert part in done.stdout, part


OLD_TERM = re.compile(r"\b(?:left out|leaves? [\w ,]*out|in no listing)\b(?! of skills)", re.IGNORECASE)
ADVICE = re.compile(r"\b(?:or|and|to) leave|(?:^|[.;,] )leave", re.IGNORECASE)
"""A hint says what to leave out of a command or a file."""


def test_texts_say_not_listed_or_not_served_but_never_left_out() -> None:
    """Two terms for two states: models still get what is not listed, nobody gets what is not served."""
    source = ROOT / "src" / "mcp_skills_server"
    pages = [*PAGES, *source.rglob("*.html"), *ROOT.glob("deploy/**/*.yaml"), *ROOT.glob("deploy/**/*.json")]
    texts = [(path, path.read_text(encoding="utf-8")) for path in pages]
    for path in source.rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        texts += [(path, str(node.value)) for node in nodes if isinstance(node, ast.Constant)]
    lines = ((path.name, line) for path, text in texts if path.name != "requirements.md" for line in text.splitlines())
    assert [(name, line) for name, line in lines if OLD_TERM.search(line) and not ADVICE.search(line)] == []
