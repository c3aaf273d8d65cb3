"""Sign-in of the MCP Inspector: from a 401 to the issuer, and back with a token. A GET replaces its browser.

Skipped unless `make interop` has installed Inspector.
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
from tools.interop.referees import PROGRAM
from tools.interop.setup import ERAS, NODE

from ports import free_port
from web.authorization_server import authorization_server
from web.http_wire import http_serving
from web.test_oauth import mcp_url, oauth_server

_MAX_S = 60
_NAVIGATE = "Please navigate to: "


def browse(stream: IO[str], output: list[str]) -> None:
    """Open the address that Inspector prints for its user, and follow the redirects."""
    for line in stream:
        output.append(line)
        if line.startswith(_NAVIGATE):
            with urllib.request.urlopen(line.removeprefix(_NAVIGATE).strip(), timeout=_MAX_S) as page:
                page.read()


def list_prompts(home: Path, url: str, era: str) -> str:
    """Return the output of Inspector for `prompts/list`. Its state is kept below `home`, its token is not."""
    environment = {
        **os.environ,
        "HOME": str(home),
        "MCP_AUTO_OPEN_ENABLED": "true",
        "MCP_INSPECTOR_SECRET_STORE": "memory",
    }
    callback = f"http://127.0.0.1:{free_port()}/oauth/callback"
    arguments = ["--cli", "--protocol-era", era, "--format", "json", "--method", "prompts/list"]
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
        browser = threading.Thread(target=browse, args=(process.stderr, output), daemon=True)
        browser.start()
        end = threading.Timer(_MAX_S, process.kill)
        end.start()
        out = process.stdout.read()
        code = process.wait()
        end.cancel()
        browser.join(_MAX_S)
    assert code == 0, "".join(output)
    return out


@pytest.mark.skipif(not (PROGRAM.exists() and NODE.exists()), reason="make interop installs Inspector")
@pytest.mark.parametrize("era", ERAS)
def test_inspector_signs_in(tmp_path: Path, era: str) -> None:
    with (
        authorization_server() as login,
        oauth_server(tmp_path, login.url, more="scopes = ['skills:read']", serving=http_serving) as server,
    ):
        found = json.loads(list_prompts(tmp_path, mcp_url(server.port), era))
        assert [each["name"] for each in found["result"]["prompts"]] == ["one"]
        assert login.resources == [mcp_url(server.port)]
        assert {"/register", "/authorize", "/token"} <= {*login.requests}
