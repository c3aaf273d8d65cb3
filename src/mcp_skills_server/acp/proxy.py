"""ACP proxy between editor and agent: relays bytes unchanged, and inserts messages about skills.

Each direction has a thread that reads, writes, and only then reads again, so backpressure reaches
that direction's writer alone. Our messages are inserted between lines of the agent. If that fails,
the bytes still pass, and the fault is logged once.

This is the package's only module that starts a program, the operator's agent. The agent inherits
stderr and environment, and has its own process group and pipes for stdin and stdout. After it ends,
its group's remaining processes get SIGTERM, then SIGKILL.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import IO, TYPE_CHECKING, Final, TypeVar, cast

from mcp_skills_server.acp.conversation import Conversation
from mcp_skills_server.dialects import acp
from mcp_skills_server.dialects.acp import AvailableSkill
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.model import printable
from mcp_skills_server.runtime.scripts.launch import NOT_STARTED
from mcp_skills_server.transport import LineBuffer, claim_stdio, read, wait_for_hang_up, write

if TYPE_CHECKING:
    from mcp_skills_server.catalog.views import Views

_T = TypeVar("_T")
logger = logging.getLogger(__name__)
_MAX_SETUP: Final = 256 << 10
"""The longest message to the agent that is buffered, in bytes; session setups are shorter."""
_PIECE: Final = 4096
"""Bytes of one write after the editor left: each finished write proves that it still reads."""
_LINGER_S: Final = 0.5
"""Seconds to wait for output after the agent ended while its pipe is still open."""
_OPENING_S: Final = 5.0
"""Seconds that a session setup waits for the skills to be opened."""
_POLL_S: Final = 0.02
_WINDOWS: Final = sys.platform == "win32"
_SIGNAL_EXIT_BASE: Final = 128
_PR_SET_PDEATHSIG: Final = 1
_WAIT_S: Final = 0.5
_KILL_S: Final = 1.0
"""Seconds between SIGTERM and SIGKILL."""


class NotStartedError(SkillsServerError):
    """The agent's program could not be started."""


class AgentProcess:
    """A running agent process with the descriptors of its stdin and stdout.

    Raises:
        NotStartedError: the program does not exist, or may not be executed.
    """

    def __init__(self, command: Sequence[str]) -> None:
        program = command[0]
        if _WINDOWS:  # Popen does not find `npx.cmd` for `npx` by itself
            program = shutil.which(program) or program
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
            reason = getattr(error, "strerror", None) or str(error)
            is_denied = isinstance(error, PermissionError) and not os.path.dirname(program)
            if is_denied and not shutil.which(program, os.F_OK):
                # caused by a folder of PATH without permission
                reason = os.strerror(errno.ENOENT)
            message = f"{printable(command[0])}: the agent cannot be started: {reason}"
            raise NotStartedError(message) from None
        self.stdin = cast("IO[bytes]", self._process.stdin).fileno()
        self.stdout = cast("IO[bytes]", self._process.stdout).fileno()
        self.ended = Event()

    def close_stdin(self) -> None:
        """Close the agent's stdin, which signals the end of input."""
        with suppress(OSError):
            cast("IO[bytes]", self._process.stdin).close()

    def close_stdout(self) -> None:
        """Close the agent's stdout, because the editor no longer reads."""
        with suppress(OSError):
            cast("IO[bytes]", self._process.stdout).close()

    def wait(self) -> int:
        """Wait for the agent's end, and return its exit code, or 128 plus the signal's number."""
        # Poll: Python handles a signal that precedes a blocking call only after that call.
        waiter = Thread(target=self._process.wait, name="acp-agent", daemon=True)
        waiter.start()
        while waiter.is_alive():
            waiter.join(_WAIT_S)
        code = self._process.wait()
        self.ended.set()
        if code < 0:
            code = _SIGNAL_EXIT_BASE - code
        return code

    def signal(self, number: int) -> None:
        """Send a signal to the agent and its process group."""
        if _WINDOWS:
            with suppress(OSError):
                self._process.terminate()
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def end(self) -> None:
        """Send SIGTERM, and SIGKILL after `_KILL_S` seconds."""
        self.signal(signal.SIGTERM)
        if not _WINDOWS:
            self.signal(signal.SIGCONT)  # else a stopped process would not handle SIGTERM
        if not self.ended.wait(_KILL_S):
            self._kill()

    def sweep(self) -> None:
        """End the remaining processes of the agent's group, after the agent ended."""
        if _WINDOWS or not self._is_there():
            return
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        deadline = time.monotonic() + _KILL_S
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
            pass  # it is there, and belongs to another user
        return True


def _ends_with_us() -> Callable[[], None]:
    """Return a `preexec_fn` that lets the kernel send SIGTERM to the agent if this process dies.

    It runs between fork and exec, which is safe because the agent starts before this process has
    other threads. The kernel sends the signal when the calling thread ends, and that is the main
    thread.
    """
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent died before prctl
            os._exit(_SIGNAL_EXIT_BASE + signal.SIGTERM)

    return tie


class Shutdown:
    """The trigger of the shutdown: the editor's hang-up, or a call of `begin`.

    A hang-up is detected at once, even if the editor's bytes are unread. With `at_once` the grace
    period starts now, even if the agent still writes.
    """

    def __init__(self, editor: int) -> None:
        self.at_once = False
        self._agent_closed = False
        self._editor = editor
        self._woken, self._waker = os.pipe()

    def begin(self, *, at_once: bool = False, agent_closed: bool = False) -> None:
        """Begin the shutdown; idempotent and safe in a signal handler.

        `at_once`: after a signal; `agent_closed`: the agent no longer reads, but may still write.
        """
        self.at_once = self.at_once or at_once
        self._agent_closed = self._agent_closed or agent_closed
        # No lock: a second signal may interrupt the handler of the first.
        os.write(self._waker, b"x")

    def wait(self) -> None:
        """Wait for the shutdown; if the agent no longer reads, close the editor's descriptor."""
        is_open = True
        while True:
            if is_open and wait_for_hang_up(self._editor, self._woken):
                return
            os.read(self._woken, 1)
            if not self._agent_closed or self.at_once:
                return
            if is_open:
                os.close(self._editor)
                is_open = False


@dataclass(frozen=True, slots=True)
class SkillsOffer:
    """The skills that the proxy offers.

    Attributes:
        command: command line of the MCP server for sessions; empty for none.
        open: returns the views, still unloaded, and a function that loads and watches them. The
            editor gets the view of a client without a token.
    """

    command: Sequence[str]
    open: Callable[[], tuple[Views, Callable[[], None]]]


def run(command: Sequence[str], offer: SkillsOffer | None, *, grace: float) -> int:
    """Relay between stdin or stdout and the agent until it ends; without an offer, only relay.

    `grace` is the seconds without traffic after the editor left, until the agent is ended. Output
    that the editor does not read in that time is dropped.

    Returns:
        the agent's exit code, 128 plus the number of its signal, or 127 if it could not start.
    """
    early: list[int] = []  # signals before the agent runs, which then gets them
    signal_handler: list[Callable[[int], None]] = [early.append]
    for name in ("SIGTERM", "SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda number, _: signal_handler[0](number))
    try:
        agent = AgentProcess(command)
    except NotStartedError as error:
        logger.error("%s", error)
        return NOT_STARTED
    proxy = _Proxy(agent, offer, grace)
    signal_handler[0] = proxy.signal
    for number in early:
        proxy.signal(number)
    return proxy.run()


class _Proxy:
    def __init__(self, agent: AgentProcess, offer: SkillsOffer | None, grace: float) -> None:
        self._agent = agent
        self._offer = offer
        self._grace = grace
        self._conversation: Conversation | None = None
        if offer is not None:
            self._conversation = Conversation(offer.command, self._has_skills)
        self._from_editor, self._to_editor = claim_stdio()
        self._shutdown = Shutdown(self._from_editor)
        # Lock of the pipe to the editor, and of the three fields below.
        self._writing = Lock()
        self._in_line = False
        self._closed = False
        self._pending_skills: tuple[AvailableSkill, ...] | None = None
        self._active_at = time.monotonic()  # the time of the last bytes
        self._left_at: float | None = None  # when the editor left
        self._listening = False  # waiting for output of the agent
        self._drained = Event()  # all of it was passed on
        self._opened = Event()  # the skills are `_usable`, or cannot be
        self._usable = False
        self._faults: set[str] = set()

    def run(self) -> int:
        work = [self._pass_to_agent, self._pass_to_editor, self._run_shutdown]
        if self._offer is not None:
            work.append(self._keep_current)
        for task in work:
            Thread(target=task, name=f"acp-{task.__name__.strip('_')}", daemon=True).start()
        code = self._agent.wait()
        self._agent.sweep()
        ended = time.monotonic()
        while not self._drained.wait(_POLL_S):
            now = time.monotonic()
            lingered = now - max(ended, self._active_at) > _LINGER_S
            left = self._left_at
            is_over = left is not None and now - max(left, self._active_at) > self._grace
            # A process that holds the pipe open gets `_LINGER_S`. An editor may read slowly, or
            # pause, until it leaves or a signal ends the conversation.
            if lingered and (self._listening or is_over):
                break
        return code

    def signal(self, number: int) -> None:
        """Forward the signal; begin the shutdown unless it is SIGINT."""
        self._agent.signal(number)
        if number != signal.SIGINT:
            self._shutdown.begin(at_once=True)

    # From the editor to the agent

    def _pass_to_agent(self) -> None:
        buffer = LineBuffer(_MAX_SETUP)
        try:
            while chunk := read(self._from_editor):
                if self._conversation is None:
                    write(self._agent.stdin, chunk)
                else:
                    for block, is_whole in buffer.blocks(chunk):
                        write(self._agent.stdin, self._with_skills(block) if is_whole else block)
                self._active_at = time.monotonic()
            if rest := buffer.rest():
                write(self._agent.stdin, self._with_skills(rest))
        except OSError:
            # Let the editor's writes fail from now on, as without a proxy.
            self._agent.close_stdin()
            self._shutdown.begin(agent_closed=True)
        else:
            self._agent.close_stdin()
            self._shutdown.begin()

    def _with_skills(self, lines: bytes) -> bytes:
        if self._conversation is not None:
            try:
                return self._conversation.to_agent(lines)
            except Exception as error:
                self._fault("a message to the agent was forwarded without skills", error)
        return lines

    def _has_skills(self) -> bool:
        return self._opened.wait(_OPENING_S) and self._usable

    # From the agent to the editor

    def _pass_to_editor(self) -> None:
        buffer = LineBuffer()
        try:
            while chunk := self._listen():
                with self._writing:
                    self._pass(chunk, buffer)
        except OSError:
            pass  # the editor closed its end
        with self._writing:
            self._closed = True
        with suppress(OSError):
            os.close(self._to_editor)
        self._agent.close_stdout()
        self._drained.set()

    def _listen(self) -> bytes:
        self._listening = True
        try:
            return read(self._agent.stdout)
        finally:
            self._listening = False

    def _write_to_editor(self, raw: bytes) -> None:
        size = len(raw) if self._left_at is None else _PIECE
        for start in range(0, len(raw), size or 1):  # a range has no step of 0
            write(self._to_editor, raw[start : start + size])
            self._active_at = time.monotonic()

    def _pass(self, chunk: bytes, buffer: LineBuffer) -> None:
        conversation = self._conversation
        if conversation is None:
            self._write_to_editor(chunk)
            return
        lines_end = chunk.rfind(b"\n") + 1
        if lines_end:
            self._write_to_editor(chunk[:lines_end])
            self._in_line = False
        for block, is_whole in buffer.blocks(chunk):
            if is_whole:
                self._inject(conversation.after_agent_lines, block)
        if lines_end:
            self._send_skills(conversation)
        if lines_end < len(chunk):
            self._in_line = True
            self._write_to_editor(chunk[lines_end:])

    def _inject(self, make: Callable[[_T], bytes], subject: _T) -> None:
        try:
            lines = make(subject)
        except Exception as error:
            self._fault("skills are not announced", error)
        else:
            self._write_to_editor(lines)

    def _send_skills(self, conversation: Conversation) -> None:
        if self._pending_skills is not None and not self._in_line and not self._closed:
            skills, self._pending_skills = self._pending_skills, None
            self._inject(conversation.announce, skills)

    # The skills

    def _keep_current(self) -> None:
        try:
            if self._offer is not None and self._conversation is not None:
                self._follow(self._offer, self._conversation)
        except Exception as error:
            self._fault("no skills are offered", error)
        finally:
            self._opened.set()

    def _follow(self, offer: SkillsOffer, conversation: Conversation) -> None:
        views, start = offer.open()
        self._usable = True
        self._opened.set()
        changed = Event()
        views.registry.subscribe(lambda _: changed.set())
        views.on_replaced(lambda _before, _now: changed.set())
        start()
        left_out: set[tuple[str, str]] = set()
        while True:
            changed.wait()
            changed.clear()
            offered = acp.available(views.for_principal(None).snapshot)
            for path, reason in offered.left_out:
                if (path, reason) not in left_out:
                    logger.warning(
                        "%s is not announced to the editor: %s", printable(path), printable(reason)
                    )
            left_out = set(offered.left_out)
            with self._writing, suppress(OSError):
                self._pending_skills = offered.skills
                self._send_skills(conversation)

    def _fault(self, what: str, error: Exception) -> None:
        if what not in self._faults:
            self._faults.add(what)
            reason = str(error)
            if not isinstance(error, SkillsServerError):
                reason = f"{type(error).__name__}: {error}"
            logger.error("%s: %s", what, printable(" ".join(reason.split())))
            logger.debug("%s", what, exc_info=error)

    # The end

    def _run_shutdown(self) -> None:
        self._shutdown.wait()
        began = self._left_at = time.monotonic()
        while not self._agent.ended.wait(_POLL_S):
            # Poll: a signal may end the grace period early, and output of the agent extends it.
            since = max(began, self._active_at)
            if self._shutdown.at_once:
                since = began
            if time.monotonic() - since >= self._grace:
                self._agent.end()
                return
