"""JSON-RPC 2.0: every message has a defined answer, or none where none is wanted."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_skills_server.rpc import messages
from mcp_skills_server.rpc.messages import CallError
from tables import each_row


@pytest.mark.requirement("SP-16")
@each_row("raw", [b"", b"nonsense", b'{"a": NaN}', b"\xff"])
def test_what_is_no_json_is_a_parse_error(raw: bytes) -> None:
    with pytest.raises(CallError, match="Parse error: ") as caught:
        messages.parse(raw)
    assert caught.value.code == -32700 and "\n" not in str(caught.value)


@pytest.mark.requirement("SP-18")
@each_row("identifier", ["1", "", "é", 0, -7, 1.5, 10**30, None])
def test_an_id_of_any_type_is_kept(identifier: Any) -> None:
    call = messages.parse_call({"jsonrpc": "2.0", "id": identifier, "method": "m"})
    assert (call.id, call.wants_response, call.params) == (identifier, True, {})
    assert messages.id_of({"id": identifier}) == identifier


@each_row("identifier", [True, False, [], {}, [1]])
def test_an_id_of_another_type_is_refused_and_answered_with_null(identifier: Any) -> None:
    message = {"jsonrpc": "2.0", "id": identifier, "method": "m"}
    with pytest.raises(CallError, match="id must be a string, a number or null") as caught:
        messages.parse_call(message)
    assert caught.value.code == -32600 and messages.id_of(message) is None


@each_row(
    "message",
    [None, 1, "a", True, [], [[]], {}, {"jsonrpc": "2.0"}, {"jsonrpc": "1.0", "method": "m"}, {"method": "m"},
     {"jsonrpc": 2.0, "method": "m"}, {"jsonrpc": "2.0", "method": 1}, {"jsonrpc": "2.0", "id": 1, "result": {}},
     {"jsonrpc": "2.0", "id": 1, "method": "m", "params": "text"}],
)  # fmt: skip
def test_what_is_no_call_is_an_invalid_request(message: Any) -> None:
    with pytest.raises(CallError) as caught:
        messages.parse_call(message)
    assert caught.value.code == -32600


@pytest.mark.requirement("SP-17")
def test_positional_params_are_refused() -> None:
    with pytest.raises(CallError, match="by position are not supported") as caught:
        messages.parse_call({"jsonrpc": "2.0", "id": 1, "method": "m", "params": ["a"]})
    assert caught.value.code == -32602
