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


def reason(era: Era, method: str, params: dict[str, Any] | None) -> str | None:
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


@each_row(
    ("method", "params", "said"),
    [
        ("resources/read", None, "params.uri is missing"),
        ("resources/read", {"uri": 5}, "params.uri must be a string"),
        ("resources/list", {"cursor": 5}, "params.cursor must be a string"),
        ("resources/list", {"cursor": None}, None),
        ("resources/list", {"anything": 5}, None),
        ("tools/call", {"name": "x", "arguments": []}, "params.arguments must be an object"),
        ("tools/call", {"name": "x", "task": {"ttl": "5"}}, "params.task.ttl must be an integer"),
        ("tools/call", {"name": "x", "task": {"ttl": True}}, "params.task.ttl must be an integer"),
        ("tools/call", {"name": "x", "task": {"ttl": 5.0}}, None),
        ("prompts/get", {"name": "x", "arguments": {"a": 5}}, "params.arguments.a must be a string"),
        ("completion/complete", {"ref": {"type": "x"}, "argument": ARGUMENT}, "params.ref.type must be one of"),
        ("completion/complete", {"ref": REFERENCE, "argument": {"name": "x"}}, "params.argument.value is missing"),
        ("ping", {"_meta": 5}, "params._meta must be an object"),
        ("ping", {"_meta": {"progressToken": True}}, "params._meta.progressToken must be a string"),
        ("initialize", {**HANDSHAKE, "capabilities": {"roots": {"listChanged": "yes"}}}, "must be a boolean"),
        ("initialize", {**HANDSHAKE, "clientInfo": {"name": "x"}}, "params.clientInfo.version is missing"),
        ("logging/setLevel", {"level": "info"}, "Method not found"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(method: str, params: dict[str, Any] | None, said: str | None) -> None:
    found = reason(LEGACY, method, params)
    assert found is said or (said is not None and found is not None and said in found)


@each_row(
    ("meta", "said"),
    [
        ({CAPABILITIES: {"sampling": 5}}, "sampling must be an object"),
        ({CLIENT: {"name": "x", "version": "1", "icons": [{"src": "x", "theme": "dim"}]}}, "icons[0].theme must be"),
        ({"io.modelcontextprotocol/logLevel": "loud"}, "logLevel must be one of alert, critical"),
    ],
)  # fmt: skip
def test_an_envelope_that_does_not_fit_is_named(meta: dict[str, Any], said: str) -> None:
    found = reason(MODERN, "skills/list", {"_meta": {**ENVELOPE, **meta}})
    assert found is not None and said in found


def test_a_flag_of_a_stream_is_a_boolean() -> None:
    given = {"notifications": {"toolsListChanged": "yes", "resourceSubscriptions": ["x"]}, "_meta": ENVELOPE}
    found = reason(MODERN, "subscriptions/listen", given)
    assert found == "Invalid params: params.notifications.toolsListChanged must be a boolean"
    assert shape_error(["x", 5], [str], "uris") == "uris[1] must be a string"


def test_a_client_that_says_nothing_of_itself_has_no_name() -> None:
    meta = {key: value for key, value in ENVELOPE.items() if key != CLIENT}
    assert eras.client_of_envelope({"_meta": meta}).name is None
