"""A call beside this process gives what it gives here, whatever becomes of the fork."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from mcp_skills_server.commands import forks
from wire import DEADLINE

linux = pytest.mark.skipif(sys.platform != "linux", reason="forks")


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "processors", lambda: 2)


def in_new_process(program: str) -> subprocess.CompletedProcess[str]:
    """Run this where no other thread is; what is imported stands before it."""
    head = "import os, signal, time\nfrom mcp_skills_server.commands import forks\nforks.processors = lambda: 2\n"
    return subprocess.run(
        [sys.executable, "-c", head + program], capture_output=True, text=True, timeout=DEADLINE, check=False
    )


@linux
def test_the_call_is_made_once_and_elsewhere() -> None:
    done = in_new_process(
        "with forks.beside(lambda: [{'pid': os.getpid(), 'a': '\\udc80'}]) as result:\n"
        "    first, second = result(), result()\n"
        "assert first is second and first[0]['pid'] != os.getpid() and first[0]['a'] == '\\udc80'\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@linux
@pytest.mark.parametrize("failing", ["1 / 0", "os.kill(os.getpid(), signal.SIGKILL)", "object()", "os._exit(1)"])
def test_where_the_fork_fails_the_call_is_made_here(failing: str) -> None:
    done = in_new_process(
        f"here = os.getpid()\n"
        f"with forks.beside(lambda: 'here' if os.getpid() == here else ({failing})) as result:\n"
        "    assert result() == 'here'\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@linux
def test_no_fork_is_left() -> None:
    """Not after its end, and not where nobody waits for its result."""
    done = in_new_process(
        "with forks.beside(signal.pause):\n"
        "    pass\n"
        "try:\n"
        "    os.waitpid(-1, os.WNOHANG)\n"
        "except ChildProcessError:\n"
        "    print('none')\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "none\n", "")


@linux
def test_what_waits_to_be_printed_is_printed_once() -> None:
    done = in_new_process("print('one', end='')\nwith forks.beside(int) as result:\n    assert result() == 0\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "one", "")


def test_beside_a_thread_or_on_one_processor_it_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, args=(DEADLINE,))
    thread.start()
    try:
        with forks.beside(os.getpid) as result:
            assert result() == os.getpid()
    finally:
        end.set()
        thread.join()
    monkeypatch.setattr(forks, "processors", lambda: 1)
    with forks.beside(os.getpid) as result:
        assert result() == os.getpid()


@linux
def test_ctrl_c_is_for_the_process_that_has_the_fork() -> None:
    done = in_new_process(
        "def call():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return 'whole'\n"
        "here = os.getpid()\n"
        "with forks.beside(lambda: call() if os.getpid() != here else 'here') as result:\n"
        "    assert result() == 'whole'\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
