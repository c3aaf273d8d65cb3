"""A pipe between an editor and an agent that adds skills to it: bytes pass in order and untouched.

Each direction has a thread of its own that reads, passes on and only then reads again: backpressure
reaches the writer of that direction alone. Our messages go in between two lines of the agent. When
they fail, the bytes pass all the same, and the log says so once.

The one module of this package that starts a program: the agent that the operator named, and nothing
else. The agent has our stderr and environment, its own process group, and pipes for stdin and
stdout. Nothing of it outlives us: what is left of its group when it has ended gets SIGTERM, then
SIGKILL.
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
from collections.abc import Callable, Iterable, Sequence
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
from mcp_skills_server.transport import LineBuffer, claim, read, wait_for_hang_up, write

if TYPE_CHECKING:
    from mcp_skills_server.catalog.views import Views

_T = TypeVar("_T")
logger = logging.getLogger(__name__)
_MAX_SETUP: Final = 256 << 10
"""Bytes of a message to the agent that is held until it is whole; no setup of a session is
longer."""
_PIECE: Final = 4096
"""Bytes of one write to an editor that has closed its side: each write that returns proves that it
still reads."""
_LINGER_S: Final = 0.5
"""How long output is awaited when the agent has ended but its pipe is still held open."""
_OPENING_S: Final = 5.0
"""How long the setup of a session waits until it is known whether there are skills."""
_POLL_S: Final = 0.02
_WINDOWS: Final = sys.platform == "win32"
_SIGNAL_EXIT_BASE: Final = 128
_PR_SET_PDEATHSIG: Final = 1
_WAIT_S: Final = 0.5
_KILL_S: Final = 1.0
"""Between SIGTERM and SIGKILL."""
_SWEEP_S: Final = 0.5
"""The same for processes that an ended agent leaves behind."""


class NotStartedError(SkillsServerError):
    """The agent's program could not be started."""


class AgentProcess:
    """An agent that runs. NotStartedError: there is no such program, or it may not be run.

    Attributes:
        stdin: the descriptor to write to.
        stdout: the descriptor to read from.
        ended: set as soon as it is known to have ended.
    """

    def __init__(self, command: Sequence[str]) -> None:
        program = command[0]
        if _WINDOWS:  # it does not look for `npx.cmd` by itself when `npx` is asked for
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
            if (
                isinstance(error, PermissionError)
                and not os.path.dirname(program)
                and not shutil.which(program, os.F_OK)
            ):
                # it was a folder of PATH that may not be entered
                reason = os.strerror(errno.ENOENT)
            raise NotStartedError(
                f"{printable(command[0])}: the agent cannot be started: {reason}"
            ) from None
        self.stdin = cast("IO[bytes]", self._process.stdin).fileno()
        self.stdout = cast("IO[bytes]", self._process.stdout).fileno()
        self.ended = Event()

    def close_stdin(self) -> None:
        """Tell the agent that nothing more comes."""
        with suppress(OSError):
            cast("IO[bytes]", self._process.stdin).close()

    def close_stdout(self) -> None:
        """Close the agent's output: the editor reads no more."""
        with suppress(OSError):
            cast("IO[bytes]", self._process.stdout).close()

    def wait(self) -> int:
        """Wait for its end: its exit code, 128 and the signal's number if one ended it."""
        # A signal just before a blocking call is handled after that call returns: none blocks for
        # long.
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
    """Return a `preexec_fn` that has the kernel send SIGTERM to the agent if this process is
    killed.

    It runs between fork and exec, which is safe while this process has no other thread: the agent
    is started before the first one. The kernel sends the signal when the thread that called this
    ends, and that is the main thread.
    """
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # killed in between
            os._exit(_SIGNAL_EXIT_BASE + signal.SIGTERM)

    return tie


class Shutdown:
    """Waits for the editor, which writes to this descriptor, to end, or for a signal.

    A hang-up is seen at once, even while the agent reads nothing and so the editor's bytes are not
    read. With `at_once` the grace period begins now, even if the agent still writes.
    """

    def __init__(self, editor: int) -> None:
        self.at_once = False
        self._deaf = False
        self._editor = editor
        self._woken, self._waker = os.pipe()

    def begin(self, *, at_once: bool = False, deaf: bool = False) -> None:
        """Begin the shutdown. Idempotent, and safe in a signal handler.

        `at_once`: a signal asked for it; `deaf`: the agent no longer reads, which alone does not
        end it.
        """
        self.at_once = self.at_once or at_once
        self._deaf = self._deaf or deaf
        # no lock, for a second signal may come while the first is being handled
        os.write(self._waker, b"x")

    def wait(self) -> None:
        """Wait for the shutdown. Where the agent no longer reads, close the editor's descriptor
        meanwhile."""
        open_ = True
        while True:
            if open_ and wait_for_hang_up(self._editor, self._woken):
                return
            os.read(self._woken, 1)
            if not self._deaf or self.at_once:
                return
            if open_:
                os.close(self._editor)
                open_ = False


@dataclass(frozen=True, slots=True)
class SkillsOffer:
    """The skills of the proxy.

    Attributes:
        words: the command line of the MCP server that serves them; empty where sessions get none.
        open: makes the views, not yet loaded, and what loads them and keeps them current. The
            editor is shown what a client without a token has of them.
    """

    words: Sequence[str]
    open: Callable[[], tuple[Views, Callable[[], None]]]


def run(command: Sequence[str], offer: SkillsOffer | None, *, grace: float) -> int:
    """Stand between stdin and stdout and this agent until it ends; None for an offer makes it a
    pipe.

    `grace` is how many seconds an agent may be silent after the editor has gone, before it is
    ended. Output that the editor does not read for as long is dropped.

    Returns:
        Its exit code; 128 and the signal's number if one ended it; 127 if it could not be started.
    """
    early: list[int] = []
    handed_on: list[Callable[[int], None]] = [early.append]
    for number in _signals():
        signal.signal(number, lambda number, _: handed_on[0](number))
    try:
        agent = AgentProcess(command)
    except NotStartedError as error:
        logger.error("%s", error)
        return NOT_STARTED
    proxy = _Proxy(agent, offer, grace)
    handed_on[0] = proxy.signal
    for number in early:
        proxy.signal(number)
    return proxy.run()


def _signals() -> Iterable[signal.Signals]:
    return [
        getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)
    ]


class _Proxy:
    def __init__(self, agent: AgentProcess, offer: SkillsOffer | None, grace: float) -> None:
        self._agent = agent
        self._offer = offer
        self._grace = grace
        self._conversation = (
            Conversation(offer.words, self._has_skills) if offer is not None else None
        )
        self._from_editor, self._to_editor = claim()
        self._shutdown = Shutdown(self._from_editor)
        # Lock of the pipe to the editor, and of the three fields below.
        self._writing = Lock()
        self._in_line = False
        self._closed = False
        self._news: tuple[AvailableSkill, ...] | None = None
        self._active = time.monotonic()
        self._gone: float | None = None
        self._listening = False
        self._drained = Event()
        self._opened = Event()
        self._usable = False
        self._faults: set[str] = set()

    def run(self) -> int:
        work = [self._pass_to_agent, self._pass_to_editor, self._run_shutdown]
        if self._offer is not None:
            work.append(self._keep_current)
        for each in work:
            Thread(target=each, name=f"acp-{each.__name__.strip('_')}", daemon=True).start()
        code = self._agent.wait()
        self._agent.sweep()
        ended = time.monotonic()
        while not self._drained.wait(_POLL_S):
            now = time.monotonic()
            lingered = now - max(ended, self._active) > _LINGER_S
            # A process that holds the pipe open has a moment. An editor that reads slowly has all
            # the time it wants; one that reads nothing, too, until it goes or a signal wants the
            # end.
            if lingered and (self._listening or self._is_over(now)):
                break
        return code

    def _is_over(self, now: float) -> bool:
        """Tell whether the conversation is to end, and nothing was read or written for the
        grace."""
        return self._gone is not None and now - max(self._gone, self._active) > self._grace

    def signal(self, number: int) -> None:
        """Pass the signal on; begin the shutdown unless it is SIGINT."""
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
                    for block, whole in buffer.blocks(chunk):
                        write(self._agent.stdin, self._with_skills(block) if whole else block)
                self._active = time.monotonic()
            if rest := buffer.rest():
                write(self._agent.stdin, self._with_skills(rest))
        except OSError:
            # What the editor writes from now on fails, as it would without us.
            self._agent.close_stdin()
            self._shutdown.begin(deaf=True)
        else:
            self._agent.close_stdin()
            self._shutdown.begin()

    def _with_skills(self, lines: bytes) -> bytes:
        if self._conversation is not None:
            try:
                return self._conversation.ask(lines)
            except Exception as error:
                self._fault("a message to the agent passed as it was", error)
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
            pass  # the editor reads no more
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
        size = len(raw) if self._gone is None else _PIECE
        for start in range(0, len(raw), size or 1):
            write(self._to_editor, raw[start : start + size])
            self._active = time.monotonic()

    def _pass(self, chunk: bytes, buffer: LineBuffer) -> None:
        conversation = self._conversation
        if conversation is None:
            self._write_to_editor(chunk)
            return
        cut = chunk.rfind(b"\n") + 1
        if cut:
            self._write_to_editor(chunk[:cut])
            self._in_line = False
        for block, whole in buffer.blocks(chunk):
            if whole:
                self._inject(conversation.hear, block)
        if cut:
            self._send_news(conversation)
        if cut < len(chunk):
            self._in_line = True
            self._write_to_editor(chunk[cut:])

    def _inject(self, make: Callable[[_T], bytes], of: _T) -> None:
        try:
            lines = make(of)
        except Exception as error:
            self._fault("skills are not announced", error)
        else:
            self._write_to_editor(lines)

    def _send_news(self, conversation: Conversation) -> None:
        if self._news is not None and not self._in_line and not self._closed:
            news, self._news = self._news, None
            self._inject(conversation.announce, news)

    # The skills

    def _keep_current(self) -> None:
        try:
            if self._offer is not None and self._conversation is not None:
                self._follow(self._offer, self._conversation)
        except Exception as error:
            self._fault("there are no skills", error)
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
            found = acp.available(views.of(None).snapshot)
            for path, reason in found.left_out:
                if (path, reason) not in left_out:
                    logger.warning(
                        "%s is not announced to the editor: %s", printable(path), printable(reason)
                    )
            left_out = set(found.left_out)
            with self._writing, suppress(OSError):
                self._news = found.skills
                self._send_news(conversation)

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
        began = self._gone = time.monotonic()
        while True:
            since = max(began, self._active)
            if self._shutdown.at_once:
                since = began
            left = since + self._grace - time.monotonic()
            if left <= 0:
                break
            # Poll: a signal may end the grace period early, and output of the agent extends it.
            if self._agent.ended.wait(min(left, 0.1)):
                return
        self._agent.end()
