"""What a server leaves running that is killed while it fetches."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from socket import create_server, socket
from time import monotonic, sleep

import pytest

FETCH = """
import sys, anyio
from pathlib import Path
from mcp_skills_server.sources.git.source import GitFolder
from mcp_skills_server.sources.source import SourceSettings
print("begins", flush=True)
anyio.run(GitFolder(sys.argv[1], SourceSettings(Path(sys.argv[2]))).resolve)
"""


def running(words: str) -> list[int]:
    """Processes whose command line has these words."""
    found: list[int] = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if words in each.read_bytes().decode("utf-8", "replace"):
                found.append(int(each.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.needs_program("git")
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_no_git_outlives_a_server_that_is_killed(tmp_path: Path) -> None:
    """The server of this git sends a little all the time, so git's own patience never ends, and nobody else ends it."""
    asked, over = threading.Event(), threading.Event()

    def drip(listener: socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            kind = b"application/x-git-upload-pack-advertisement"
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"\r\n\r\n001e# service=git-upload-pack\n0000"
            )
            asked.set()
            while not over.wait(0.2):
                try:
                    connection.sendall(b"03e8" + b"x" * 996)
                except OSError:
                    return

    with create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=drip, args=(listener,), daemon=True).start()
        url = f"git+http://127.0.0.1:{listener.getsockname()[1]}/a"
        process = subprocess.Popen([sys.executable, "-c", FETCH, url, str(tmp_path / "cache")], stdout=subprocess.PIPE)
        left: list[int] = []
        try:
            assert asked.wait(20)
            process.send_signal(signal.SIGKILL)
            process.wait()
            until = monotonic() + 25  # longer than http.lowSpeedTime
            while (left := running(url.removeprefix("git+"))) and monotonic() < until:
                sleep(0.1)  # no event tells of the end of somebody else's child
            assert not left
        finally:
            for each in left:
                os.kill(each, signal.SIGKILL)
            over.set()
            process.kill()
            process.communicate()
