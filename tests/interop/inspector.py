"""The command line of the MCP Inspector with a server that needs a token. A GET replaces its browser."""

from __future__ import annotations

import os
import subprocess
import threading
import urllib.request
from pathlib import Path
from typing import IO

from tools.interop.referees import PROGRAM
from tools.interop.setup import NODE

from ports import free_port

INSTALLED = PROGRAM.exists() and NODE.exists()
"""Installed by `make interop`."""
_MOST_S = 60
_NAVIGATE = "Please navigate to: "


def _browse(stream: IO[str], output: list[str]) -> None:
    """Open the address that Inspector prints for its user, and follow the redirects."""
    for line in stream:
        output.append(line)
        if line.startswith(_NAVIGATE):
            with urllib.request.urlopen(line.removeprefix(_NAVIGATE).strip(), timeout=_MOST_S) as page:
                page.read()


def inspect(home: Path, url: str, era: str, method: str, *options: str) -> str:
    """Return the output of Inspector for a method. Its state is kept below `home`, its token is not."""
    environment = {
        **os.environ,
        "HOME": str(home),
        "MCP_AUTO_OPEN_ENABLED": "true",
        "MCP_INSPECTOR_SECRET_STORE": "memory",
    }
    callback = f"http://127.0.0.1:{free_port()}/oauth/callback"
    arguments = ["--cli", "--protocol-era", era, "--format", "json", "--method", method, *options]
    target = ["--callback-url", callback, "--server-url", url, "--transport", "http"]
    output: list[str] = []
    with subprocess.Popen(
        [str(NODE), str(PROGRAM), *arguments, *target],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        browser = threading.Thread(target=_browse, args=(process.stderr, output), daemon=True)
        browser.start()
        end = threading.Timer(_MOST_S, process.kill)
        end.start()
        out = process.stdout.read()
        code = process.wait()
        end.cancel()
        browser.join(_MOST_S)
    assert code == 0, "".join(output)
    return out
