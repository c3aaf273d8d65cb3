"""Inspector signs in: from a 401 to the issuer, and back with a token. Its browser is played here by one request.

It runs where `make interop` has installed Inspector, and is skipped where it has not.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import urllib.request
from pathlib import Path
from typing import IO

import pytest
from tools import interop

from web.authorization_server import authorization_server
from web.test_oauth import free_port, guarded, own

PROGRAM = interop.MODULES / interop.INSPECTOR / "clients" / "launcher" / "build" / "index.js"
_MOST_S = 60
_NAVIGATE = "Please navigate to: "


def browse(stream: IO[str], said: list[str]) -> None:
    """Go where it asks its user to go, and follow to where that leads."""
    for line in stream:
        said.append(line)
        if line.startswith(_NAVIGATE):
            with urllib.request.urlopen(line.removeprefix(_NAVIGATE).strip(), timeout=_MOST_S) as page:
                page.read()


@pytest.mark.skipif(not (PROGRAM.exists() and interop.NODE.exists()), reason="make interop installs Inspector")
@pytest.mark.parametrize("era", interop.ERAS)
def test_inspector_signs_in(tmp_path: Path, era: str) -> None:
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "MCP_AUTO_OPEN_ENABLED": "true",
        "MCP_INSPECTOR_SECRET_STORE": "memory",
    }
    with (
        authorization_server() as login,
        guarded(tmp_path, login.url, more="scopes = ['skills:read']") as server,
    ):
        callback = f"http://127.0.0.1:{free_port()}/oauth/callback"
        options = ["--cli", "--protocol-era", era, "--format", "json", "--method", "prompts/list"]
        target = ["--callback-url", callback, "--server-url", own(server.port), "--transport", "http"]
        said: list[str] = []
        with subprocess.Popen(
            [str(interop.NODE), str(PROGRAM), *options, *target],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            browser = threading.Thread(target=browse, args=(process.stderr, said), daemon=True)
            browser.start()
            end = threading.Timer(_MOST_S, process.kill)
            end.start()
            out = process.stdout.read()
            code = process.wait()
            end.cancel()
            browser.join(_MOST_S)
        assert code == 0, "".join(said)
        assert [each["name"] for each in json.loads(out)["result"]["prompts"]] == ["one"]
        assert login.resources == [own(server.port)]
        assert {"/register", "/authorize", "/token"} <= {*login.asked}
