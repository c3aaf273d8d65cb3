"""JSON-RPC 2.0: strict decoding of messages, and encoding of responses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malformed import MALFORMED, Case, raw, request_without
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.jsonrpc import InvalidMessage, JsonError, Message, decode_message
from tables import each_row

from .build import JSON


@each_row(("raw", "reason"), [
    (b"", "Expecting value"), (b"{", "Expecting property name"), (b'{"a": NaN}', "JSON has no NaN"),
    (b'{"a": -Infinity}', "JSON has no -Infinity"), (b"1e999", "a number is too large"),
    (b"1" * 5000, "a number is too long"), (b"\xff", "not UTF-8"), (b'"\xed\xa0\x80"', "not UTF-8"),
    (b"{} {}", "Extra data"), ('"a"'.encode("utf-16"), "not UTF-8"),
    *((b"[" * levels + b"]" * levels, "nested more than 100 levels deep") for levels in (101, 100_000)),
])  # fmt: skip
def test_invalid_json_is_refused_with_a_reason_of_one_line(raw: bytes, reason: str) -> None:
    with pytest.raises(JsonError, match=reason) as caught:
        jsonrpc.parse(raw)
    assert "\n" not in str(caught.value)


@each_row(("raw", "value"), [
    (rb'"git \ud83d"', "git \ufffd"), (rb'"\uDE00\ud83d"', "\ufffd\ufffd"), (rb'"\ud83d\ude00"', "\U0001f600"),
    (rb'"\ud83d\ud83d\ude00\ude00"', "\ufffd\U0001f600\ufffd"), (rb'"\ud83dx\ude00"', "\ufffdx\ufffd"),
    (rb'"\\ud83d"', r"\ud83d"), (rb'"\\\ud83d"', "\\\ufffd"), (rb'{"\ud83d": 1}', {"\ufffd": 1}),
    (b'"\xf0\x9f\x98\x80"', "\U0001f600"), (b'\xef\xbb\xbf{"a": 1}', {"a": 1}), (b'{"a": 1, "a": 2}', {"a": 2}),
])  # fmt: skip
def test_surrogates_byte_order_mark_and_duplicate_keys_are_normalized(raw: bytes, value: object) -> None:
    assert jsonrpc.parse(raw) == value


@given(st.text(st.characters() | st.characters(categories=["Cs"]), max_size=20))
def test_parsed_text_is_always_encodable(text: str) -> None:
    parsed = jsonrpc.parse(json.dumps(text).encode())
    parsed.encode()
    assert parsed == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def test_dump_escapes_a_lone_surrogate_only() -> None:
    assert jsonrpc.dump({"a": "\ud800"}) == b'{"a":"\\ud800"}'
    assert jsonrpc.dump({"a": "é\n"}) == '{"a":"é\\n"}'.encode()


@given(JSON)
def test_dumped_values_are_parsed_back(value: Any) -> None:
    raw = jsonrpc.dump(value)
    assert b"\n" not in raw
    assert jsonrpc.parse(raw) == value == json.loads(raw)


@given(st.binary(max_size=100))
def test_any_bytes_are_parsed_or_refused(raw: bytes) -> None:
    try:
        value = jsonrpc.parse(raw)
    except JsonError:
        return
    assert jsonrpc.parse(jsonrpc.dump(value)) == value


@pytest.mark.requirement("MCP-15")
@each_row("case", MALFORMED)
def test_malformed_message_is_refused_with_its_readable_id(case: Case) -> None:
    refused = decode_message(case.raw)
    assert isinstance(refused, InvalidMessage)
    assert (refused.code, refused.id) == (case.code, case.id)
    assert "\n" not in refused.message and len(refused.message) < 200
    error = {"code": case.code, "message": refused.message}
    assert json.loads(refused.response) == {"jsonrpc": "2.0", "id": case.id, "error": error}


@each_row(("message", "kind"), [
    (raw(), "request"), (raw(id=""), "request"), (raw(id=-5, params={}), "request"),
    (raw(id=2**70, params=None), "request"), (raw(id="x" * 1000), "request"),
    (raw(params={"name": [[1]] * 500}), "request"), (b"\xef\xbb\xbf" + raw(), "request"),
    (request_without("id"), "notification"), (request_without("method", result={}), "response"),
    (request_without("method", error={"code": -1, "message": "no", "data": 1}), "response"),
    (request_without("method", id=None, error={"code": -1, "message": "no"}), "response"),
])  # fmt: skip
def test_valid_message_is_decoded_with_its_kind(message: bytes, kind: str) -> None:
    decoded = decode_message(message)
    assert isinstance(decoded, Message) and decoded.kind == kind
    assert decoded.fields == json.loads(message.decode("utf-8-sig"))


NAMES = st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error"])


@given(JSON | st.dictionaries(NAMES, JSON))
def test_any_json_is_a_message_or_refused(value: Any) -> None:
    decoded = decode_message(json.dumps(value).encode())
    assert isinstance(decoded, Message) or decoded.code in {-32700, -32600}


def test_nesting_is_limited_to_100_levels() -> None:
    def nested(levels: int) -> bytes:
        return raw(params={"a": 1}).replace(b"1", b"[" * levels + b"]" * levels)

    assert isinstance(decode_message(nested(98)), Message)
    assert isinstance(decode_message(nested(99)), InvalidMessage)
    assert isinstance(decode_message(raw(params={"a": [[]] * 1000})), Message)


@each_row("method", ["initialize", "subscriptions/listen"])
def test_request_that_is_stored_is_limited_to_64_kib(method: str) -> None:
    stored = raw(method=method, params={"notifications": {"resourceSubscriptions": ["x"]}})
    longest = stored.replace(b'"x"', b'"%s"' % (b"x" * (65_537 - len(stored))))
    assert isinstance(decode_message(longest), Message)
    refused = decode_message(longest + b" ")
    assert isinstance(refused, InvalidMessage)
    assert (refused.code, refused.id) == (-32602, 7)
    assert "65,536 bytes" in refused.message
    other_method = longest.replace(method.encode(), b"skills/list")
    assert isinstance(decode_message(other_method + b" " * 99), Message)


def test_duplicate_id_is_truncated_in_the_refusal() -> None:
    assert f'"{"x" * 100}"' in jsonrpc.duplicate("x" * 101).message
