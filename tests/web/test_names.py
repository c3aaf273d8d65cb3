"""Versions, error codes and header names of the protocol, against those of the SDK, which no server imports."""

from __future__ import annotations

import subprocess
import sys

import mcp_types.jsonrpc as codes
import pytest
from mcp.shared import inbound
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.server import eras
from mcp_skills_server.web import mcp

OURS = {
    "PARSE_ERROR": jsonrpc.PARSE_ERROR, "INVALID_REQUEST": jsonrpc.INVALID_REQUEST,
    "METHOD_NOT_FOUND": jsonrpc.METHOD_NOT_FOUND, "INVALID_PARAMS": jsonrpc.INVALID_PARAMS,
    "INTERNAL_ERROR": jsonrpc.INTERNAL_ERROR, "HEADER_MISMATCH": eras.HEADER_MISMATCH,
    "UNSUPPORTED_PROTOCOL_VERSION": eras.UNSUPPORTED_VERSION,
}  # fmt: skip


@pytest.mark.requirement("MCP-3", "MCP-42", "MCP-43")
def test_names_equal_those_of_the_sdk() -> None:
    assert (*HANDSHAKE_PROTOCOL_VERSIONS,) == eras.LEGACY_VERSIONS
    assert (*MODERN_PROTOCOL_VERSIONS,) == eras.MODERN_VERSIONS
    assert {name: getattr(codes, name) for name in OURS} == OURS
    headers = (inbound.MCP_PROTOCOL_VERSION_HEADER, inbound.MCP_METHOD_HEADER, inbound.MCP_NAME_HEADER)
    assert tuple(name.decode() for name in (mcp.VERSION, mcp.METHOD, mcp.NAME)) == headers
    assert inbound.NAME_BEARING_METHODS == mcp.NAMED
    unused = {codes.MISSING_REQUIRED_CLIENT_CAPABILITY}  # no method here needs a capability of its client
    expected = {code: status for code, status in inbound.ERROR_CODE_HTTP_STATUS.items() if code not in unused}
    assert {**expected, jsonrpc.QUOTA_EXCEEDED: 503} == mcp.STATUS


def test_server_over_http_imports_neither_the_sdk_nor_a_library_of_signatures() -> None:
    code = "import sys, mcp_skills_server.web.serving, mcp_skills_server.web.app"
    code += "; print({'jwt', 'mcp', 'mcp_types', 'pydantic'} & sys.modules.keys())"  # `jwt` only with an issuer
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "set()\n"
