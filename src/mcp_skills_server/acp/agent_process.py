"""The one module of this package that starts a program: the agent that the operator named, and nothing else.

The agent has our stderr and environment, its own process group, and pipes for stdin and stdout. Nothing of it outlives
us: whoever of its group is left when it has ended is asked to end, and then made to.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import IO, Final, cast

from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.model import printable

_WINDOWS: Final = sys.platform == "win32"
_SIGNALLED: Final = 128
_PR_SET_PDEATHSIG: Final = 1
_LOOK_S: Final = 0.5
_KILL_S: Final = 1.0
"""Between SIGTERM and SIGKILL."""
_SWEEP_S: Final = 0.5
"""How long what an agent leaves behind has between the two."""


class NotStartedError(SkillsServerError):
    """The agent's program could not be started."""


class AgentProcess:
    """An agent that runs.

    Args:
        command: the program, as a shell would find it, and its arguments.

    Attributes:
        stdin: the descriptor to write to.
        stdout: the descriptor to read from.
        ended: set as soon as it is known to have ended.

    Raises:
        NotStartedError: there is no such program, or it may not be run.
    """

    def __init__(self, command: Sequence[str]) -> None:
        # Only Windows does not look for `npx.cmd` by itself when `npx` is asked for.
        program = (shutil.which(command[0]) or command[0]) if _WINDOWS else command[0]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the operator's own command, and no shell
                [program, *command[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                process_group=None if _WINDOWS else 0,
                preexec_fn=_ends_with_us() if sys.platform == "linux" else None,  # noqa: PLW1509 - see there
            )
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            if (
                isinstance(error, PermissionError)
                and not os.path.dirname(program)
                and not shutil.which(program, os.F_OK)
            ):
                reason = os.strerror(errno.ENOENT)  # it was a folder of PATH that may not be entered
            raise NotStartedError(f"{printable(command[0])}: the agent cannot be started: {reason}") from None
        self.stdin = cast("IO[bytes]", self._process.stdin).fileno()
        self.stdout = cast("IO[bytes]", self._process.stdout).fileno()
        self.ended = Event()

    def close_stdin(self) -> None:
        """Tell the agent that nothing more comes."""
        with suppress(OSError):
            cast("IO[bytes]", self._process.stdin).close()

    def close_stdout(self) -> None:
        """Tell the agent that nobody listens any more."""
        with suppress(OSError):
            cast("IO[bytes]", self._process.stdout).close()

    def wait(self) -> int:
        """Wait for its end: its exit code, 128 and the signal's number if one ended it."""
        # Of a signal that comes just before a call that blocks the handler runs behind that call: none blocks for long.
        waiter = Thread(target=self._process.wait, name="acp-agent", daemon=True)
        waiter.start()
        while waiter.is_alive():
            waiter.join(_LOOK_S)
        code = self._process.wait()
        self.ended.set()
        return _SIGNALLED - code if code < 0 else code

    def signal(self, number: int) -> None:
        """Hand a signal on to the agent and its group."""
        if _WINDOWS:
            with suppress(OSError):
                self._process.terminate()
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def end(self) -> None:
        """Ask it to end, give it a moment, make it end."""
        self.signal(signal.SIGTERM)
        if not _WINDOWS:
            self.signal(signal.SIGCONT)  # a stopped process hears of nothing else
        if not self.ended.wait(_KILL_S):
            self._kill()

    def sweep(self) -> None:
        """End what is left of its group, once it has ended itself."""
        if _WINDOWS or not self._is_there():
            return
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        deadline = time.monotonic() + _SWEEP_S
        while self._is_there() and time.monotonic() < deadline:
            time.sleep(0.01)
        self._kill()

    def _kill(self) -> None:
        if _WINDOWS:
            with suppress(OSError):
                self._process.kill()
        else:
            self.signal(signal.SIGKILL)

    def _is_there(self) -> bool:
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def _ends_with_us() -> Callable[[], None]:
    """Return what has the kernel send SIGTERM to the agent if this process is killed and can no longer do it itself.

    It runs between fork and exec, which is safe while this process has no other thread: the agent is started before
    the first one. The kernel sends the signal when the thread that called this ends, and that is the main thread.
    """
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # killed in between
            os._exit(_SIGNALLED + signal.SIGTERM)

    return tie
