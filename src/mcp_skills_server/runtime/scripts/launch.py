"""The launcher of scripts: a program that sets its own resource limits and then `exec`s a script.

Python code between `fork` and `exec` is unsafe in a server with threads, so the limits are set
after an `exec`. The launcher imports only the standard library: `python -I -S launch.py
LIMIT=NUMBER ... -- PROGRAM ARGUMENT ...`. A failed start is one line on stderr and exit code 127.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence

_KEYCTL = {"x86_64": 250, "ppc64le": 271, "s390x": 280} | dict.fromkeys(
    ("aarch64", "riscv64", "loongarch64"), 219
)
"""The system call number of `keyctl` by `uname -m`."""
_JOIN_SESSION_KEYRING = 1
NOT_STARTED = 127
"""The exit code of a command that cannot be started, as in shells."""


def main(words: Sequence[str]) -> int:
    """Set the limits and `exec` the program; return an exit code only if that fails.

    `words` are `NAME=NUMBER` for each `resource.RLIMIT_NAME`, then `--`, the program and its
    arguments. `USER=NUMBER` is the user that the program will run as, for NPROC; `CGROUP=PATH` the
    file that adds this process to a cgroup.
    """
    split = words.index("--")
    argv = [*words[split + 1 :]]
    values = dict(word.split("=", 1) for word in words[:split])
    if "CGROUP" in values:
        with open(values.pop("CGROUP"), "w") as file:
            file.write("0")
    limits = {name: int(number) for name, number in values.items()}
    user = limits.pop("USER", None)
    for name, most in limits.items():
        _limit(name, most, user)
    _prefer_for_oom_kill()
    wrong = _join_new_keyring()
    if wrong:
        return _failed(argv[0], f"no session keyring could be created: {wrong}")
    # Python ignores these signals, and `exec` keeps ignored signals: `yes | head` would not end.
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execve(argv[0], argv, os.environ)  # noqa: S606 - no shell, which is the point
    except OSError as error:
        return _failed(argv[0], str(error.strerror))


def _failed(program: str, reason: str) -> int:
    print(f"{program} cannot be started: {reason}", file=sys.stderr)
    return NOT_STARTED


def _limit(name: str, most: int, user: int | None) -> None:
    import resource  # late: Windows lacks it, and uses no launcher

    if name == "NPROC":
        running = _task_count(os.getuid() if user is None else user)
        if running is None:
            return
        most += running
    try:
        kind: int = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(kind, (most, most))
    except (AttributeError, OSError, ValueError):
        return  # this system lacks the limit


def _task_count(user: int) -> int | None:
    """Return a user's number of tasks, as NPROC counts them; None for root, or without /proc."""
    if user == 0 or not os.path.isdir("/proc/self/task"):
        return None
    count = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue  # the process ended meanwhile
    return count


def _join_new_keyring() -> str | None:
    """Join a new, empty session keyring, which hides the keys of the operator's session.

    Return the error, or None. It is no error if the kernel has no keyrings or a container denies
    them, because then none are shared.
    """
    number = _KEYCTL.get(os.uname().machine)
    if sys.platform != "linux" or sys.maxsize < 1 << 32 or number is None:
        return None
    try:
        import ctypes
    # A Python without ctypes. In the sandbox the seccomp filter denies access to keys as well.
    except ImportError:
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(*map(ctypes.c_long, (number, _JOIN_SESSION_KEYRING, 0))) >= 0:
        return None
    wrong = ctypes.get_errno()
    if wrong in (errno.ENOSYS, errno.EPERM, errno.EACCES):
        return None
    return os.strerror(wrong)


def _prefer_for_oom_kill() -> None:
    """Make the kernel's OOM killer prefer the script to the server."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        return  # not on this system


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
