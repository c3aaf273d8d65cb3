"""Run the program `git` so that a repository can make it do nothing but hand over objects.

It is the program and no library, because people configure it: credential helpers, ssh, proxies.
Whatever the server, the repository or the environment could add to that is off: hooks, filters,
submodules, other protocols, other places to download from, prompts.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, cast

from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.sources.source import UnreachableError

if sys.platform != "win32":
    import fcntl

REMOTE: Final = "source"
"""The name of the remote in our configuration."""
_KEPT: Final = (
    "GIT_SSH_COMMAND", "GIT_SSH", "GIT_SSH_VARIANT", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_COUNT",
    "GIT_EXEC_PATH",
)  # fmt: skip
"""Variables of git that are the user's configuration; others would lead it to another repository,
or are debugging."""
_KEPT_BEGINNINGS: Final = (
    "GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_", "GIT_SSL_CA", "GIT_SSL_CERT", "GIT_SSL_KEY",
)  # fmt: skip
_SETTINGS: Final = (
    f"core.hooksPath={os.devnull}",
    "core.fsmonitor=false",
    "core.askPass=",
    "core.bigFileThreshold=16m",  # what is larger is not held in memory
    "core.packedGitWindowSize=16m",
    "core.packedGitLimit=256m",
    "credential.interactive=false",
    # otherwise a git runs in the folder of a submodule, with that one's configuration
    "diff.submodule=short",
    "fetch.recurseSubmodules=false",
    "fetch.unpackLimit=1",  # one pack, whose size the limit on files bounds
    "fetch.uriProtocols=",  # nor may the server send us to other places for parts of what it has
    "transfer.bundleURI=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "http.followRedirects=false",  # git would follow to any host, also to private ones
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=20",
    "protocol.version=2",
    "submodule.recurse=false",
)
_ENVIRONMENT: Final = {
    "GCM_INTERACTIVE": "never",
    "GIT_ASKPASS": "",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",  # its messages are looked at
    "SSH_ASKPASS_REQUIRE": "never",
}
_SSH: Final = "ssh -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=20"
_LIMITED: Final = """
ulimit -f "$1"; [ -z "$2" ] || ulimit -v "$2" 2>/dev/null
(read -r _ <"/dev/fd/$3"; kill -9 0) >/dev/null 2>&1 &
shift 3; exec "$@"
"""
"""The third argument is a pipe that ends with the server, however that ends, and all that git has
started with it."""
_ABOVE_THOSE_OF_SHELLS: Final = 10
MOST_FILE_BYTES: Final = 4 << 30
_MOST_MEMORY_BYTES: Final = 4 << 30
_MOST_STDERR: Final = 1 << 13


class GitFailedError(SkillsServerError):
    """git said no. `said` is what it wrote on stderr."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.said = said


class Git:
    """The program, for one repository of ours.

    Args:
        directory: the repository, bare. It need not exist yet.
        protocol: of that address; git speaks no other.
        most_bytes: of one file that git writes, such as a pack.
    """

    def __init__(
        self, directory: Path, url: str, protocol: str, *, most_bytes: int = MOST_FILE_BYTES
    ) -> None:
        self._directory = directory
        self._url = url
        self._protocol = protocol
        self._most_bytes = most_bytes
        self._environment: dict[str, str] | None = None
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False
        self.warned = ""
        """The stderr of the last command that was done."""

    def run(
        self, *arguments: str, seconds: float, given: bytes = b"", most: int = 1 << 20
    ) -> bytes:
        """Run a command of git within `seconds` and return its stdout, at most `most` bytes.
        Blocks.

        Args:
            arguments: the command and its own; `-c` may stand before it.

        Raises:
            GitFailedError: it fails, takes too long, or answers with more.
            UnreachableError: there is no git.
        """
        with self.stream(*arguments, seconds=seconds, given=given) as out:
            raw = out.read(most + 1)
            if len(raw) > most:
                raise GitFailedError(f"fatal: the answer has more than {most:,} bytes")
            return raw

    @contextmanager
    def stream(self, *arguments: str, seconds: float, given: bytes = b"") -> Generator[IO[bytes]]:
        """Run a command of git, with its stdout to be read within the `with`."""
        git = shutil.which("git")
        if git is None:
            raise UnreachableError("the program git is not installed; install git 2.30 or newer")
        deadline = time.monotonic() + seconds
        with (
            tempfile.TemporaryFile() as stdin,
            tempfile.TemporaryFile() as stderr,
            _lifeline() as passed,
        ):
            stdin.write(given)
            stdin.seek(0)
            words = [*self._words(git, passed), *arguments]
            try:
                process = subprocess.Popen(  # noqa: S603, that is what this module is for
                    words,
                    stdin=stdin,
                    pass_fds=passed,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env=self._env(),
                    # without a terminal ssh never prompts, and all of it ends at once
                    start_new_session=True,
                )
            except OSError as error:
                raise UnreachableError(
                    f"git cannot be started ({error.strerror or error})"
                ) from None
            self._running.add(process)
            overdue = threading.Event()
            timer = threading.Timer(seconds, lambda: (overdue.set(), _end(process)))
            timer.daemon = True
            timer.start()
            out = cast("IO[bytes]", process.stdout)
            try:
                if self._ended:
                    raise UnreachableError("the server ends")
                yield out
                out.close()
                code = process.wait(max(0.1, deadline - time.monotonic()) + 5)
            except BrokenPipeError:
                code = -1
            finally:
                timer.cancel()
                _end(process)
                out.close()
                process.wait()
                self._running.discard(process)
            if overdue.is_set():
                raise GitFailedError(f"no answer within {seconds:g} seconds")
            stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _MOST_STDERR))
            self.warned = said = stderr.read().decode("utf-8", "replace")
            if code:
                raise GitFailedError(
                    said if code > 0 else f"{said}\nfatal: git was ended by signal {-code}"
                )

    def end(self) -> None:
        """End what runs, and start nothing any more."""
        self._ended = True
        for process in tuple(self._running):
            _end(process)

    def _words(self, program: str, lifeline: Sequence[int]) -> list[str]:
        """Return git's command line under resource limits, up to git's own arguments."""
        git = [program, f"--git-dir={self._directory}"]
        for setting in (*_SETTINGS, f"remote.{REMOTE}.url={self._url}"):
            git += ["-c", setting]
        if sys.platform == "win32":
            return git
        # A repository on this machine is read by a git below this one, which may map all of it.
        memory = "" if self._protocol == "file" else str(_MOST_MEMORY_BYTES >> 10)
        given = [str(self._most_bytes >> 9), memory, *map(str, lifeline)]
        return ["/bin/sh", "-c", _LIMITED, "git", *given, *git]

    def _env(self) -> dict[str, str]:
        if self._environment is None:
            kept = {
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("GIT_", "SSH_ASKPASS"))
                or name in _KEPT
                or name.startswith(_KEPT_BEGINNINGS)
            }
            # Stronger than protocol.*.allow: it also reaches the git that reads a repository on
            # this machine.
            self._environment = kept | _ENVIRONMENT | {"GIT_ALLOW_PROTOCOL": self._protocol}
            if self._protocol == "ssh" and not {"GIT_SSH_COMMAND", "GIT_SSH"} & kept.keys():
                with suppress(GitFailedError):  # none is set
                    self.run("config", "--get", "core.sshCommand", seconds=10)
                    return self._environment
                self._environment["GIT_SSH_COMMAND"] = _SSH
        return self._environment


@contextmanager
def _lifeline() -> Generator[Sequence[int]]:
    """Open a pipe whose reading end sees end-of-file once this process ends or leaves it."""
    if sys.platform == "win32":
        yield ()
        return
    reading, writing = os.pipe()
    # The lowest that is free may be one that the shell needs for itself, or one of the standard
    # three.
    above = fcntl.fcntl(reading, fcntl.F_DUPFD_CLOEXEC, _ABOVE_THOSE_OF_SHELLS)
    os.close(reading)
    try:
        yield (above,)
    finally:
        os.close(writing)
        os.close(above)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it has started."""
    if process.poll() is not None:
        return
    with suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
