"""The launcher program, which starts a script with its limits."""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

import pytest

from mcp_skills_server.runtime.scripts import launch
from mcp_skills_server.runtime.scripts.processes import query
from mcp_skills_server.runtime.scripts.system_calls import numbers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="keys of the Linux kernel")

SEARCH = """\
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
KEYCTL = {KEYCTL}
print(libc.syscall(KEYCTL, 10, -3, b"user", b"mcp-skills-probe", 0) > 0)
"""
OPERATOR = """\
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall({KEYCTL}, 1, 0) < 0 or libc.syscall({ADD_KEY}, b"user", b"mcp-skills-probe", b"s", 1, -3) < 0:
    sys.exit(3)
for launcher in ([], [sys.executable, "-I", "-S", sys.argv[1], "CORE=0", "--"]):
    subprocess.run([*launcher, sys.executable, "-c", sys.argv[2]], check=True)
"""
NUMBERS = {"x86_64": (250, 248), "aarch64": (219, 217)}


def test_keyctl_numbers_equal_those_of_the_filter() -> None:
    for machine, column in (("x86_64", 0), ("aarch64", 1), ("riscv64", 1), ("loongarch64", 1)):
        assert launch._KEYCTL[machine] == numbers(column)["keyctl"]


def test_launcher_resets_signals_and_raises_oom_score() -> None:
    command = [sys.executable, "-I", "-S", launch.__file__, "CORE=0", "--", "/bin/cat"]
    score, status = query([*command, "/proc/self/oom_score_adj", "/proc/self/status"]).stdout.split("\n", 1)
    assert score == "1000"
    ignored = int(re.findall(r"SigIgn:\s+(\w+)", status)[0], 16)
    assert not ignored & (1 << 12 | 1 << 24)  # SIGPIPE and SIGXFSZ, which Python ignores


def test_missing_program_exits_with_127() -> None:
    done = query([sys.executable, "-I", "-S", launch.__file__, "CORE=0", "--", "/no/such/program"])
    assert done.returncode == 127
    assert done.stderr == "/no/such/program cannot be started: No such file or directory\n"


def test_script_cannot_read_keyring_of_operator(tmp_path: Path) -> None:
    """Regression: a script read the operator's key."""
    if platform.machine() not in NUMBERS:
        pytest.skip("the number of keyctl is not known here")
    keyctl, add_key = NUMBERS[platform.machine()]
    search = SEARCH.format(KEYCTL=keyctl)
    operator = tmp_path / "add_key.py"
    operator.write_text(OPERATOR.format(KEYCTL=keyctl, ADD_KEY=add_key))
    done = query([sys.executable, str(operator), launch.__file__, search])
    if done.returncode == 3:
        pytest.skip("the kernel refuses to add keys here")
    assert done.stdout.split() == ["True", "False"], done.stderr
