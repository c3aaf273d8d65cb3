"""`run`: a script as a server would run it, and what it may see."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands.calls import invoke, refusal
from tables import each_row
from wire import write_skill

SCRIPT = 'import os, sys\nprint(sys.argv[1:], os.environ.get("HIDDEN"))\nsys.exit(3)\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_skill(tmp_path / "greet", scripts__hello_py=SCRIPT, skill_toml="").parent


def test_a_script_runs_with_its_arguments_and_its_exit_code(
    root: Path, sandbox_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDDEN", "a-very-secret-value")
    words = ("run", root, "greet", "scripts/hello.py", "--sandbox", sandbox_mode)
    done = invoke(*words, "--", "a", "--b")
    assert (done.stdout, done.return_value) == ("['a', '--b'] None\n", 3)
    done = invoke(*words, "--explain")  # runs nothing
    lines = {line.partition(":")[0] for line in done.stdout.splitlines()}
    assert done.return_value == 0 and lines >= {"command", "sandbox", "network", "variable", "limit"}
    assert "hello.py" in done.stdout and "a-very-secret-value" not in done.stdout


@each_row(
    ("skill", "script", "message"),
    [("nobody", "scripts/hello.py", "'list' shows"), ("greet", "scripts/no.py", "its scripts are scripts/hello.py")],
)
def test_what_is_not_there_is_one_line(root: Path, skill: str, script: str, message: str, sandbox_mode: str) -> None:
    assert message in refusal("run", root, skill, script, "--sandbox", sandbox_mode)
