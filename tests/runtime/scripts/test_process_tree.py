"""A program and all that it has started are found and killed, also what has left its group and its family."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_skills_server.runtime.scripts.processes import TOKEN, ProcessTree, content, entries, family, having, lines

LINUX = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="processes are found by /proc")

CHILD = "import os, time, sys\nif os.fork(): pass\nsys.stdout.write('x'); sys.stdout.flush()\ntime.sleep(600)"
STRAY = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
os.write(1, str(os.getpid()).encode() + b" ")
time.sleep(600)
"""


@LINUX
def test_what_left_the_group_and_the_family_is_found_and_killed(tmp_path: Path) -> None:
    token = f"{os.getpid()}-{tmp_path.name}"
    env = {**os.environ, TOKEN: token}
    with subprocess.Popen(
        [sys.executable, "-c", STRAY], stdout=subprocess.PIPE, env=env, start_new_session=True
    ) as started:
        tree = ProcessTree(started.pid, token)
        try:
            assert started.stdout is not None
            seen = b""
            while seen.count(b" ") < 2:
                seen += os.read(started.stdout.fileno(), 64)
            pids = {int(each) for each in seen.split()}
            assert started.pid in pids and len(pids) == 2 and pids <= tree.processes()
        finally:
            tree.kill()
    assert list(having(TOKEN, token)) == []


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, start_new_session=True) as started:
        assert started.stdout is not None
        while len(os.read(started.stdout.fileno(), 1)) < 1 or len(list(family(started.pid))) < 2:
            assert started.poll() is None
        yield started
        os.killpg(started.pid, 9)


@LINUX
def test_a_family_is_all_that_descends_from_a_process(parent: subprocess.Popen[bytes]) -> None:
    found = list(family(parent.pid))
    assert found[0] == parent.pid and len(found) == 2
    assert list(family(1 << 30)) == [1 << 30]


@LINUX
def test_processes_are_found_by_a_variable_of_their_environment_and_its_whole_value_begins_it() -> None:
    code = "import os, time; os.write(1, b'x'); time.sleep(600)"
    env = {**os.environ, "F_MARK": f"of-{os.getpid()}"}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as started:
        try:
            assert started.stdout is not None and os.read(started.stdout.fileno(), 1) == b"x"
            assert list(having("F_MARK", f"of-{os.getpid()}")) == [started.pid]
            assert list(having("F_MARK", f"of-{os.getpid()}-not")) == []
        finally:
            started.kill()
    assert list(having("F_MARK", f"of-{os.getpid()}")) == []


def test_what_cannot_be_read_is_nothing(tmp_path: Path) -> None:
    assert (entries(str(tmp_path / "no")), content(str(tmp_path / "no")), lines(str(tmp_path / "no"))) == ([], b"", [])
    (tmp_path / "file").write_bytes(b"a\n\xffb\n")
    assert lines(str(tmp_path / "file")) == ["a", "\ufffdb"] and entries(str(tmp_path)) == ["file"]
