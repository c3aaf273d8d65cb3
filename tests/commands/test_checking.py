"""`validate` of many skills: the same in several processes as in one, and none of them is left, whatever ends it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic

import pytest

from mcp_skills_server.commands import checking
from wire import DEADLINE, FIXTURES, ROOT, write_skill

DRIVER = """
import multiprocessing, os, signal, sys, threading

def strike():
    signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGINT}})  # the command has no thread that would take it
    # Of both: concurrent.futures waits for ever for one that starts while another one dies.
    while len(children := multiprocessing.active_children()) < 2:
        os.sched_yield()
    {strike}

if __name__ == "__main__":
    from mcp_skills_server.cli import main
    from mcp_skills_server.commands import checking

    checking.processors = lambda: 2
    checking.may_fork = lambda: {forks}
    checking.check.__kwdefaults__["few"] = 0
    threading.Thread(target=strike, daemon=True).start()
    main(["validate", sys.argv[1]])
"""


posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and process groups")
both = pytest.mark.parametrize("forks", [pytest.param(True, marks=posix, id="forked"), pytest.param(False, id="new")])

COMPARISON = """
import sys

if __name__ == "__main__":
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.commands import checking

    checking.processors = lambda: 2
    checking._CHUNK = 7
    with Registry(sys.argv[1:]) as registry:
        skills = list(registry.snapshot.skills.values())
        alone = checking.check(registry, skills)
        assert len(skills) > 7 and alone
        assert checking.may_fork() or sys.platform != "linux"
        checking.may_fork = lambda: {forks}
        assert checking.check(registry, skills, few=0) == alone
"""


def start(root: Path, strike: str, *, forks: bool) -> subprocess.Popen[str]:
    """`validate` in a process group of its own, which does this as soon as there are processes that check."""
    for number in range(120):
        write_skill(root / f"skill-{number}", notes_md="see [it](missing.md)")
    driver = root.parent / "driver.py"
    driver.write_text(DRIVER.format(strike=strike, forks=forks))
    return subprocess.Popen(
        [sys.executable, driver, root],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )


def is_gone(group: int) -> bool:
    """Whether no process of a group is left, after a while."""
    deadline = monotonic() + DEADLINE
    while monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        os.sched_yield()
    return False


@both
def test_several_processes_find_what_one_finds(tmp_path: Path, *, forks: bool) -> None:
    """In a process of its own, which has one thread as the command has: so it forks where that can be done."""
    driver = tmp_path / "driver.py"
    driver.write_text(COMPARISON.format(forks=forks))
    places = [FIXTURES, FIXTURES.parent / "broken"]
    done = subprocess.run([sys.executable, driver, *places], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@posix
@both
def test_a_process_that_is_killed_is_one_line(tmp_path: Path, *, forks: bool) -> None:
    done = start(tmp_path / "skills", "os.kill(children[0].pid, signal.SIGKILL)", forks=forks)
    out, err = done.communicate(timeout=DEADLINE)
    assert (done.returncode, out) == (2, "")
    assert err.startswith("mcp-skills-server: a process that checked skills was killed") and err.count("\n") == 1
    assert is_gone(done.pid)


@posix
@both
def test_an_interrupt_ends_all_processes_and_none_complains(tmp_path: Path, *, forks: bool) -> None:
    done = start(tmp_path / "skills", "os.killpg(0, signal.SIGINT)", forks=forks)
    _, err = done.communicate(timeout=DEADLINE)
    assert done.returncode == 130 and "Traceback" not in err, err
    assert is_gone(done.pid)


@posix
@both
def test_no_process_outlives_the_command(tmp_path: Path, *, forks: bool) -> None:
    done = start(tmp_path / "skills", "os.kill(os.getpid(), signal.SIGKILL)", forks=forks)
    done.communicate(timeout=DEADLINE)
    assert done.returncode == -9 and is_gone(done.pid)


def test_beside_a_thread_nothing_is_forked() -> None:
    """It could hold a lock, which nobody in the fork would ever give back."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait, args=(DEADLINE,))
    thread.start()
    try:
        assert not checking.may_fork()
    finally:
        end.set()
        thread.join()
