"""Start, hints at a terminal, signals and end of long-running commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from catalog.forest import skills, write_files
from commands.calls import run, terminal
from forkserver import Popen
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.commands.opening import make_watcher
from mcp_skills_server.commands.options import WatchOptions
from tables import each_row
from wire import COMMAND, DEADLINE, FIXTURES, ROOT, write_skill

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")


@each_row(("command", "number"), [
    (["serve"], signal.SIGTERM), (["serve", "--transport", "http"], signal.SIGINT), (["rpc"], signal.SIGINT),
    (["ui", "--no-open"], signal.SIGTERM),
])  # fmt: skip
def test_signal_during_startup_ends_the_command_with_0(command: list[str], number: signal.Signals) -> None:
    """The signal arrives before the event loop handles it: when the command sets up its log."""
    code = (
        "import os, sys\nfrom mcp_skills_server.commands import logs\n"
        f"logs.log_to_stderr = lambda *_, **__: os.kill(os.getpid(), {number:d})\n"
        "from mcp_skills_server.cli import main\nmain(sys.argv[1:])\n"
    )
    words = [sys.executable, "-c", code, *command, str(FIXTURES)]
    done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_sighup_reloads_unless_the_process_ignores_it() -> None:
    hangup = "on_hangup(lambda: print('reload', flush=True), None)\nos.kill(os.getpid(), signal.SIGHUP)\n"
    code = "import os, signal\nfrom mcp_skills_server.commands.running import on_hangup\n"
    code += f"{hangup}signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{hangup}print('end')\n"
    assert subprocess.check_output([sys.executable, "-c", code], timeout=DEADLINE) == b"reload\nend\n"


def test_index_is_saved_without_a_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index(tmp_path / "index", least=1)
    saved = threading.Event()
    save = index.save
    monkeypatch.setattr(index, "save", lambda *arguments: save(*arguments) and saved.set())
    registry = Registry([write_files(tmp_path / "root", skills("one"))], index=index)
    assert make_watcher(registry, WatchOptions(watch=False)) is None
    registry.load()
    assert saved.wait(DEADLINE)


@each_row(("words", "hints", "code"), [
    (["serve", FIXTURES], ["MCP host", "stdin", f"install HOST {FIXTURES}", f"list {FIXTURES}", "inspector"], 0),
    (["acp", "--", "cat"], ["an editor that speaks ACP"], 128 + signal.SIGINT),
])  # fmt: skip
def test_server_at_a_terminal_explains_that_it_waits(words: list[object], hints: list[str], code: int) -> None:
    with terminal(*words, controls=True) as screen:
        screen.read("Ctrl-C")
        for hint in hints:
            screen.read(hint)
        screen.type("\x03")
        assert screen.end() == code


def test_rpc_at_a_terminal_shows_a_request_to_type() -> None:
    with terminal("rpc", FIXTURES, controls=True) as screen:
        screen.read("what it serves")
        assert "Skills Protocol" in screen.seen and "Ctrl-C" in screen.seen
        line = next(line for line in screen.seen.splitlines() if "type {" in line)
        screen.type(line.partition("type ")[2] + "\n")
        screen.read('"result"')
        screen.type("\x03")
        assert screen.end() == 0


@each_row("words", [["serve"], ["rpc"], ["acp", "--", "cat"]])
def test_server_without_a_terminal_prints_no_hint(words: list[str]) -> None:
    done = run(words[0], FIXTURES, *words[1:])
    assert done.returncode == 0 and "waiting" not in done.stderr and "to try it" not in done.stderr


def test_publish_shows_progress_only_at_a_terminal(tmp_path: Path) -> None:
    for number in range(12):
        write_skill(tmp_path / "skills" / f"s{number}", a_md="a")
    words = ["publish", tmp_path / "skills", "--output", tmp_path / "public", "--cache-dir", tmp_path / "cache"]
    with terminal(*words) as screen:
        assert screen.end() == 0
    for word in ("reading the skills", "packing", "writing", "100%", "published 12 skills"):
        assert word in screen.seen, screen.seen
    (tmp_path / "skills" / "s1" / "a.md").write_bytes(b"other")
    done = run(*words)
    assert done.stderr.count("\n") == 1 and "%" not in done.stderr


@each_row(("words", "message"), [
    (["ui"], "no skills in the usual folders"), (["ui", "no-such-folder"], "no-such-folder"),
    (["ui", "fixtures/skills", "--usage", "mysql:x"], "write sqlite:FILE"),
])  # fmt: skip
def test_ui_reports_invalid_usage_in_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    done = run(*words, HOME=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr


def test_documents_install_no_extra_from_an_index() -> None:
    """The name is not registered on PyPI, where another party could take it."""
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")):
        assert "mcp-skills-server[" not in path.read_text(), path


def test_ui_explains_its_one_time_address_and_how_to_end(tmp_path: Path) -> None:
    folder = write_skill(tmp_path / ".claude/skills/a").parent
    words, environment = [*COMMAND, "ui", "--no-open"], {**os.environ, "HOME": str(tmp_path)}
    pipe = subprocess.PIPE
    with Popen(
        words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=tmp_path
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        address = process.stdout.readline()
        hints = [process.stderr.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=DEADLINE) == ("", "") and process.returncode == 0
    assert address.startswith("http://127.0.0.1:")
    assert hints == [
        f"mcp-skills-server: no ROOT is given; taking the usual folders: {folder} (1 skill)\n",
        "mcp-skills-server: this address lets in one browser, once; the page has a button for another\n",
        "mcp-skills-server: Ctrl-C ends it\n",
    ]
