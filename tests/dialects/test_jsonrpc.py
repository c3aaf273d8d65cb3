"""JSON-RPC 2.0: bytes to messages and back, whatever the bytes are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.jsonrpc import JsonError
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


@each_row(
    ("raw", "value"),
    [
        (rb'"git \ud83d"', "git \ufffd"),
        (rb'"\uDE00\ud83d"', "\ufffd\ufffd"),
        (rb'"\ud83d\ude00"', "\U0001f600"),
        (rb'"\ud83d\ud83d\ude00\ude00"', "\ufffd\U0001f600\ufffd"),
        (rb'"\ud83dx\ude00"', "\ufffdx\ufffd"),
        (rb'"\\ud83d"', r"\ud83d"),
        (rb'"\\\ud83d"', "\\\ufffd"),
        (rb'{"\ud83d": 1}', {"\ufffd": 1}),
        (b'"\xf0\x9f\x98\x80"', "\U0001f600"),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (b'{"a": 1, "a": 2}', {"a": 2}),
    ],
)
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


@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        read = jsonrpc.parse(raw)
    except JsonError:
        return
    assert jsonrpc.parse(jsonrpc.dump(read)) == read


def test_an_error_has_what_it_is_about_if_anything() -> None:
    assert jsonrpc.error(None, -32600, "no") == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32600, "message": "no"},
    }
    assert jsonrpc.error(1, -32602, "no", {"name": "a"})["error"] == {
        "code": -32602,
        "message": "no",
        "data": {"name": "a"},
    }
