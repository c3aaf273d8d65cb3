"""JSON-RPC 2.0: bytes to messages and back, whatever the bytes are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malformed import MALFORMED, Case, raw, without
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.jsonrpc import InvalidMessage, JsonError, Message, decode_message
from tables import each_row

from .build import JSON


@each_row(("raw", "said"), [
    (b"", "Expecting value"), (b"{", "Expecting property name"), (b'{"a": NaN}', "JSON has no NaN"),
    (b'{"a": -Infinity}', "JSON has no -Infinity"), (b"1e999", "a number is too large"),
    (b"1" * 5000, "a number is too long"), (b"\xff", "not UTF-8"), (b'"\xed\xa0\x80"', "not UTF-8"),
    (b"[" * 100_000, "nested too deeply"), (b"{} {}", "Extra data"), ('"a"'.encode("utf-16"), "not UTF-8"),
])  # fmt: skip
def test_what_is_no_json_is_told_in_one_line(raw: bytes, said: str) -> None:
    with pytest.raises(JsonError, match=said) as caught:
        jsonrpc.parse(raw)
    assert "\n" not in str(caught.value)


@each_row(("raw", "value"), [
    (rb'"git \ud83d"', "git \ufffd"), (rb'"\uDE00\ud83d"', "\ufffd\ufffd"), (rb'"\ud83d\ude00"', "\U0001f600"),
    (rb'"\ud83d\ud83d\ude00\ude00"', "\ufffd\U0001f600\ufffd"), (rb'"\ud83dx\ude00"', "\ufffdx\ufffd"),
    (rb'"\\ud83d"', r"\ud83d"), (rb'"\\\ud83d"', "\\\ufffd"), (rb'{"\ud83d": 1}', {"\ufffd": 1}),
    (b'"\xf0\x9f\x98\x80"', "\U0001f600"), (b'\xef\xbb\xbf{"a": 1}', {"a": 1}), (b'{"a": 1, "a": 2}', {"a": 2}),
])  # fmt: skip
def test_half_a_character_a_mark_and_a_key_that_stands_twice_are_read_by_one_rule(raw: bytes, value: object) -> None:
    assert jsonrpc.parse(raw) == value


@given(st.text(st.characters() | st.characters(categories=["Cs"]), max_size=20))
def test_whatever_text_a_message_holds_the_answer_can_be_written(text: str) -> None:
    read = jsonrpc.parse(json.dumps(text).encode())
    read.encode()
    assert read == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def test_an_answer_that_holds_half_a_character_of_its_own_is_written_as_an_escape() -> None:
    assert jsonrpc.dump({"a": "\ud800"}) == b'{"a":"\\ud800"}'
    assert jsonrpc.dump({"a": "é\n"}) == '{"a":"é\\n"}'.encode()


@given(JSON)
def test_what_is_written_is_read_back(value: Any) -> None:
    raw = jsonrpc.dump(value)
    assert b"\n" not in raw
    assert jsonrpc.parse(raw) == value == json.loads(raw)


# Messages


@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        read = jsonrpc.parse(raw)
    except JsonError:
        return
    assert jsonrpc.parse(jsonrpc.dump(read)) == read


@each_row("case", MALFORMED)
def test_what_is_no_message_is_refused_in_one_line_with_its_id_where_it_could_be_read(case: Case) -> None:
    found = decode_message(case.raw)
    assert isinstance(found, InvalidMessage) and (found.code, found.id) == (case.code, case.id)
    assert "\n" not in found.message and len(found.message) < 200
    error = {"code": case.code, "message": found.message}
    assert json.loads(found.response) == {"jsonrpc": "2.0", "id": case.id, "error": error}


@each_row(("message", "kind"), [
    (raw(), "request"), (raw(id=""), "request"), (raw(id=-5, params={}), "request"),
    (raw(id=2**70, params=None), "request"), (raw(id="x" * 1000), "request"),
    (raw(params={"name": [[1]] * 500}), "request"), (b"\xef\xbb\xbf" + raw(), "request"),
    (without("id"), "notification"), (without("method", result={}), "response"),
    (without("method", error={"code": -1, "message": "no", "data": 1}), "response"),
    (without("method", id=None, error={"code": -1, "message": "no"}), "response"),
])  # fmt: skip
def test_what_is_a_message_is_handed_on(message: bytes, kind: str) -> None:
    found = decode_message(message)
    assert isinstance(found, Message) and found.kind == kind
    assert found.fields == json.loads(message.decode("utf-8-sig"))


NAMES = st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error"])


@given(JSON | st.dictionaries(NAMES, JSON))
def test_whatever_comes_is_judged(value: Any) -> None:
    found = decode_message(json.dumps(value).encode())
    assert isinstance(found, Message) or found.code in {-32700, -32600}


def test_depth_and_size_are_bounded_before_a_message_is_kept() -> None:
    def nested(levels: int) -> bytes:
        return raw(params={"a": 1}).replace(b"1", b"[" * levels + b"]" * levels)

    assert isinstance(decode_message(nested(98)), Message)
    assert isinstance(decode_message(nested(99)), InvalidMessage)
    assert isinstance(decode_message(raw(params={"a": [[]] * 1000})), Message)
    assert f'"{"x" * 100}"' in jsonrpc.duplicate("x" * 101).message
    listen = raw(method="subscriptions/listen", params={"notifications": {"resourceSubscriptions": ["x"]}})
    most = listen.replace(b'"x"', b'"%s"' % (b"x" * (65_537 - len(listen))))
    assert isinstance(decode_message(most), Message)
    found = decode_message(most + b" ")
    assert isinstance(found, InvalidMessage) and (found.code, found.id) == (-32602, 7)
    assert "65,536 bytes" in found.message
    assert isinstance(decode_message(most.replace(b"subscriptions/listen", b"skills/list") + b" " * 99), Message)
