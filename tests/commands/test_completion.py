"""`completion`, in the shells that are here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mcp_skills_server.cli import COMMANDS, cli
from tables import each_row
from wire import DEADLINE


@each_row("shell", ["bash", "zsh", "fish"])
def test_the_script_names_the_program(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell], prog_name="mcp-skills-server", standalone_mode=False)
    assert done.exception is None
    assert "mcp-skills-server" in done.output and "_MCP_SKILLS_SERVER_COMPLETE" in done.output


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    program = tmp_path / "mcp-skills-server"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mcp_skills_server "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    asked = """
        eval "$(mcp-skills-server completion bash)"
        complete() { COMPREPLY=(); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
                     _mcp_skills_server_completion mcp-skills-server
                     echo "${COMPREPLY[*]}"; }
        complete mcp-skills-server ""
        complete mcp-skills-server val
        complete mcp-skills-server serve --trans
    """
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", asked], env=environment, capture_output=True, timeout=DEADLINE, check=True)
    assert done.stdout.decode().split() == [*COMMANDS, "validate", "--transport"]
