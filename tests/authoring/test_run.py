"""`run`: a script as a server would run it, and what it may see."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mcp_skills_server.cli import cli
from mcp_skills_server.errors import RequestError, UsageError
from wire import write_skill

SCRIPT = 'import os, sys\nprint(sys.argv[1:], os.environ.get("HIDDEN"))\nsys.exit(3)\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_skill(tmp_path / "greet", scripts__hello_py=SCRIPT)
    return tmp_path


def command(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["run", *map(str, arguments)], standalone_mode=False)


def test_a_script_runs_with_its_arguments_and_its_exit_code(
    root: Path, sandbox_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDDEN", "key")
    done = command(root, "greet", "scripts/hello.py", "--sandbox", sandbox_mode, "--", "a", "--b")
    assert (done.stdout, done.return_value) == ("['a', '--b'] None\n", 3)


def test_what_it_may_see_is_explained_and_nothing_runs(
    root: Path, sandbox_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_MINE", "a-very-secret-value")
    (root / "greet/skill.toml").write_text("")
    done = command(root, "greet", "scripts/hello.py", "--sandbox", sandbox_mode, "--explain")
    assert done.return_value == 0
    lines = {line.partition(":")[0] for line in done.stdout.splitlines()}
    assert {"command", "sandbox", "network", "variable", "limit"} <= lines
    assert "hello.py" in done.stdout and "a-very-secret-value" not in done.stdout


@pytest.mark.parametrize(
    ("skill", "script", "message"),
    [("nobody", "scripts/hello.py", "'list' shows"), ("greet", "scripts/no.py", "its scripts are scripts/hello.py")],
)
def test_what_is_not_there_is_one_line(root: Path, skill: str, script: str, message: str, sandbox_mode: str) -> None:
    done = command(root, skill, script, "--sandbox", sandbox_mode)
    assert isinstance(done.exception, RequestError | UsageError) and message in str(done.exception)
