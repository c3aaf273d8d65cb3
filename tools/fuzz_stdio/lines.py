"""What is said, and what it is owed. Pure, but for the dice and the record of real clients."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Final

from conversations import CAPABILITIES, CLIENT, ENVELOPE, HANDSHAKE, NOTIFICATIONS, REQUESTS, STATEFUL
from malformed import MALFORMED
from mcp_skills_server.server.messages import Message, judge
from mcp_skills_server.transport.framing import MAX_LINE

ROOT = Path(__file__).resolve().parent.parent.parent
RECORDED = ROOT / "tests" / "server" / "recorded.jsonl"
_JUNK: Final[list[Any]] = [
    None,
    True,
    0,
    -1,
    1.5,
    2**70,
    "",
    "x",
    "\ud83d",
    "é" * 50,
    [],
    {},
    [[]],
    {"x": {}},
    "2026-07-28",
]
Key = tuple[str, Any]
"""An id and its type: "1" and 1 are two."""


def wild(dice: random.Random, corpus: list[bytes], number: int, *, modern: bool) -> list[bytes]:
    """Some lines of a client, the ids of whose requests count from `number`."""
    kind = dice.randrange(24)
    if kind < 9:
        return [_request(dice, number, modern=modern)]
    if kind < 13:
        return [_changed(dice, dice.choice(corpus))]
    if kind < 15:
        return [_cut(dice, _request(dice, number, modern=modern))]
    if kind == 15:  # one id, more than once at a time
        return [_request(dice, number, modern=modern) for _ in range(dice.randrange(2, 6))]
    if kind == 16:
        return [dice.choice(MALFORMED).raw.replace(b"\n", b" ")]
    if kind == 17:
        return [b"[" + b",".join(_request(dice, number + each, modern=modern) for each in range(3)) + b"]"]
    if kind == 18:
        return [dice.randbytes(dice.randrange(1, 3000)).replace(b"\n", b"")]
    if kind == 19:
        method, params = dice.choice(NOTIFICATIONS)
        return [line_of({"method": method, **({} if params is None else {"params": params})})]
    if kind == 20:  # asked, and taken back
        request = _request(dice, number, modern=modern)
        back = line_of(
            {"method": "notifications/cancelled", "params": {"requestId": dice.choice([number, str(number)])}}
        )
        return [request, back]
    if kind == 21:
        return [line_of({"id": number, "method": "initialize", "params": HANDSHAKE})] * dice.randrange(1, 3)
    if kind == 22:
        return [
            line_of(
                {"id": number, **dice.choice([{"result": {}}, {"error": {"code": 1, "message": "x"}}, {"result": 5}])}
            )
        ]
    return [_large(dice, number)]


def line_of(message: dict[str, Any]) -> bytes:
    """A message of JSON-RPC."""
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


def _request(dice: random.Random, number: int, *, modern: bool) -> bytes:
    method, params = dice.choice(REQUESTS + STATEFUL)
    out = json.loads(json.dumps(params))
    if modern != (dice.random() < 0.05):
        out["_meta"] = json.loads(json.dumps(ENVELOPE))
    if dice.random() < 0.3:
        where, key = out, "cursor"
        while where:
            key = dice.choice([*where, CAPABILITIES, CLIENT])
            inner = where.get(key)
            if not isinstance(inner, dict) or dice.random() < 0.3:
                break
            where = inner
        where[key] = dice.choice(_JUNK)
    return line_of({"id": dice.choice([number, number, str(number), f"{number}.0"]), "method": method, "params": out})


def _changed(dice: random.Random, raw: bytes) -> bytes:
    """A line with a few bytes other than they were."""
    out = bytearray(raw)
    for _ in range(dice.randrange(1, 5)):
        place = dice.randrange(len(out) + 1)
        how = dice.randrange(4)
        if how == 0:
            out[place:place] = dice.choice(
                [b'"', b"{", b"}", b"[", b"\\", b",", b"0", b"\xff", b"\\ud83d", b"null", b" "]
            )
        elif how == 1:
            del out[place : place + dice.randrange(1, 9)]
        elif how == 2 and place < len(out):
            out[place] ^= 1 << dice.randrange(8)
        else:
            out[place:place] = out[place : place + dice.randrange(1, 40)]
    return bytes(out).replace(b"\n", b" ")


def _cut(dice: random.Random, raw: bytes) -> bytes:
    return raw[: dice.randrange(len(raw))]


def _large(dice: random.Random, number: int) -> bytes:
    size = dice.choice([1 << 16, 1 << 20, MAX_LINE - 200, MAX_LINE + 1, 20_000_000])
    if dice.random() < 0.3:
        return b"x" * size
    return line_of({"id": number, "method": "skills/get", "params": {"name": "x" * size}})


def opening(*, modern: bool) -> list[bytes]:
    """How a client of an era begins."""
    if modern:
        return [line_of({"id": "first", "method": "server/discover", "params": {"_meta": ENVELOPE}})]
    first = line_of({"id": "first", "method": "initialize", "params": HANDSHAKE})
    return [first, line_of({"method": "notifications/initialized"})]


def corpus() -> list[bytes]:
    """What real clients said, as it was recorded, and one of each of our own."""
    rows = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    said = {line.encode() for row in rows for line in row["lines"]}
    return [*sorted(said), *(line_of({"id": 7, "method": method, "params": params}) for method, params in REQUESTS)]


def owed(line: bytes) -> tuple[Key | None, Any]:
    """What a line is owed: the id of its answer, None for none; and the id that it takes back, None for none."""
    if not line.strip():
        return None, None
    if len(line) > MAX_LINE:
        return key(None), None
    found = judge(line)
    if not isinstance(found, Message):
        return key(found.id), None
    if found.kind == "request":
        return key(found.id), None
    back = (found.fields.get("params") or {}).get("requestId") if found.kind == "notification" else None
    return None, back if found.fields.get("method") == "notifications/cancelled" else None


def key(id_: Any) -> Key:
    """An id as answers are counted by it."""
    return type(id_).__name__, id_
