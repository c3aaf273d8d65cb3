"""`validate` of many skills: the same in several processes as in one, and none of them is left, whatever ends it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

from mcp_skills_server.catalog.registry import Registry
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

    checking._processors = lambda: 2
    checking.check.__kwdefaults__["few"] = 0
    threading.Thread(target=strike, daemon=True).start()
    main(["validate", sys.argv[1]])
"""


def start(root: Path, strike: str) -> subprocess.Popen[str]:
    """`validate` in a process group of its own, which does this as soon as there are processes that check."""
    for number in range(120):
        write_skill(root / f"skill-{number}", notes_md="see [it](missing.md)")
    driver = root.parent / "driver.py"
    driver.write_text(DRIVER.format(strike=strike))
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


def test_several_processes_find_what_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_processors", lambda: 2)
    monkeypatch.setattr(checking, "_CHUNK", 7)
    with Registry([FIXTURES, FIXTURES.parent / "broken"]) as registry:
        skills = list(registry.snapshot.skills.values())
        alone = checking.check(registry, skills)
        assert len(skills) > 7 and alone
        assert checking.check(registry, skills, few=0) == alone


posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and process groups")


@posix
def test_a_process_that_is_killed_is_one_line(tmp_path: Path) -> None:
    done = start(tmp_path / "skills", "os.kill(children[0].pid, signal.SIGKILL)")
    out, err = done.communicate(timeout=DEADLINE)
    assert (done.returncode, out) == (2, "")
    assert err.startswith("mcp-skills-server: a process that checked skills was killed") and err.count("\n") == 1
    assert is_gone(done.pid)


@posix
def test_an_interrupt_ends_all_processes_and_none_complains(tmp_path: Path) -> None:
    done = start(tmp_path / "skills", "os.killpg(0, signal.SIGINT)")
    _, err = done.communicate(timeout=DEADLINE)
    assert done.returncode == 130 and "Traceback" not in err, err
    assert is_gone(done.pid)


@posix
def test_no_process_outlives_the_command(tmp_path: Path) -> None:
    done = start(tmp_path / "skills", "os.kill(os.getpid(), signal.SIGKILL)")
    done.communicate(timeout=DEADLINE)
    assert done.returncode == -9 and is_gone(done.pid)
