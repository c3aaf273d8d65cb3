"""`ui` and `--ui` as commands: what they refuse, and what a machine without the extra is told."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from commands.calls import run
from forkserver import Popen
from tables import each_row
from wire import COMMAND, DEADLINE, ROOT, write_skill


@each_row(
    ("words", "said"),
    [
        (["ui"], "there is nothing to serve"),
        (["ui", "no-such-folder"], "no-such-folder"),
        (["ui", "fixtures/skills", "--usage", "mysql:x"], "write sqlite:FILE"),
    ],
)
def test_what_cannot_be_shown_is_one_line(words: list[str], said: str) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1) and said in done.stderr


def test_extras_are_installed_in_one_way() -> None:
    """By the clone. The name is of nobody on an index, where somebody else may take it."""
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")):
        assert "mcp-skills-server[" not in path.read_text(), path


def test_it_says_that_the_address_works_once_and_how_to_end_it(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    words = [*COMMAND, "ui", "--no-open", str(tmp_path)]
    with Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        address, said = process.stdout.readline(), process.stderr.readline() + process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=DEADLINE) == ("", "") and process.returncode == 0
    assert address.startswith("http://127.0.0.1:") and said.splitlines() == [
        "mcp-skills-server: this address lets in one browser, once; start the command again for another",
        "mcp-skills-server: Ctrl-C ends it",
    ]
