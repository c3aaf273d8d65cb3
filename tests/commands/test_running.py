"""How long-running commands begin, what a person at a terminal is shown, and how they end."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from catalog.forest import plant, skills
from commands.calls import run, terminal
from forkserver import Popen
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.commands.opening import make_watcher
from mcp_skills_server.commands.options import WatchOptions
from mcp_skills_server.commands.running import settle_after_load
from tables import each_row
from wire import COMMAND, DEADLINE, FIXTURES, ROOT, write_skill

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")


@each_row("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_command_that_only_begins_and_that_is_no_failure(number: signal.Signals) -> None:
    code = "import os, signal\nfrom mcp_skills_server.commands.running import end_on_signals\nend_on_signals()\n"
    code += f"os.kill(os.getpid(), {number:d})\nwhile True: signal.pause()\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=DEADLINE, check=True)
    assert done.stderr == b""


def test_a_hangup_has_things_read_again_unless_it_is_ignored() -> None:
    again = "on_hangup(lambda: print('again', flush=True), None)\nos.kill(os.getpid(), signal.SIGHUP)\n"
    code = "import os, signal\nfrom mcp_skills_server.commands.running import on_hangup\n"
    code += f"{again}signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{again}print('there')\n"
    assert subprocess.check_output([sys.executable, "-c", code], timeout=DEADLINE) == b"again\nthere\n"


def test_garbage_is_collected_once_the_first_scan_is_done(tmp_path: Path) -> None:
    tree, frozen = plant(tmp_path / "root", skills("one")), gc.get_freeze_count()
    registry = Registry([tree])
    settle_after_load(registry)
    try:
        gc.disable()
        registry.load()
        assert gc.isenabled() and gc.get_freeze_count() > frozen
        gc.disable()
        plant(tree, skills("two"))
        registry.refresh()
        assert len(registry.snapshot.skills) == 2 and not gc.isenabled()
    finally:
        gc.enable()


def test_without_a_watch_an_index_is_left_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, saved = Index(tmp_path / "index", least=1), threading.Event()
    real = files.save
    monkeypatch.setattr(files, "save", lambda *arguments: real(*arguments) and saved.set())
    registry = Registry([plant(tmp_path / "root", skills("one"))], index=files)
    assert make_watcher(registry, WatchOptions(watch=False)) is None
    registry.load()
    assert saved.wait(DEADLINE)


@each_row(("words", "said", "code"), [
    (["serve", FIXTURES], ["MCP host", "stdin", f"install HOST {FIXTURES}", f"list {FIXTURES}", "inspector"], 0),
    (["acp", "--", "cat"], ["an editor that speaks ACP"], 128 + signal.SIGINT),
])  # fmt: skip
def test_a_server_says_that_it_waits_and_how_to_try_it(words: list[object], said: list[str], code: int) -> None:
    with terminal(*words) as person:
        person.read("Ctrl-C")
        for each in said:
            person.read(each)
        person.type("\x03")
        assert person.end() == code


def test_rpc_says_that_it_waits_and_what_can_be_typed() -> None:
    with terminal("rpc", FIXTURES) as person:
        person.read("what it serves")
        assert "Skills Protocol" in person.seen and "Ctrl-C" in person.seen
        line = next(line for line in person.seen.splitlines() if "type {" in line)
        person.type(line.partition("type ")[2] + "\n")
        person.read('"result"')
        person.type("\x03")
        assert person.end() == 0


@each_row("words", [["serve"], ["rpc"], ["acp", "--", "cat"]])
def test_a_host_is_told_nothing_of_that(words: list[str]) -> None:
    done = run(words[0], FIXTURES, *words[1:])
    assert done.returncode == 0 and "waiting" not in done.stderr and "to try it" not in done.stderr


def test_publish_shows_how_far_it_is_and_only_there(tmp_path: Path) -> None:
    for number in range(12):
        write_skill(tmp_path / "skills" / f"s{number}", a_md="a")
    words = ["publish", tmp_path / "skills", "--output", tmp_path / "public", "--cache-dir", tmp_path / "cache"]
    with terminal(*words) as person:
        assert person.end() == 0
    for word in ("reading the skills", "packing", "writing", "100%", "published 12 skills"):
        assert word in person.seen, person.seen
    (tmp_path / "skills" / "s1" / "a.md").write_bytes(b"other")
    done = run(*words)
    assert done.stderr.count("\n") == 1 and "%" not in done.stderr


@each_row(("words", "said"), [
    (["ui"], "there is nothing to serve"), (["ui", "no-such-folder"], "no-such-folder"),
    (["ui", "fixtures/skills", "--usage", "mysql:x"], "write sqlite:FILE"),
])  # fmt: skip
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
