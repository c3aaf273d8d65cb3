"""JSON-RPC server: messages, batches, and the loop between pipes."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.build import JSON
from mcp_skills_server.dialects.skills_protocol import METHODS
from mcp_skills_server.rpc import server
from mcp_skills_server.telemetry.events import Event
from rpc.build import ACTIONS, RpcServer
from tables import each_row

LIST = {"jsonrpc": "2.0", "id": 1, "method": "list_skills", "params": {"limit": 1}}
NOTE = {"jsonrpc": "2.0", "method": "list_skills"}


@pytest.fixture(scope="module")
def rpc() -> RpcServer:
    return RpcServer(ACTIONS)


def send(rpc: RpcServer, message: Any) -> Any:
    return anyio.run(rpc.send, message)


CALL = {"jsonrpc": "2.0", "method": "m", "id": 1}


@pytest.mark.requirement("SP-16", "SP-17", "SP-18", "SP-20")
# A message, and the error code and id of its answer.
@each_row(("message", "code", "identifier"), [
    *[(raw, -32700, None) for raw in (b"", b"nonsense", b"{", b'{"a": NaN}', b"\xff", b"[" * 101 + b"]" * 101)],
    *[(message, -32600, None) for message in (None, 1, "a", True, [], {}, {"jsonrpc": "2.0"}, {"method": "m"})],
    *[({**CALL, "id": identifier}, -32600, None) for identifier in (True, False, [], {}, [1])],
    ({**CALL, "jsonrpc": "1.0"}, -32600, 1),
    ({**CALL, "jsonrpc": 2.0}, -32600, 1),
    ({**CALL, "method": 1}, -32600, 1),
    ({"jsonrpc": "2.0", "id": 1, "result": {}}, -32600, 1),
    ({**CALL, "params": "text"}, -32600, 1),
    ({**CALL, "params": ["a"]}, -32602, 1),
    *[({**CALL, "id": identifier}, -32601, identifier) for identifier in ("1", "", "é", 0, -7, 1.5, 10**30, None)],
])  # fmt: skip
def test_invalid_message_is_answered_with_an_error_and_its_id(
    rpc: RpcServer, message: Any, code: int, identifier: Any
) -> None:
    answer = send(rpc, message)
    assert set(answer) == {"jsonrpc", "id", "error"}
    assert "\n" not in answer["error"]["message"]
    assert (answer["error"]["code"], answer["id"]) == (code, identifier)


@pytest.mark.requirement("SP-17")
def test_notification_with_invalid_params_is_not_run(rpc: RpcServer) -> None:
    seen: list[Event] = []
    end = rpc.runtime.events.subscribe(seen.append)
    with rpc.runtime.events.serving():
        for params in (["a"], "text", 1):
            assert send(rpc, {**NOTE, "params": params}) is None
        send(rpc, NOTE)
    end()
    assert len(seen) == 1


def test_failed_run_is_an_event_with_outcome_refused(rpc: RpcServer) -> None:
    """The audit log records it as a refusal, as it does over MCP."""
    seen: list[Event] = []
    end = rpc.runtime.events.subscribe(seen.append)
    with rpc.runtime.events.serving():
        anyio.run(partial(rpc.call, "execute_skill", name="salesforce.contacts.export"))  # scripts are not allowed
        anyio.run(partial(rpc.call, "describe_skill", name="salesforce.contacts.export"))
    end()
    assert [(event.method, event.outcome) for event in seen] == [("execute_skill", "refused"), ("describe_skill", "ok")]


def test_batch_does_not_delay_another_request(rpc: RpcServer) -> None:
    answered: list[str] = []

    async def request(name: str, message: Any) -> None:
        await rpc.send(message)
        answered.append(name)

    async def request_both() -> None:
        await rpc.send(LIST)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(request, "batch", [LIST] * 100)
            tasks.start_soon(request, "other", LIST)

    anyio.run(request_both)
    assert answered == ["other", "batch"]


def test_batch_has_at_most_100_calls(rpc: RpcServer) -> None:
    assert len(send(rpc, [LIST] * 100)) == 100
    assert send(rpc, [LIST] * 101)["error"]["code"] == -32600


# The limit is one answer and `left` bytes; the call after the limit is reached gets an error.
@each_row(("left", "answered"), [(0, 2), (-1, 1)])
def test_batch_answer_has_a_byte_limit(
    rpc: RpcServer, monkeypatch: pytest.MonkeyPatch, left: int, answered: int
) -> None:
    size = len(anyio.run(rpc.server.answer, json.dumps(LIST).encode()) or b"")
    monkeypatch.setattr(server, "MAX_ANSWERS", size + left)
    answers = send(rpc, [LIST] * 3 + [NOTE] + [{**LIST, "id": "last"}])
    assert ["result" in each for each in answers] == [True] * answered + [False] * (4 - answered)
    assert (answers[-1]["id"], answers[-1]["error"]["code"]) == ("last", -32603)


def test_exception_is_an_internal_error_with_a_logged_traceback(
    rpc: RpcServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(rpc.methods, "call", fail)
    answer = send(rpc, LIST)
    assert answer == {"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": "Internal error"}}
    assert "secret detail" in caplog.text


@pytest.mark.requirement("SP-19")
def test_cursor_of_one_server_is_valid_on_another() -> None:
    one, other = RpcServer(ACTIONS), RpcServer(ACTIONS)
    cursor = send(one, LIST)["result"]["next_cursor"]
    page = {**LIST, "params": {"cursor": cursor}}
    assert send(other, page)["result"] == send(one, page)["result"]


VALUES = JSON | st.sampled_from(["weather", "1.2.0", "SKILL.md", "full", "names", "blob:1", "python", 1])
PARAMETERS = [
    "name", "version", "path", "detail", "limit", "cursor", "namespace", "args", "language", "code", "blob_id",
    "content",
]  # fmt: skip
CALLS = st.fixed_dictionaries({}, optional={
    "jsonrpc": st.just("2.0") | VALUES, "id": VALUES, "method": st.sampled_from([*METHODS, "gone"]) | VALUES,
    "params": st.dictionaries(st.sampled_from(PARAMETERS), VALUES, max_size=4) | VALUES, "more": VALUES,
})  # fmt: skip


def assert_well_formed(answer: Any) -> None:
    assert answer["jsonrpc"] == "2.0"
    assert isinstance(answer["id"], str | int | float | None)
    assert not isinstance(answer["id"], bool)
    if "error" in answer:
        assert set(answer) == {"jsonrpc", "id", "error"}
        assert answer["error"]["code"] in {-32700, -32600, -32601, -32602}
    else:
        assert set(answer) == {"jsonrpc", "id", "result"}


@given(CALLS | VALUES | st.lists(CALLS | VALUES, max_size=5))
def test_any_message_has_a_well_formed_answer_or_none(rpc: RpcServer, message: Any) -> None:
    answer = send(rpc, json.dumps(message).encode())
    if answer is None:
        parts = message if isinstance(message, list) else [message]
        assert parts
        for part in parts:
            assert "id" not in part
    elif isinstance(answer, list):
        assert isinstance(message, list)
        assert 0 < len(answer) <= len(message)
        for each in answer:
            assert_well_formed(each)
    else:
        assert_well_formed(answer)
