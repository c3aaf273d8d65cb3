"""Programs that an author names on the command line: judges and scanners. No shell runs them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Collection, Sequence

from mcp_skills_server.errors import UsageError, clipped
from mcp_skills_server.model import printable


def words_of_command(option: str, command: str) -> list[str]:
    """Return a command as a list of words, the first of which is the path of the program.

    Args:
        option: the option that names it, for messages.
        command: the program with its arguments, in the quoting of a shell.

    Raises:
        UsageError: a quotation mark is not closed, or there is no such program.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"{option} {command}: cannot be taken apart ({error}); close the quotation mark") from None
    program = shutil.which(words[0]) if words else None
    if program is None:
        raise UsageError(f"{option} {command}: there is no such program; install it, or give its path")
    return [program, *words[1:]]


def run_program(words: Sequence[str], timeout_s: float, given: bytes = b"", *, fine: Collection[int] = (0,)) -> bytes:
    """Run a program and return what it writes to stdout.

    Args:
        words: the program and its arguments.
        timeout_s: its time limit.
        given: its stdin.
        fine: the exit codes that are no failure.

    Raises:
        UsageError: it cannot be started, takes too long, or ends with another exit code.
    """
    name = printable(os.path.basename(words[0]))
    try:
        ended = subprocess.run(words, input=given, capture_output=True, timeout=timeout_s, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise UsageError(f"{name} did not answer within {timeout_s:g} s") from None
    except OSError as error:
        raise UsageError(f"{name} could not be started ({error.strerror})") from None
    if ended.returncode not in fine:
        lines = ended.stderr.decode(errors="replace").strip().splitlines() or ["it printed nothing on stderr"]
        raise UsageError(f"{name} ended with {ended.returncode}: {clipped(printable(lines[-1]))}")
    return ended.stdout
