"""Parameters of requests: what each schema of MCP takes, and what is said of the rest."""

from __future__ import annotations

from typing import Any

import pytest

from conversations import CAPABILITIES, CLIENT, ENVELOPE, HANDSHAKE, REQUESTS
from mcp_skills_server.server import eras
from mcp_skills_server.server.eras import LEGACY, MODERN, Era, shape_error
from tables import each_row

REFERENCE = {"type": "ref/prompt", "name": "b"}
ARGUMENT = {"name": "x", "value": ""}


def reason(era: Era, method: str, params: dict[str, Any]) -> str | None:
    """What is said of these parameters; None where they are taken."""
    fault = era.envelope_fault(method, params) or era.params_fault(method, params)
    return None if fault is None else fault.message


@pytest.mark.parametrize("era", [LEGACY, MODERN], ids=["legacy", "modern"])
def test_what_clients_say_fits(era: Era) -> None:
    taken = [(method, params) for method, params in REQUESTS if method in era.shapes]
    assert len(taken) > 20
    for method, params in taken:
        given = {**params, "_meta": ENVELOPE} if era.modern else params
        assert reason(era, method, given) is None, (method, params)


@each_row(("era", "method", "params", "said"), [
    (LEGACY, "resources/read", {}, "params.uri is missing"),
    (LEGACY, "resources/read", {"uri": 5}, "params.uri must be a string"),
    (LEGACY, "resources/list", {"cursor": 5}, "params.cursor must be a string"),
    (LEGACY, "resources/list", {"cursor": None}, None),
    (LEGACY, "resources/list", {"anything": 5}, None),
    (LEGACY, "tools/call", {"name": "x", "arguments": []}, "params.arguments must be an object"),
    (LEGACY, "tools/call", {"name": "x", "task": {"ttl": "5"}}, "params.task.ttl must be an integer"),
    (LEGACY, "tools/call", {"name": "x", "task": {"ttl": True}}, "params.task.ttl must be an integer"),
    (LEGACY, "tools/call", {"name": "x", "task": {"ttl": 5.0}}, None),
    (LEGACY, "prompts/get", {"name": "x", "arguments": {"a": 5}}, "params.arguments.a must be a string"),
    (LEGACY, "completion/complete", {"ref": {"type": "x"}, "argument": ARGUMENT}, "params.ref.type must be one of"),
    (LEGACY, "completion/complete", {"ref": REFERENCE, "argument": {"name": "x"}}, "params.argument.value is miss"),
    (LEGACY, "ping", {"_meta": 5}, "params._meta must be an object"),
    (LEGACY, "ping", {"_meta": {"progressToken": True}}, "params._meta.progressToken must be a string"),
    (LEGACY, "initialize", {**HANDSHAKE, "capabilities": {"roots": {"listChanged": "yes"}}}, "must be a boolean"),
    (LEGACY, "initialize", {**HANDSHAKE, "clientInfo": {"name": "x"}}, "params.clientInfo.version is missing"),
    (LEGACY, "logging/setLevel", {"level": "info"}, "Method not found"),
    (MODERN, "skills/list", {"_meta": {**ENVELOPE, CAPABILITIES: {"sampling": 5}}}, "sampling must be an object"),
    (MODERN, "skills/list", {"_meta": {**ENVELOPE, CAPABILITIES: None}}, "clientCapabilities must be an object"),
    (MODERN, "skills/list", {"_meta": {key: ENVELOPE[key] for key in ENVELOPE if key != CAPABILITIES}},
     "clientCapabilities is missing"),
    (MODERN, "skills/list", {"_meta": {**ENVELOPE, "io.modelcontextprotocol/logLevel": "loud"}},
     "logLevel must be one of alert, critical"),
    (MODERN, "skills/list",
     {"_meta": {**ENVELOPE, CLIENT: {"name": "x", "version": "1", "icons": [{"src": "x", "theme": "dim"}]}}},
     "icons[0].theme must be"),
    (MODERN, "subscriptions/listen", {"notifications": {"toolsListChanged": "yes"}, "_meta": ENVELOPE},
     "Invalid params: params.notifications.toolsListChanged must be a boolean"),
])  # fmt: skip
def test_what_does_not_fit_is_named(era: Era, method: str, params: dict[str, Any], said: str | None) -> None:
    found = reason(era, method, params)
    assert found is said or (said is not None and found is not None and said in found)


def test_an_item_of_an_array_is_named_and_a_client_may_have_no_name() -> None:
    assert shape_error(["x", 5], [str], "uris") == "uris[1] must be a string"
    meta = {key: value for key, value in ENVELOPE.items() if key != CLIENT}
    assert eras.client_of_envelope({"_meta": meta}).name is None


def test_a_client_of_an_unknown_revision_is_offered_the_latest_of_its_era() -> None:
    assert eras.handshake({"protocolVersion": "2020-01-01"}, {})["protocolVersion"] == "2025-11-25"
