"""Malformed JSON-RPC messages and the error that each gets, on every transport and in both eras."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

CALL: dict[str, Any] = {"jsonrpc": "2.0", "id": 7, "method": "skills/list"}


def raw(**fields: Any) -> bytes:
    return json.dumps({**CALL, **fields}).encode()


def request_without(*names: str, **fields: Any) -> bytes:
    return json.dumps({name: value for name, value in {**CALL, **fields}.items() if name not in names}).encode()


@dataclass(frozen=True)
class Case:
    title: str
    raw: bytes
    code: int
    id: Any = None


MALFORMED = [
    Case("garbage", b"junk", -32700), Case("cut short", raw()[:-9], -32700),
    Case("nothing but NUL", b"\0" * 1000, -32700),
    Case("not UTF-8", raw(params={"name": "X"}).replace(b"X", b"\xe9"), -32700),
    Case("a surrogate in UTF-8", raw(params={"name": "X"}).replace(b"X", b"\xed\xa0\xbd"), -32700),
    Case("UTF-16", raw().decode().encode("utf-16").replace(b"\n", b""), -32700),
    Case("NaN", raw(params={"name": float("nan")}), -32700),
    Case("a number of 5000 digits", raw(params={"name": 1}).replace(b"1", b"1" * 5000), -32700),
    Case("a number too large", raw(params={"name": 1}).replace(b"1", b"1e999"), -32700),
    Case("nested too deep to parse", b"[" * 100_000, -32700),
    Case("nested too deep", raw(params={"name": "X"}).replace(b'"X"', b"[" * 150 + b"]" * 150), -32600, 7),
    Case("a batch", b"[" + raw() + b"," + raw(id=8) + b"]", -32600), Case("an empty batch", b"[]", -32600),
    Case("a number", b"5", -32600), Case("a text", b'"text"', -32600), Case("null", b"null", -32600),
    Case("an empty object", b"{}", -32600), Case("another version", raw(jsonrpc="1.0"), -32600, 7),
    Case("another version and a text as id", raw(jsonrpc=2, id="seven"), -32600, "seven"),
    Case("no version", request_without("jsonrpc"), -32600, 7), Case("id null", raw(id=None), -32600),
    Case("id 1.5", raw(id=1.5), -32600), Case("id 1.0", raw(id=1.0), -32600),
    Case("id an object", raw(id={}), -32600), Case("id an array", raw(id=[7]), -32600),
    Case("id true", raw(id=True), -32600), Case("id too long", raw(id="x" * 1001), -32600),
    Case("no method", request_without("method"), -32600, 7), Case("method a number", raw(method=5), -32600, 7),
    Case("params an array", raw(params=[1]), -32600, 7),
    Case("params a text", raw(params="text"), -32600, 7),
    Case("a notification with an array", request_without("id", method="notifications/x", params=[1]), -32600),
    Case("a notification of another version", request_without("id", method="notifications/x", jsonrpc="1.0"), -32600),
    Case("a response without id", request_without("method", result=5), -32600),
]  # fmt: skip
"""Messages that are refused."""

HALF = "git \ud83d"
"""A lone surrogate, as JavaScript cuts a text in the middle of an emoji."""
LONE_SURROGATES = [
    ("tools/call", {"name": "skills_search", "arguments": {"query": HALF}}),
    ("skills/get", {"name": HALF}),
    ("skills/get", {"uri": f"skill://{HALF}/SKILL.md"}),
    ("skills/list", {"\ud83d": HALF}),
    ("tools/call", {"name": "skills_load", "arguments": {"names": [HALF]}}),
]
"""Requests with a lone surrogate: each gets the same response on every transport."""
