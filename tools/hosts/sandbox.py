"""Where the hosts run: an empty home, no network but loopback, a time limit, an end by process id."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LIMIT: Final = 120
"""Seconds of one run."""
_DEAD: Final = "http://127.0.0.1:9"
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1


@dataclass(frozen=True)
class Ended:
    """How a run ended. `code` is None when the time was over."""

    code: int | None
    out: str
    err: str

    def reason(self) -> str:
        """The last words of a run that went wrong."""
        words = (self.err.strip() or self.out.strip() or "it said nothing").splitlines()
        end = f"not ended after {LIMIT} s" if self.code is None else f"ended with {self.code}"
        return f"{end}: {words[-1].strip()[:300]}"


def alone() -> list[str]:
    """Words that start a program in a network namespace of its own; nothing where that cannot be had."""
    program = shutil.which("unshare")
    if program is None:
        return []
    words = [program, "-n"] if os.geteuid() == 0 else [program, "-r", "-n"]
    done = subprocess.run([*words, "true"], capture_output=True, check=False, timeout=LIMIT)
    return words if done.returncode == 0 else []


def loopback_up() -> None:
    """Raise loopback, which is down in a new namespace."""
    with socket.socket() as handle:
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def environment(home: Path, path: Sequence[Path], more: Mapping[str, str], *, namespaced: bool) -> dict[str, str]:
    """A home of its own and nothing of the caller's but the system's programs."""
    said = {
        "HOME": str(home),
        "PATH": os.pathsep.join([*map(str, path), "/usr/local/bin", "/usr/bin", "/bin"]),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_PROXY": "127.0.0.1,localhost",
        **more,
    }
    if not namespaced:
        said |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), _DEAD)
    return said


def run(command: Sequence[str | Path], env: Mapping[str, str], folder: Path, limit: float = LIMIT) -> Ended:
    """Run a program to its end or for `limit` seconds; what it started and left behind ends with it."""
    process = subprocess.Popen(
        [str(word) for word in command],
        env=dict(env),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        _end(process.pid)
        out, err = process.communicate()
        code = None
    finally:
        _end(process.pid)
    return Ended(code, out, err)


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def reenter(words: Sequence[str], arguments: Sequence[str], root: Path) -> int:
    """This command again, inside; its exit code."""
    command = [*words, sys.executable, "-m", "tools.hosts", "--inside", *arguments]
    return subprocess.run(command, cwd=root, check=False).returncode
