"""The last step before a script: a program of its own that limits itself and then becomes the
script.

Between `fork` and `exec` of a server with threads no Python may run, so the limits are set here,
after an `exec`. It imports nothing of this package and no third party: `python -I -S launch.py
LIMIT=NUMBER ... -- PROGRAM ARGUMENT ...`. What cannot be started is one line on stderr and exit
code 127.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence

_KEYCTL = {
    "x86_64": 250,
    "aarch64": 219,
    "riscv64": 219,
    "loongarch64": 219,
    "ppc64le": 271,
    "s390x": 280,
}
"""The number of `keyctl` by the processor's name."""
_JOIN_SESSION_KEYRING = 1
NOT_STARTED = 127
"""The exit code that a shell gives to a command that it cannot start."""


def main(words: Sequence[str]) -> int:
    """Set the limits, then become the program; returns only if that fails.

    `words` are `NAME=NUMBER` for each `resource.RLIMIT_NAME`, `USER=NUMBER` if the program will be
    another user, whose processes count, then `--`, the program and its arguments.
    """
    split = words.index("--")
    argv = [*words[split + 1 :]]
    limits = {
        name: int(number) for name, _, number in (word.partition("=") for word in words[:split])
    }
    user = limits.pop("USER", None)
    for name, most in limits.items():
        _limit(name, most, user)
    _offer_to_the_oom_killer()
    wrong = _leave_keys()
    if wrong:
        print(
            f"{argv[0]} cannot be started: it gets no keyring of its own: {wrong}", file=sys.stderr
        )
        return NOT_STARTED
    # This interpreter ignores them, and what is ignored stays so in the script: `yes | head` would
    # not end.
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execve(argv[0], argv, os.environ)  # noqa: S606 - no shell, which is the point
    except OSError as error:
        print(f"{argv[0]} cannot be started: {error.strerror}", file=sys.stderr)
    return NOT_STARTED


def _limit(name: str, most: int, user: int | None) -> None:
    import resource  # not on Windows, where nothing is launched

    if name == "NPROC":
        running = _running(os.getuid() if user is None else user)
        if running is None:
            return
        most += running
    kind: int = getattr(resource, f"RLIMIT_{name}")
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    try:
        resource.setrlimit(kind, (most, most))
    except (OSError, ValueError):
        return  # a system that does not know this limit


def _running(user: int) -> int | None:
    """Tasks that this user has now, for the kernel counts all; None where that cannot be known or
    limits nothing."""
    if user == 0 or not os.path.isdir("/proc/self/task"):
        return None
    count = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue  # it ended meanwhile
    return count


def _leave_keys() -> str | None:
    """Get a session keyring of our own, which is empty: keys of the operator's session are none of
    the script's.

    Returns why that failed, or None. Where the kernel has no keys, or a container denies them, none
    are shared.
    """
    number = _KEYCTL.get(os.uname().machine)
    if sys.platform != "linux" or sys.maxsize < 1 << 32 or number is None:
        return None
    try:
        import ctypes
    # a Python without it; in the sandbox the filter of system calls keeps the keys away as well
    except ImportError:
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.syscall(ctypes.c_long(number), ctypes.c_long(_JOIN_SESSION_KEYRING), ctypes.c_long(0))
        >= 0
    ):
        return None
    wrong = ctypes.get_errno()
    if wrong in (errno.ENOSYS, errno.EPERM, errno.EACCES):
        return None
    return os.strerror(wrong)


def _offer_to_the_oom_killer() -> None:
    """When the machine runs out of memory, let it be the script that goes and not the server."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        return  # there is none


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
