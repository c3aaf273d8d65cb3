"""Run the program `git`, hardened so that a repository can only supply objects.

A program and no library, because users configure it: credential helpers, ssh, proxies. Everything
that the server, the repository or the environment could add is off: hooks, filters, submodules,
other protocols, other download locations, prompts.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, cast

from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.sources.lifeline import WATCH, lifeline
from mcp_skills_server.sources.source import UnreachableError

REMOTE: Final = "source"
"""Name of the remote in the generated configuration."""
_KEPT: Final = (
    "GIT_SSH", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_",
    "GIT_EXEC_PATH", "GIT_SSL_CA", "GIT_SSL_CERT", "GIT_SSL_KEY",
)  # fmt: skip
"""Beginnings of git variables that are the user's configuration; all others would redirect git to
another repository, or are for debugging."""
_SETTINGS: Final = (
    f"core.hooksPath={os.devnull}",
    "core.fsmonitor=false",
    "core.askPass=",
    "core.bigFileThreshold=16m",  # larger blobs are streamed
    "core.packedGitWindowSize=16m",
    "core.packedGitLimit=256m",
    "credential.interactive=false",
    # otherwise git runs in the folder of a submodule, with its configuration
    "diff.submodule=short",
    "fetch.recurseSubmodules=false",
    "fetch.unpackLimit=1",  # one pack, whose size the limit on files bounds
    "fetch.uriProtocols=",  # the server must not redirect to other hosts for packs
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
    "LC_ALL": "C",  # its messages are parsed
    "SSH_ASKPASS_REQUIRE": "never",
}
_SSH: Final = "ssh -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=20"
_LIMITED: Final = f"""{WATCH}
ulimit -f "$2"; [ -z "$3" ] || ulimit -v "$3" 2>/dev/null
shift 3; exec "$@"
"""
MAX_FILE_BYTES: Final = 4 << 30
_MAX_MEMORY_BYTES: Final = 4 << 30
_MAX_STDERR: Final = 1 << 13


class GitFailedError(SkillsServerError):
    """A git command failed; the message is its stderr."""


class Git:
    """Runner of git commands for one local repository.

    Args:
        directory: the bare repository, which need not exist yet.
        protocol: of the URL; git may use no other.
        most_bytes: maximum size of one file that git writes, such as a pack.
    """

    def __init__(
        self, directory: Path, url: str, protocol: str, *, most_bytes: int = MAX_FILE_BYTES
    ) -> None:
        self._directory = directory
        self._url = url
        self._protocol = protocol
        self._most_bytes = most_bytes
        self._environment: dict[str, str] | None = None
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False
        self.warned = ""
        """The stderr of the last completed command."""

    def run(self, *words: str, seconds: float, given: bytes = b"", most: int = 1 << 20) -> bytes:
        """Run a git command within `seconds` and return at most `most` bytes of stdout. Blocks.

        Args:
            words: the command and its arguments; `-c` options may precede it.

        Raises:
            GitFailedError: the command fails, times out, or prints more.
            UnreachableError: git is not installed.
        """
        with self.stream(*words, seconds=seconds, given=given) as out:
            raw = out.read(most + 1)
            if len(raw) > most:
                raise GitFailedError(f"fatal: the answer has more than {most:,} bytes")
            return raw

    @contextmanager
    def stream(self, *arguments: str, seconds: float, given: bytes = b"") -> Generator[IO[bytes]]:
        """Run a git command and yield its stdout, to be read within the `with`."""
        git = shutil.which("git")
        if git is None:
            raise UnreachableError("the program git is not installed; install git 2.30 or newer")
        with (
            tempfile.TemporaryFile() as stdin,
            tempfile.TemporaryFile() as stderr,
            lifeline() as passed,
        ):
            stdin.write(given)
            stdin.seek(0)
            command = [*self._command_prefix(git, passed), *arguments]
            try:
                process = subprocess.Popen(  # noqa: S603, the purpose of this module
                    command,
                    stdin=stdin,
                    pass_fds=passed,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env=self._env(),
                    # own session: ssh has no terminal to prompt on, and the group is killed at once
                    start_new_session=True,
                )
            except OSError as error:
                raise UnreachableError(f"git cannot start ({error.strerror or error})") from None
            self._running.add(process)
            overdue = threading.Event()
            timer = threading.Timer(seconds, lambda: (overdue.set(), _kill(process)))
            timer.daemon = True
            timer.start()
            out = cast("IO[bytes]", process.stdout)
            try:
                if self._ended:
                    raise UnreachableError("the server ends")
                yield out
                out.close()
                code = process.wait()
            except BrokenPipeError:
                code = -1
            finally:
                timer.cancel()
                _kill(process)
                out.close()
                process.wait()
                self._running.discard(process)
            if overdue.is_set():
                raise GitFailedError(f"no answer within {seconds:g} seconds")
            stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _MAX_STDERR))
            self.warned = message = stderr.read().decode("utf-8", "replace")
            if code < 0:
                message = f"{message}\nfatal: git was ended by signal {-code}"
            if code:
                raise GitFailedError(message)

    def end(self) -> None:
        """Kill the running commands, and refuse to start further ones."""
        self._ended = True
        for process in tuple(self._running):
            _kill(process)

    def _command_prefix(self, program: str, passed: Sequence[int]) -> list[str]:
        """Return git's command line with resource limits, up to the command."""
        git = [program, f"--git-dir={self._directory}"]
        for setting in (*_SETTINGS, f"remote.{REMOTE}.url={self._url}"):
            git += ["-c", setting]
        if sys.platform == "win32":
            return git
        # A local repository is read by a child git, which may map all of it into memory.
        memory = "" if self._protocol == "file" else str(_MAX_MEMORY_BYTES >> 10)
        given = [*map(str, passed), str(self._most_bytes >> 9), memory]
        return ["/bin/sh", "-c", _LIMITED, "git", *given, *git]

    def _env(self) -> dict[str, str]:
        if self._environment is None:
            kept = {
                name: value
                for name, value in os.environ.items()
                if name.startswith(_KEPT) or not name.startswith(("GIT_", "SSH_ASKPASS"))
            }
            # Stronger than protocol.*.allow: child gits that read a local repository inherit it.
            self._environment = kept | _ENVIRONMENT | {"GIT_ALLOW_PROTOCOL": self._protocol}
            if self._protocol == "ssh" and not {"GIT_SSH_COMMAND", "GIT_SSH"} & kept.keys():
                with suppress(GitFailedError):  # not configured
                    self.run("config", "--get", "core.sshCommand", seconds=10)
                    return self._environment
                self._environment["GIT_SSH_COMMAND"] = _SSH
        return self._environment


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its process group."""
    if process.poll() is not None:
        return
    with suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
