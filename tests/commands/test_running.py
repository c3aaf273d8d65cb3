"""How a command ends before its loop takes the signals over."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from catalog.forest import plant, skills
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.commands.opening import make_watcher
from mcp_skills_server.commands.options import WatchOptions
from wire import DEADLINE

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_command_that_only_begins_and_that_is_no_failure(number: signal.Signals) -> None:
    code = (
        "import signal\n"
        "from mcp_skills_server.commands.running import end_on_signals\n"
        "end_on_signals()\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(number)
            assert process.wait(DEADLINE) == 0 and process.stderr.read() == b""
        finally:
            process.kill()


def test_a_hangup_has_things_read_again_unless_it_is_ignored() -> None:
    read_again = "lambda: print('again', flush=True), None"
    code = (
        "import logging, os, signal\n"
        "from mcp_skills_server.commands.running import on_hangup\n"
        "logging.basicConfig(format='%(message)s')\n"
        f"on_hangup({read_again})\n"
        "os.kill(os.getpid(), signal.SIGHUP)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        f"on_hangup({read_again})\n"
        "os.kill(os.getpid(), signal.SIGHUP)\n"
        "print('there')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "again\nthere\n", "")


def test_without_a_watch_an_index_is_left_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, saved = Index(tmp_path / "index", least=1), threading.Event()
    real = files.save
    monkeypatch.setattr(files, "save", lambda *arguments: real(*arguments) and saved.set())
    registry = Registry([plant(tmp_path / "root", skills("one"))], index=files)
    assert make_watcher(registry, WatchOptions(watch=False)) is None
    registry.load()
    assert saved.wait(DEADLINE)
