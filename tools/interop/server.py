"""The server that is judged: how it is started, what is there to be seen of it, and how it took it all."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tools.interop.checks import Check
from tools.interop.places import SKILLS
from tools.interop.processes import RefereeError

ERAS: Final = {"modern": "2026-07-28", "legacy": "2025-11-25"}
TOOLS: Final = ("skills_list", "skills_search", "skills_load", "skills_unload", "skills_read")
"""What a server that runs no scripts offers."""
SERVE = [sys.executable, "-m", "mcp_skills_server", "serve"]
"""What starts the server, to be followed by a folder."""
_LISTENING = re.compile(r"listening on (http://127\.0\.0\.1:\d+/mcp)")


@contextmanager
def serving(log: list[str]) -> Iterator[str]:
    """A server over HTTP on a free port; its URL. What it says goes to `log`, its exit code as the last line."""
    command = [*SERVE, str(SKILLS), "--transport", "http", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    found: list[str] = []
    heard = threading.Event()

    def hear() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            log.append(line.rstrip())
            if address := _LISTENING.search(line):
                found.append(address[1])
                heard.set()
        heard.set()

    thread = threading.Thread(target=hear, daemon=True)
    thread.start()
    try:
        heard.wait(20)
        if not found:
            raise RefereeError("the server does not listen: " + " / ".join(log[-5:]))
        yield found[0]
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        thread.join(5)
        log.append(f"exit code {process.returncode}")


def server_checks(log: Sequence[str]) -> list[Check]:
    """How our own server took it all."""
    bad = [line for line in log if "ERROR" in line or "Traceback" in line]
    silent = Check("server", "no error logged", "FAILURE" if bad else "SUCCESS", " / ".join(bad)[:600])
    ended = log[-1] == "exit code 0"
    return [silent, Check("server", "ended well", "SUCCESS" if ended else "FAILURE", log[-1])]


def bundles() -> dict[str, int]:
    """How many of each kind there are, by looking. A nested skill's files count for the enclosing one too."""
    found = [path.parent for path in SKILLS.rglob("SKILL.md")]
    files = sum(path.is_file() for directory in found for path in directory.rglob("*"))
    return {"skill": len(found), "file": files, "tool": len(TOOLS), "use": len(found), "prompt": len(found)}
