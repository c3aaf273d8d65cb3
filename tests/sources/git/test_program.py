"""The program git as it is started: what reaches its stdin, whichever descriptors the server has open."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from wire import DEADLINE

pytestmark = pytest.mark.needs_program("git")
_SCRIPT = """
import os, sys
from pathlib import Path
from mcp_skills_server.sources.git.program import Git
out = os.dup2(1, 40)  # what it says is read there, also where nothing else is open
os.closerange(int(sys.argv[2]), 20)
os.write(out, Git(Path(sys.argv[1]), "", "none").run("hash-object", "--stdin", seconds=10, given=b"given\\n"))
"""


@pytest.mark.parametrize("first", [0, 3])
def test_what_is_given_to_git_is_its_stdin_whichever_descriptors_are_free(first: int, tmp_path: Path) -> None:
    """A server whose lowest descriptors are free would give them to what is meant for git."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(tmp_path / "none"), str(first)],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.stdout.strip() == _id_of(b"given\n"), done.stderr


def _id_of(raw: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(raw) + raw, usedforsecurity=False).hexdigest()
