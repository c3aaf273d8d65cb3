"""The process that starts workers, keeps their number, and has them look where its registry looked.

It answers no request. A worker that ends is replaced at once if it had answered, and later each time where none gets so
far or several in a row end soon; while nobody answers, no pause is long. Workers that were started later accept when
they have read the skills, so that a client never waits for one while another could answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from mcp_skills_server.errors import UsageError
from mcp_skills_server.web.workers import VARIABLE
from mcp_skills_server.web.workers.channel import Post, kept_path, line, loads_path
from mcp_skills_server.web.workers.leading import LeadingRegistry
from mcp_skills_server.web.workers.loads import Loads, make_loads

if TYPE_CHECKING:
    from mcp_skills_server.sources.follower import SourceState

logger = logging.getLogger(__name__)

_ENDING_S: Final = 3.0
"""How long workers may take to end; each takes two seconds at most."""
_LONGEST_FOLDER: Final = 90
"""Bytes; the path of a socket has at most 103, on macOS."""
_FIRST_PAUSE_S: Final = 0.1
_LAST_PAUSE_S: Final = 30.0
_STEADY_S: Final = 30.0
"""A worker that could answer and ended sooner may have ended of what it serves, and the next one will, too."""
_AT_ONCE: Final = 3
"""So many of those in a row are replaced at once: whoever kills one by hand does it more than once."""
_SOON_S: Final = 1.0
"""The longest pause while nobody can answer, whatever the workers ended of: clients wait for it."""
_ABLE: Final = frozenset(("accepting", "loaded"))
"""What a worker has said that can answer. It did not end of how it was started, and the next one can answer too."""
_STATES_S: Final = 0.25
_MOST_UNREAD: Final = 16 << 20
"""Bytes that a worker may leave unread before it counts as stuck."""
# `-P`: what lies in the folder where the server was started is not imported.
_PROGRAM: Final = ("-P", "-m", "mcp_skills_server")


class _Worker:
    """A worker process as the supervisor knows it."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.process = process
        self.writer = writer
        self.said: set[str] = set()
        self.is_let_in = False

    def send(self, message: bytes) -> None:
        if self.writer.transport.get_write_buffer_size() > _MOST_UNREAD:
            logger.warning("worker %d does not listen any more; ending it", self.number + 1)
            self.signal(signal.SIGKILL)
            return
        self.writer.write(message)

    def end(self, number: signal.Signals) -> None:
        """Have it end with all others."""
        self.send(line("end"))
        self.signal(number)

    def signal(self, number: signal.Signals) -> None:
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


@contextmanager
def shared_folder() -> Generator[str]:
    """A folder that only this user can enter, for what workers share: the paths in it, with {} for what comes last.

    Raises:
        UsageError: there is no place for one.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix="mcp-skills-workers-", ignore_cleanup_errors=True)  # 0700
    except OSError as error:
        raise UsageError(
            f"--workers needs a folder for temporary files ({error.strerror}); make /tmp writable, or set TMPDIR"
        ) from None
    with made as folder:
        if len(os.fsencode(folder)) > _LONGEST_FOLDER:
            raise UsageError(f"--workers: {folder} is too long for the path of a socket; set TMPDIR to a shorter one")
        yield os.path.join(folder.replace("{", "{{").replace("}", "}}"), "{}")


class Supervisor:
    """Some workers behind one socket.

    Args:
        count: how many.
        listener: listens, and does not block.
        paths: what they share lies there, with {} for what comes last (`shared_folder`).
        registry: what they serve; somebody else loads and follows it.
        configuration: the text of the configuration file as it was read; None where there is none.
        drain_s: seconds for which workers go on answering when they are to end.
        states: of the sources.
        look: has all sources looked at.
        shown: called once, when the first worker accepts.
    """

    def __init__(
        self,
        count: int,
        listener: socket.socket,
        paths: str,
        registry: LeadingRegistry,
        *,
        configuration: str | None = None,
        drain_s: float = 0,
        states: Callable[[], Sequence[SourceState]] = list,
        look: Callable[[], object] = int,
        shown: Callable[[], object] = int,
    ) -> None:
        self._count = count
        self._listener = listener
        self._paths = paths
        self._registry = registry
        self._configuration = configuration
        self._drain_s = drain_s
        self._states = states
        self._look = look
        self._shown = shown
        self._workers: dict[int, _Worker] = {}
        self._ending = asyncio.Event()
        self._code = 0
        self._is_followed = False
        self._was_started = False
        self._was_shown = False
        self._states_sent = b""
        self._away: Callable[[int], object] = id

    async def run(self, followed: Callable[[], object]) -> int:
        """Until SIGTERM or SIGINT, or until no worker can be started at all; the exit code.

        Args:
            followed: blocks until no change of the folders can be missed.
        """
        loop = asyncio.get_running_loop()

        is_asked = False

        def end(number: signal.Signals = signal.SIGTERM) -> None:
            nonlocal is_asked
            self._ending.set()
            for worker in self._workers.values():
                worker.end(signal.SIGINT if is_asked else number)  # a second one ends a drain, whichever it is
            is_asked = True

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, number)

        def tell(message: bytes) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._tell_all, message)

        make_loads(loads_path(self._paths), self._count)
        loads = Loads(loads_path(self._paths))
        self._away = loads.leave
        self._registry.tell = tell
        keeping = [asyncio.create_task(self._keep(number)) for number in range(self._count)]
        sending = asyncio.create_task(self._send_states())

        def follow() -> None:
            followed()
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._load_all)

        # Nobody waits for this thread: a first scan may take long, and the end must not.
        threading.Thread(target=follow, name="skills-follow-all", daemon=True).start()
        ending = asyncio.create_task(self._ending.wait())
        await asyncio.wait([ending, *keeping], return_when=asyncio.FIRST_COMPLETED)
        if not is_asked:  # a worker cannot be started
            end()
        _, late = await asyncio.wait(keeping, timeout=self._drain_s + _ENDING_S)
        for worker in self._workers.values():
            worker.signal(signal.SIGKILL)
        if late:
            await asyncio.wait(late, timeout=_ENDING_S)
        sending.cancel()
        for task in keeping:
            task.result()
        return self._code

    def hang_up(self) -> None:
        """Have all workers read again what they read at their start. From a handler of a signal too."""
        for worker in [*self._workers.values()]:
            if "started" in worker.said:  # before that the signal would end it, and it is about to read anyway
                worker.signal(signal.SIGHUP)

    # Processes

    async def _keep(self, number: int) -> None:
        """Have worker `number` run, again and again until the end."""
        pause, short = _FIRST_PAUSE_S, 0
        clock = asyncio.get_running_loop().time
        while not self._ending.is_set():
            began = clock()
            try:
                code, was_able = await self._run(number)
            except OSError as error:
                code, was_able, why = None, False, f"could not be started ({error.strerror or error})"
            else:
                why = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            if self._ending.is_set():
                return
            if code and code > 0 and not self._was_started:  # it has said why, and the next one would say the same
                self._code = code
                self._ending.set()
                return
            if was_able:
                short = short + 1 if clock() - began < _STEADY_S else 0
                pause = _FIRST_PAUSE_S if short <= _AT_ONCE else pause
            now = pause if self._can_answer() else min(pause, _SOON_S)
            often = f" ({short} in a row ended within {_STEADY_S:.0f} s of their start)" if short > 1 else ""
            logger.warning("worker %d %s; starting another in %.1f s%s", number + 1, why, now, often)
            await self._wait(now)
            pause = min(pause * 2, _LAST_PAUSE_S)

    async def _wait(self, seconds: float) -> None:
        """Wait so long, or until the end; not much longer than nobody else can answer."""
        while seconds > 0 and not self._ending.is_set():
            step = min(seconds, _SOON_S)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ending.wait(), step)
            seconds = seconds - step if self._can_answer() else 0

    def _can_answer(self) -> bool:
        return any(each.said >= _ABLE for each in self._workers.values())

    async def _run(self, number: int) -> tuple[int, bool]:
        """A worker from its start to its end; its exit code, or its signal below 0, and whether it could answer.

        Raises:
            OSError: it cannot be started.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            descriptor, listener = theirs.fileno(), self._listener.fileno()
            post = Post(
                number,
                self._count,
                listener,
                self._listener.family,
                self._paths,
                self._registry.folders,
                self._configuration,
            )
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *_PROGRAM,
                    *sys.argv[1:],
                    stdin=asyncio.subprocess.DEVNULL,
                    env={**os.environ, VARIABLE: str(descriptor)},
                    pass_fds=(descriptor, listener),
                )
            except BaseException:
                ours.close()
                raise
        reader, writer = await asyncio.open_connection(sock=ours)
        worker = self._workers[number] = _Worker(number, process, writer)
        try:
            worker.send(post.line())
            for note in self._registry.notes.values():
                worker.send(note)
            worker.send(self._states_sent or line("states", states=[]))
            worker.send(self._registry.changes())
            if self._is_followed:
                worker.send(line("load"))
            if self._ending.is_set():
                worker.end(signal.SIGTERM)
            with suppress(ConnectionError):  # it was killed before it had read all
                while (said := await reader.readline()).endswith(b"\n"):
                    self._hear(worker, json.loads(said))
            return await process.wait(), worker.said >= _ABLE
        finally:
            del self._workers[number]
            self._away(number)
            with suppress(OSError):  # it had none
                os.unlink(kept_path(self._paths, "clients", number))
            writer.close()
            self._let_in()

    # What is said

    def _hear(self, worker: _Worker, message: dict[str, Any]) -> None:
        said: str = message["say"]
        if said == "look":
            self._look()
            return
        if said == "late":
            for other in self._workers.values():
                if other is not worker:
                    other.send(line("again", since=message["since"]))
            return
        worker.said.add(said)
        self._was_started = True
        if said == "accepting":
            logger.debug("worker %d accepts connections", worker.number + 1)
        if said == "accepting" and not self._was_shown:
            self._was_shown = True
            self._shown()
        self._let_in()

    def _let_in(self) -> None:
        """Have each worker accept when it has read the skills, and one that has not while there is no other."""
        waiting = [each for each in self._workers.values() if "started" in each.said and not each.is_let_in]
        chosen = [each for each in waiting if "loaded" in each.said]
        if not any(each.is_let_in for each in self._workers.values()):
            chosen = chosen or waiting[:1]
        for worker in chosen:
            worker.is_let_in = True
            worker.send(line("accept"))

    def _tell_all(self, message: bytes) -> None:
        for worker in self._workers.values():
            worker.send(message)

    def _load_all(self) -> None:
        self._is_followed = True
        self._tell_all(line("load"))

    async def _send_states(self) -> None:
        while True:
            states: list[dict[str, Any]] = [asdict(each) for each in self._states()]
            message = line("states", states=states)
            if message != self._states_sent:
                self._states_sent = message
                self._tell_all(message)
            await asyncio.sleep(_STATES_S)
