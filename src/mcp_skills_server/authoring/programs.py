"""External programs that an author names, run without a shell: judges and scanners."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from typing import IO, Final

from mcp_skills_server.errors import UsageError, clipped
from mcp_skills_server.model import printable

MAX_OUTPUT: Final = 4 << 20


def parse_command(option: str, command: str) -> list[str]:
    """Return a command split into words, with the first one resolved to a program's path."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        reason = f"cannot be split into words ({error}); close the quotation mark"
        raise UsageError(f"{option} {command}: {reason}") from None
    program = shutil.which(words[0]) if words else None
    if program is None:
        hint = "install it, or give its path"
        raise UsageError(f"{option} {command}: there is no such program; {hint}")
    return [program, *words[1:]]


def run_program(
    words: Sequence[str], timeout_s: float, given: bytes = b"", *, ok_codes: Collection[int] = (0,)
) -> bytes:
    """Run a program and return its stdout; `ok_codes` has the exit codes of success."""
    name = printable(os.path.basename(words[0]))
    with tempfile.TemporaryFile() as stdin:
        try:
            stdin.write(given)
            stdin.seek(0)
            process = subprocess.Popen(  # noqa: S603
                words, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise UsageError(f"{name} could not be started ({error.strerror})") from None
    deadline, out, err = time.monotonic() + timeout_s, bytearray(), bytearray()
    readers = [
        threading.Thread(target=_read, args=(process, stream, kept), daemon=True)
        for stream, kept in ((process.stdout, out), (process.stderr, err))
    ]
    try:
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(max(0.0, deadline - time.monotonic()))
        code = process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        code = None
    finally:
        process.kill()
        process.wait()
    if max(len(out), len(err)) > MAX_OUTPUT:
        raise UsageError(f"{name} wrote more than {MAX_OUTPUT:,} bytes")
    # another process that it started may hold its pipes open
    if code is None or any(reader.is_alive() for reader in readers):
        raise UsageError(f"{name} did not answer within {timeout_s:g} s")
    if code not in ok_codes:
        messages = err.decode(errors="replace").strip() or "it printed nothing on stderr"
        last = clipped(printable(messages.splitlines()[-1]))
        raise UsageError(f"{name} ended with {code}: {last}")
    return bytes(out)


def _read(process: subprocess.Popen[bytes], stream: IO[bytes], kept: bytearray) -> None:
    """Read a program's output, and kill the program if that is too long."""
    with stream:
        kept += stream.read(MAX_OUTPUT + 1)
    if len(kept) > MAX_OUTPUT:
        process.kill()
