"""Every message has an answer: what is judged, and what a real process says over its pipes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malformed import CALL, HALVES, MALFORMED, Case, raw, without
from mcp_skills_server.dialects.jsonrpc import MOST_LEVELS, InvalidMessage, Message, decode_message, duplicate
from mcp_skills_server.transport import MAX_LINE
from tables import each_row
from wire import DEADLINE, FIXTURES, SLOW_LOAD, Era, Wire, serving

# Pure


@each_row("case", MALFORMED)
def test_what_is_no_message_is_refused_with_its_id_where_it_could_be_read(case: Case) -> None:
    found = decode_message(case.raw)
    assert isinstance(found, InvalidMessage)
    assert (found.code, found.id) == (case.code, case.id)
    assert "\n" not in found.message
    assert len(found.message) < 200
    assert json.loads(found.response) == {
        "jsonrpc": "2.0",
        "id": case.id,
        "error": {"code": case.code, "message": found.message},
    }


@each_row(
    ("message", "kind"),
    [
        (raw(), "request"),
        (raw(id=""), "request"),
        (raw(id=-5, params={}), "request"),
        (raw(id=2**70, params=None), "request"),
        (raw(id="x" * 1000), "request"),
        (raw(params={"name": [[1]] * 500}), "request"),
        (b"\xef\xbb\xbf" + raw(), "request"),
        (without("id"), "notification"),
        (without("method", result={}), "response"),
        (without("method", error={"code": -1, "message": "no", "data": 1}), "response"),
        (without("method", id=None, error={"code": -1, "message": "no"}), "response"),
    ],
)
def test_what_is_a_message_is_handed_on(message: bytes, kind: str) -> None:
    found = decode_message(message)
    assert isinstance(found, Message)
    assert found.kind == kind
    assert found.fields == json.loads(message.decode("utf-8-sig"))


NAMES = st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=6),
)


@given(VALUES)
def test_whatever_comes_is_judged(value: Any) -> None:
    found = decode_message(json.dumps(value).encode())
    assert isinstance(found, Message) or found.code in {-32700, -32600}


def test_how_deep_a_message_may_be_does_not_depend_on_the_parser() -> None:
    def nested(levels: int) -> bytes:
        return raw(params={"a": 1}).replace(b"1", b"[" * levels + b"]" * levels)

    assert isinstance(decode_message(nested(MOST_LEVELS - 2)), Message)
    assert isinstance(decode_message(nested(MOST_LEVELS - 1)), InvalidMessage)
    wide = raw(params={"a": [[]] * 1000})
    assert isinstance(decode_message(wide), Message)


def test_what_a_stream_asks_for_is_bounded_before_it_is_kept() -> None:
    listen = raw(method="subscriptions/listen", params={"notifications": {"resourceSubscriptions": ["x" * 65_536]}})
    found = decode_message(listen)
    assert isinstance(found, InvalidMessage)
    assert (found.code, found.id) == (-32602, 7)
    assert "65,536 bytes" in found.message
    assert isinstance(decode_message(listen.replace(b"subscriptions/listen", b"skills/list")), Message)


def test_the_second_request_of_an_id_is_refused_by_that_id() -> None:
    refused = duplicate("1")
    assert (refused.code, refused.id) == (-32600, "1")
    assert 'the id "1" is already in progress' in refused.message


def test_over_stdio_every_message_is_answered_and_the_next_request_works(era: Era) -> None:
    """Before the first request of all, too."""
    with serving(FIXTURES, era=era, opened=False) as wire:
        wire._id = 100
        for opened in (False, True):
            for case in MALFORMED:
                wire.send_line(case.raw)
                answer = wire.answer(case.id)
                assert (answer["error"]["code"], answer["id"]) == (case.code, case.id), case.title
                if opened:
                    assert wire.request("skills/list")["skills"]
            if not opened:
                assert wire.open()["capabilities"]
        assert b"Traceback" not in wire.stderr


def test_over_stdio_a_request_with_half_a_character_is_answered(era: Era) -> None:
    with serving(FIXTURES, era=era) as wire:
        for method, params in HALVES:
            answer = wire.answer(wire.start(method, params))
            assert "result" in answer or answer["error"]["code"] == -32602, answer
        assert "\ufffd" in wire.answer(wire.start("skills/get", {"name": "git \ud83d"}))["error"]["message"]


@pytest.mark.parametrize("ended", [True, False])
def test_a_line_that_is_too_long_is_answered_with_the_limit(ended: bool) -> None:
    with serving(FIXTURES) as wire:
        assert wire.process.stdin is not None
        for _ in range((MAX_LINE >> 20) + 1):
            wire.process.stdin.write(b"x" * (1 << 20))
        if ended:
            wire.send_line(b"")
        else:
            wire.process.stdin.flush()
        answer = wire.answer(None)
        assert (answer["error"]["code"], answer["id"]) == (-32600, None)
        assert f"{MAX_LINE:,} bytes" in answer["error"]["message"]
        if not ended:
            wire.send_line(b"x" * 1000)
        assert wire.request("skills/list")["skills"]
        assert wire._answers[None].empty()


@contextmanager
def held(tmp_path: Path, era: Era = "legacy") -> Iterator[tuple[Wire, Path]]:
    """A server that answered the handshake, and the gate at which its first scan waits for a text."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    wire = Wire([sys.executable, "-c", SLOW_LOAD, str(gate), "serve", str(FIXTURES)], era=era)
    try:
        wire.open()
        yield wire, gate
    finally:
        wire.kill()


def test_over_stdio_a_request_whose_id_is_under_way_is_refused_at_once(tmp_path: Path, era: Era) -> None:
    with held(tmp_path, era) as (wire, gate):
        sent = {**CALL, "params": wire._params({})}
        for _ in range(10):
            wire.send_line(json.dumps(sent).encode())
        wire.send_line(json.dumps({**sent, "id": "7"}).encode())
        for _ in range(9):
            answer = wire.answer(7)
            assert answer["error"]["code"] == -32600
            assert "the id 7 is already in progress" in answer["error"]["message"]
        assert wire._answers[7].empty()
        gate.write_text("go")
        assert wire.answer(7)["result"]["skills"]
        assert wire.answer("7")["result"]["skills"]
        wire.send_line(json.dumps(sent).encode())
        assert wire.answer(7)["result"]["skills"]


def test_an_id_is_free_when_its_request_was_taken_back(tmp_path: Path) -> None:
    with held(tmp_path) as (wire, gate):
        wire.send_line(raw())
        wire.notify("notifications/cancelled", {"requestId": 7})
        assert wire.request("ping") == {}
        wire.send_line(raw())
        assert wire.request("ping") == {}
        assert 7 not in wire._answers or wire._answers[7].empty()
        gate.write_text("go")
        assert wire.answer(7)["result"]["skills"]


@pytest.mark.requirement("MCP-51")
def test_requests_that_are_owed_at_the_end_are_answered_once(tmp_path: Path) -> None:
    with held(tmp_path) as (wire, gate):
        asked = [wire.start("skills/list") for _ in range(3)]
        assert wire.process.stdin is not None
        wire.process.stdin.close()
        gate.write_text("go")
        assert all(wire.answer(each, DEADLINE)["result"]["skills"] for each in asked)
        assert wire.wait() == 0
