"""Sign-in of the MCP Inspector: from a 401 to the issuer, and back with a token.

Skipped unless `make interop` has installed Inspector.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tools.interop.setup import ERAS

from interop.inspector import INSTALLED, inspect
from web.authorization_server import authorization_server
from web.test_oauth import mcp_url, oauth_server


@pytest.mark.skipif(not INSTALLED, reason="make interop installs Inspector")
@pytest.mark.parametrize("era", ERAS)
def test_inspector_signs_in(tmp_path: Path, era: str) -> None:
    with (
        authorization_server() as login,
        oauth_server(tmp_path, login.url, more="scopes = ['skills:read']") as server,
    ):
        found = json.loads(inspect(tmp_path, mcp_url(server.port), era, "prompts/list"))
        assert [each["name"] for each in found["result"]["prompts"]] == ["one"]
        assert login.resources == [mcp_url(server.port)]
        assert {"/register", "/authorize", "/token"} <= {*login.requests}
