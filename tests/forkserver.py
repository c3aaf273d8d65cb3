"""Fork server: start the program from a process that has imported it, which saves 0.7 s each time.

The process is like any other: it has its own descriptors, folder, environment, signals and exit code, and only shares
imports. `Popen` and `run` have the interface of `subprocess`. A test of the start itself (imported modules, time to the
first response) uses `subprocess`.

Run as a program, this file is the fork server. It ends with the process that started it.
"""

from __future__ import annotations

import atexit
import gc
import inspect
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any, Final

PROGRAM: Final = "mcp_skills_server"
_STATUS: Final = struct.Struct("=ii")
"""A process id and, when the process ended, its exit status."""
_SIZE: Final = struct.Struct("=Q")
_DESCRIPTORS: Final = 4
"""stdin, stdout, stderr, and the socket that returns the process id and the exit status."""
_one_at_a_time = threading.Lock()


def _of_interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an interpreter and its C library read only when they start."""
    return {key: value for key, value in environment.items() if key.startswith(("PYTHON", "LC_", "LANG", "MALLOC_"))}


_AT_START: Final = _of_interpreter(os.environ)


@cache
def _server() -> socket.socket:
    """Return the socket to this process's fork server, starting the server first if necessary."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with theirs:
        number, none = theirs.fileno(), subprocess.DEVNULL
        words = [sys.executable, __file__, str(number)]
        process = subprocess.Popen(words, stdin=none, stdout=none, pass_fds=[number])

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen`, where the program, `[sys.executable, "-c", ...]` and `[sys.executable, "x.py"]` are forked.

    Any other process (another program, passed descriptors, a new session, other interpreter settings in the
    environment) is started by `subprocess`.
    """

    _status_socket: socket.socket | None = None

    def _execute_child(self, *given: Any) -> None:
        start: Any = super()._execute_child  # type: ignore[misc]
        named = inspect.signature(start).bind(*given).arguments
        if not _can_be_forked(named):
            start(*given)
            return
        ends = [named[each] for each in ("p2cread", "c2pwrite", "errwrite")]
        job = {
            "arguments": [os.fspath(each) for each in named["args"][1:]],
            "folder": os.path.abspath(named["cwd"] or os.curdir),
            "environment": dict(os.environ if named["env"] is None else named["env"]),
        }
        self._status_socket, theirs = socket.socketpair(socket.AF_UNIX)
        with theirs:
            passed = [number if end == -1 else end for number, end in enumerate(ends)]
            body = json.dumps(job).encode()
            with _one_at_a_time:
                socket.send_fds(_server(), [_SIZE.pack(len(body))], [*passed, theirs.fileno()])
                _server().sendall(body)
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(named[each] for each in names))  # type: ignore[attr-defined]
        self.pid, _ = _status(self._status_socket)
        self._child_created = True

    def _internal_poll(self, *given: Any, **named: Any) -> int | None:
        if self._status_socket is None:
            return super()._internal_poll(*given, **named)  # type: ignore[misc]
        try:
            return self._wait(0)
        except subprocess.TimeoutExpired:
            return None

    def _wait(self, timeout: float | None) -> int:
        if self._status_socket is None:
            return super()._wait(timeout)  # type: ignore[misc]
        if self.returncode is None:
            ready = select.poll()
            ready.register(self._status_socket, select.POLLIN)
            if not ready.poll(None if timeout is None else max(0, timeout * 1000)):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None:
                _, status = _status(self._status_socket)
                self._status_socket.close()
                self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode


def _can_be_forked(named: Mapping[str, Any]) -> bool:
    unsupported = ("preexec_fn", "pass_fds", "shell", "start_new_session")
    words = named["args"]
    environment = os.environ if named["env"] is None else named["env"]
    return (
        _of_interpreter(environment) == _AT_START
        and isinstance(words, list)
        and (words[:3] == [sys.executable, "-m", PROGRAM] or words[:2] == [sys.executable, "-c"] or _is_file(words))
        and not any(named[each] for each in unsupported)
    )


def _is_file(words: list[str]) -> bool:
    return words[0] == sys.executable and words[1].endswith(".py")


run: Final = FunctionType(subprocess.run.__code__, {**vars(subprocess), "Popen": Popen}, "run")
"""`subprocess.run`, by our `Popen`."""
run.__kwdefaults__ = subprocess.run.__kwdefaults__


def _read(source: socket.socket, size: int) -> bytes:
    out = bytearray()
    while len(out) < size and (part := source.recv(size - len(out))):
        out += part
    return bytes(out)


def _status(source: socket.socket) -> tuple[int, int]:
    if not (raw := _read(source, _STATUS.size)):
        raise EOFError("the fork server ended; its output is on stderr")
    pid, status = _STATUS.unpack(raw)
    return pid, status


def _fork_for_each_job(control: socket.socket) -> list[str] | None:
    """Fork for each job. Return None at the end, and in each new process the arguments of its job."""
    ended, notify = socket.socketpair()
    notify.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler nothing is written to `notify`
    signal.set_wakeup_fd(notify.fileno())
    replies: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([control, ended], [], [])
        if ended in ready:
            ended.recv(4096)
            _report(replies)
        if control not in ready:
            continue
        size, descriptors, *_ = socket.recv_fds(control, _SIZE.size, _DESCRIPTORS)
        if not size:
            return None
        job = json.loads(_read(control, *_SIZE.unpack(size)))
        *streams, reply = descriptors
        pid = os.fork()
        if pid == 0:
            os.close(reply)
            for each in (control, ended, notify, *replies.values()):
                each.close()
            _become(job, streams)
            return job["arguments"]
        for each in streams:
            os.close(each)
        replies[pid] = socket.socket(fileno=reply)
        with suppress(BrokenPipeError):
            replies[pid].sendall(_STATUS.pack(pid, 0))


def _report(replies: dict[int, socket.socket]) -> None:
    """Send the exit status of each ended process to its starter."""
    with suppress(ChildProcessError):  # no child is left
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            with replies.pop(found[0]) as back, suppress(BrokenPipeError):
                back.sendall(_STATUS.pack(*found))


def _become(job: Mapping[str, Any], streams: list[int]) -> None:
    """Take the streams, signals, environment and folder of a job."""
    for number, each in enumerate(streams):
        os.dup2(each, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])


def _import_program() -> None:
    """Import each module of the program, and the libraries that its functions import."""
    package = import_module(PROGRAM)
    for module in pkgutil.walk_packages(package.__path__, f"{PROGRAM}."):
        if not module.name.endswith(".__main__"):
            import_module(module.name)
    for name in ("anyio._backends._asyncio", "jsonschema", "platformdirs.unix", "uvicorn.lifespan.on"):
        import_module(name)
    templates = import_module(f"{PROGRAM}.web.ui.app")._templates()
    for name in templates.list_templates():
        templates.get_template(name)  # compiling them all takes 400 ms
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page


def _run(arguments: list[str]) -> None:
    """Run the program, or the code of a test."""
    sys.path[0] = os.getcwd()
    kind, *sys.argv[1:] = arguments
    code: Any = 0
    try:
        if kind == "-m":
            runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
        elif kind == "-c":
            text, sys.argv[0] = sys.argv.pop(1), kind
            exec(text, {"__name__": "__main__"})
        else:
            sys.argv[0], sys.path[0] = kind, os.path.dirname(kind)
            runpy.run_path(kind, run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    if code is None or isinstance(code, int):
        _end(code or 0)
    sys.exit(code)


def _end(code: int) -> None:
    """Exit as the interpreter does, but without tearing down its modules, which takes 80 of 90 ms.

    Return only if a stream cannot be flushed, so that the interpreter reports it.
    """
    threading._shutdown()
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    os.fsync = lambda _: None  # as in conftest.py
    _import_program()
    arguments = _fork_for_each_job(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        _run(arguments)
