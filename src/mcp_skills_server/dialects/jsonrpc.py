"""JSON-RPC 2.0: bytes to valid messages, and answers to bytes. Pure.

JSON is read as the standard has it: UTF-8, no NaN, no number that overflows; of two equal keys the
last one counts. A byte order mark is passed over. Half a character (a lone surrogate, which
JavaScript writes for a cut emoji) is read as U+FFFD, as every UTF-8 encoder of the web writes it:
so the message can be answered, and so can whatever repeats it.

All transports and eras of MCP refuse alike: what is no JSON with -32700, what is no message with
-32600, each with the id where it could be read. The SDK's transports would be silent, or say
something else in each era.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias, cast

from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.model import Json

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
QUOTA_EXCEEDED: Final = -32000
"""A code of the server's own range: the client has used up its quota, which `data` names."""

Id: TypeAlias = str | int | float | None
RequestId: TypeAlias = str | int
"""The id of a request of MCP."""

MOST_LEVELS: Final = 100
"""Arrays and objects within each other; the parsers below stop at different depths beyond this."""
LONGEST_ID: Final = 1000
"""Characters of an id, which is kept while its request is under way, and repeated in each
notification of a stream."""
LONGEST: Final[Mapping[str, int]] = {"subscriptions/listen": 64 << 10}
"""Bytes of messages of these methods: what they ask for is kept for as long as the client likes."""

_OBJECT_OR_NONE: Final = (dict, type(None))

_BOM: Final = "\ufeff"
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


class JsonError(SkillsServerError, ValueError):
    """The bytes are no JSON; the message says why."""


def parse(raw: bytes | bytearray) -> Any:
    """Return the JSON of a message.

    Raises:
        JsonError: it is none, or too deep to be read.
    """
    try:
        text = raw.decode("utf-8").removeprefix(_BOM)
    except UnicodeDecodeError:
        raise JsonError("the message is not UTF-8") from None
    if "\\u" in text and _SURROGATE.search(text):
        text = _ESCAPE.sub(_replace_lone, text)
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise JsonError("the message is nested too deeply") from None
    except ValueError as error:
        known = isinstance(error, json.JSONDecodeError | JsonError)
        raise JsonError(str(error) if known else "a number is too long") from None


def _replace_lone(escape: re.Match[str]) -> str:
    if escape["half"]:
        return r"\ufffd"
    return escape[0]


def _refuse(name: str) -> NoReturn:
    raise JsonError(f"JSON has no {name}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise JsonError("a number is too large")
    return value


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)
"""Answers hold no cycles; to check for them takes a third of the time."""


def error(
    id_: Id, code: int, message: str, data: Mapping[str, Json] | None = None
) -> dict[str, Any]:
    """Return an answer that says why there is no result."""
    fields: dict[str, Any] = {"code": code, "message": message}
    return {
        "jsonrpc": "2.0",
        "id": id_,
        "error": fields if data is None else {**fields, "data": data},
    }


def dump(value: object) -> bytes:
    """Write JSON on one line in UTF-8. A lone surrogate is written as an escape."""
    text = _ENCODER.encode(value)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode("ascii")


@dataclass(slots=True)
class Message:
    """A valid message.

    Attributes:
        fields: the whole message.
        kind: "request", "notification" or "answer".
    """

    fields: dict[str, Any]
    kind: str

    @property
    def id(self) -> RequestId:
        """The id of a request. Only requests have one."""
        return self.fields["id"]


@dataclass(frozen=True, slots=True)
class InvalidMessage:
    """The refusal of an invalid message.

    Attributes:
        code: of JSON-RPC.
        message: for people, one line.
        id: what the refused request is known by; None where that could not be read.
    """

    code: int
    message: str
    id: RequestId | None = None

    @property
    def answer(self) -> bytes:
        """The answer, as it is sent."""
        return dump(error(self.id, self.code, self.message))


def judge(raw: bytes | bytearray) -> Message | InvalidMessage:
    """Return the message in these bytes, or its refusal, in time that is linear in their number."""
    try:
        value = parse(raw)
    except JsonError as error:
        return InvalidMessage(PARSE_ERROR, f"Parse error: {error}")
    if not isinstance(value, dict):
        reason = "it is no object"
        if isinstance(value, list):
            reason = "batches are not taken; send each message by itself"
        return InvalidMessage(INVALID_REQUEST, f"Invalid Request: {reason}")
    fields = cast(dict[str, Any], value)
    if "method" not in fields and ("result" in fields or "error" in fields):
        kind, wrong = "answer", _wrong_with_answer(fields)
    else:
        kind = "notification"
        if "id" in fields:
            kind = "request"
        wrong = _wrong_with_call(fields)
    if wrong is None and len(raw) > MOST_LEVELS and _is_deep(raw, fields):
        wrong = f"it is nested more than {MOST_LEVELS} levels deep"
    if wrong is not None:
        id_ = fields.get("id")  # that of an answer is one of ours, not one of the client's
        return InvalidMessage(
            INVALID_REQUEST,
            f"Invalid Request: {wrong}",
            id_ if kind != "answer" and _is_id(id_) else None,
        )
    longest = None
    if kind == "request":
        longest = LONGEST.get(fields["method"])
    if longest is not None and len(raw) > longest:
        sizes = f"at most {longest:,} bytes, and this has {len(raw):,}"
        reason = f"{fields['method']} takes {sizes}; ask for fewer resources"
        return InvalidMessage(INVALID_PARAMS, reason, fields["id"])
    return Message(fields, kind)


def too_long(most: int) -> InvalidMessage:
    """Return the refusal of a message with more bytes than this, which was not read to its end."""
    return InvalidMessage(
        INVALID_REQUEST, f"Invalid Request: the message has more than {most:,} bytes"
    )


def _wrong_with_call(fields: Mapping[str, Any]) -> str | None:
    if fields.get("jsonrpc") != "2.0":
        return 'jsonrpc must be "2.0"'
    if "id" in fields and not _is_id(fields["id"]):
        return f"id must be a string of at most {LONGEST_ID:,} characters or an integer"
    if not isinstance(fields.get("method"), str):
        return "method must be a string"
    if not isinstance(fields.get("params"), _OBJECT_OR_NONE):
        return "params must be an object"
    return None


def _wrong_with_answer(fields: Mapping[str, Any]) -> str | None:
    result, error = fields.get("result"), fields.get("error")
    if fields.get("jsonrpc") == "2.0":
        if "error" not in fields and isinstance(result, dict) and _is_id(fields.get("id")):
            return None
        if (
            "result" not in fields
            and isinstance(error, dict)
            and (fields.get("id") is None or _is_id(fields["id"]))
        ):
            given = cast(dict[str, Any], error)
            if type(given.get("code")) is int and isinstance(given.get("message"), str):
                return None
    return "it is neither a request nor a response"


def _is_id(value: object) -> bool:
    return type(value) is int or (isinstance(value, str) and len(value) <= LONGEST_ID)


def _is_deep(raw: bytes | bytearray, value: object) -> bool:
    if raw.count(b"[") + raw.count(b"{") <= MOST_LEVELS:
        return False
    level = [value]
    for _ in range(MOST_LEVELS):
        inner: list[object] = []
        for each in level:
            if isinstance(each, dict):
                held = cast(dict[str, object], each).values()
            else:
                held = cast(list[object], each)
            inner += [child for child in held if isinstance(child, dict | list)]
        if not inner:
            return False
        level = inner
    return True


def duplicate(id_: RequestId) -> InvalidMessage:
    """Return the refusal of a request whose id another one has that is under way."""
    shown = dump(id_[:100] if isinstance(id_, str) else id_).decode()
    reason = (
        f"Invalid Request: a request with the id {shown} is under way already; give each "
        "request an id of its own"
    )
    return InvalidMessage(INVALID_REQUEST, reason, id_)
