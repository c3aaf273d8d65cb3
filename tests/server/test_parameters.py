"""Validation of request params against the schemas of MCP."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_skills_server.server import eras
from mcp_skills_server.server.eras import LEGACY, MODERN, Era, FaultError
from tables import each_row
from web.http_wire import HELLO, MODERN_META
from wire import META

CAPABILITIES = META + "clientCapabilities"
CLIENT = META + "clientInfo"
REFERENCE = {"type": "ref/prompt", "name": "b"}
ARGUMENT = {"name": "x", "value": ""}


def fault_message(era: Era, method: str, params: dict[str, Any]) -> str | None:
    """Return the message about these params, or None if they are valid."""
    try:
        era.check_envelope(method, params)
        era.check_params(method, params)
    except FaultError as fault:
        return str(fault)
    return None


@each_row(("method", "params"), [
    ("resources/list", {"cursor": None}),
    ("resources/list", {"unknown": 5}),
    ("prompts/get", {"name": "x", "arguments": {"a": None, "b": "c"}}),
    ("tools/call", {"name": "x", "task": {"ttl": 5}, "_meta": {"progressToken": 5.0}}),
    ("completion/complete", {"ref": REFERENCE, "argument": ARGUMENT, "context": {"arguments": {"x": "y"}}}),
])  # fmt: skip
def test_null_unknown_and_integral_params_are_valid(method: str, params: dict[str, Any]) -> None:
    assert fault_message(LEGACY, method, params) is None


@pytest.mark.requirement("MCP-2")
@each_row(("era", "method", "params", "message"), [
    (LEGACY, "resources/read", {}, "params.uri is missing"),
    (LEGACY, "resources/read", {"uri": 5}, "params.uri must be a string"),
    (LEGACY, "resources/list", {"cursor": 5}, "params.cursor must be a string"),
    (LEGACY, "tools/call", {"name": "x", "arguments": []}, "params.arguments must be an object"),
    (LEGACY, "prompts/get", {"name": "x", "arguments": {"a": 5}}, "params.arguments.a must be a string"),
    (LEGACY, "completion/complete", {"ref": {"type": "ref/resource"}, "argument": ARGUMENT},
     "Invalid params: params.ref.type must be one of ref/prompt or params.ref.uri is missing"),
    (LEGACY, "prompts/get", {"name": "x", "arguments": {"k" * 9_000: 5}}, f"params.arguments.{'k' * 100} must be"),
    (LEGACY, "completion/complete", {"ref": REFERENCE, "argument": {"name": "x"}}, "params.argument.value is miss"),
    (LEGACY, "ping", {"_meta": 5}, "params._meta must be an object"),
    (LEGACY, "ping", {"_meta": {"progressToken": True}}, "params._meta.progressToken must be a string"),
    (LEGACY, "initialize", {**HELLO, "capabilities": {"extensions": {"x": 5}}}, "extensions.x must be an object"),
    (LEGACY, "initialize", {**HELLO, "clientInfo": {"name": "x"}}, "params.clientInfo.version is missing"),
    (LEGACY, "logging/setLevel", {"level": "info"}, "Method not found"),
    (MODERN, "skills/list", {"_meta": {**MODERN_META, CAPABILITIES: {"extensions": 5}}}, "extensions must be an obj"),
    (MODERN, "skills/list", {"_meta": {**MODERN_META, CAPABILITIES: None}}, "clientCapabilities must be an object"),
    (MODERN, "skills/list", {"_meta": {key: MODERN_META[key] for key in MODERN_META if key != CAPABILITIES}},
     "clientCapabilities is missing"),
    (MODERN, "skills/list", {"_meta": {**MODERN_META, CLIENT: {"name": 5, "version": "1"}}}, "name must be a string"),
    (MODERN, "subscriptions/listen", {"notifications": {"toolsListChanged": "yes"}, "_meta": MODERN_META},
     "Invalid params: params.notifications.toolsListChanged must be a boolean"),
    (MODERN, "subscriptions/listen", {"notifications": {"resourceSubscriptions": ["x", 5]}, "_meta": MODERN_META},
     "params.notifications.resourceSubscriptions[1] must be a string"),
    (MODERN, "subscriptions/listen", {"notifications": {"resourceSubscriptions": "x"}, "_meta": MODERN_META},
     "params.notifications.resourceSubscriptions must be an array"),
])  # fmt: skip
def test_invalid_param_is_named(era: Era, method: str, params: dict[str, Any], message: str) -> None:
    assert message in str(fault_message(era, method, params))


def test_client_without_info_has_no_name() -> None:
    meta = {key: value for key, value in MODERN_META.items() if key != CLIENT}
    assert eras.client_of_envelope({"_meta": meta}).name is None


@pytest.mark.requirement("MCP-8")
@each_row(("requested", "negotiated"), [
    ("2024-11-05", "2024-11-05"), ("2025-03-26", "2025-03-26"), ("2025-06-18", "2025-06-18"),
    ("2025-11-25", "2025-11-25"), ("2020-01-01", "2025-11-25"),
])  # fmt: skip
def test_handshake_negotiates_the_requested_revision_or_the_latest(requested: str, negotiated: str) -> None:
    assert eras.handshake({"protocolVersion": requested})["protocolVersion"] == negotiated
