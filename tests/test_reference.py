"""The generated reference (library, options, codes), the manual page, and the Python programs of all pages."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shutil
from pathlib import Path

import click
import pytest
from tools.reference import man, pages

import mcp_skills_server
from mcp_skills_server.cli import COMMANDS, cli
from mcp_skills_server.codes import CODES
from tables import each_row
from wire import FIXTURES, ROOT

PAGE = ROOT / "docs" / "reference.md"
MANUAL = ROOT / "docs" / "mcp-skills-server.1"
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAMES = sorted({*mcp_skills_server.__all__} - {"__version__"})


def programs(page: Path) -> list[str]:
    """Return the Python blocks of a page."""
    return PYTHON.findall(page.read_text(encoding="utf-8"))


def test_reference_has_every_exported_name_once() -> None:
    named = re.findall(r"^::: mcp_skills_server\.(\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == NAMES


@pytest.mark.anyio
@pytest.mark.needs_program("bwrap")
async def test_reference_examples_use_every_exported_name_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(FIXTURES, tmp_path / "skills")
    monkeypatch.chdir(tmp_path)
    text = "\n".join(programs(PAGE))
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    assert [each for each in NAMES if each not in used] == []
    code = compile(text, PAGE.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
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
    assert "| `no-token` | `web/guards.py` | `tests/web/test_guards.py::" in generated["threats.md"]


def test_manual_page_is_up_to_date() -> None:
    """`make golden` rewrites it."""
    assert MANUAL.read_text(encoding="utf-8") == man()


@each_row("page", sorted(ROOT.glob("docs/*.md")))
def test_imports_of_documented_programs_exist(page: Path) -> None:
    for program in programs(page):
        tree = compile(program, page.name, "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(mcp_skills_server.__name__):
                module = importlib.import_module(node.module or "")
                assert [each.name for each in node.names if not hasattr(module, each.name)] == [], page.name
