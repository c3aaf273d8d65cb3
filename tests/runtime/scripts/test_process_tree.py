"""A program and all that it has started are found and killed, also what has left its group and its family."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_skills_server.runtime.scripts.proc import having
from mcp_skills_server.runtime.scripts.process_tree import TOKEN, ProcessTree

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="processes are found by /proc")

STRAY = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
os.write(1, str(os.getpid()).encode() + b" ")
time.sleep(600)
"""


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
