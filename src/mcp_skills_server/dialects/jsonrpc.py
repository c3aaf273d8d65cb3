"""JSON-RPC 2.0: decoding and validation of messages, and encoding of responses.

JSON is read strictly: UTF-8, no NaN, no overflowing number. Of equal keys the last one wins. A byte
order mark is ignored. A lone surrogate (JavaScript writes one for a cut emoji) is read as U+FFFD,
as web UTF-8 encoders write it. A response that repeats it is then valid UTF-8.

All transports and eras of MCP reject input alike: invalid JSON with -32700, and an invalid message
with -32600 and its id, if readable. The SDK's transports send no response, or another one in each
era.
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
from mcp_skills_server.model.decoding import MAX_LEVELS, TOO_DEEP, is_too_deep

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
QUOTA_EXCEEDED: Final = 429
"""Application-defined error code: the client exceeded a quota, which `data` names (MCP-20)."""

Id: TypeAlias = str | int | float | None
RequestId: TypeAlias = str | int
"""A request id in MCP: never null or a fraction."""

MAX_ID: Final = 1000
"""The maximum length of an id, in characters. The server stores an id during its request, and
repeats it in each notification of a stream."""
_LASTING: Final = frozenset(("initialize", "subscriptions/listen"))
_MAX_LASTING_BYTES: Final = 64 << 10
"""The maximum size of a request that a session or stream stores, parsed to 18 times its size."""

_OBJECT_OR_NONE: Final = (dict, type(None))

_BOM: Final = "\ufeff"
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


class JsonError(SkillsServerError, ValueError):
    """The bytes are not acceptable JSON; the message says why."""


def parse(raw: bytes | bytearray, *, deep: bool = False) -> Any:
    """Decode the JSON of a message; `deep` accepts any nesting that the parser can read.

    Raises:
        JsonError: it is not JSON, or nested too deeply.
    """
    try:
        text = raw.decode("utf-8").removeprefix(_BOM)
    except UnicodeDecodeError:
        raise JsonError("the message is not UTF-8") from None
    if "\\u" in text and _SURROGATE.search(text):
        text = _ESCAPE.sub(_replace_lone, text)
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise JsonError(TOO_DEEP) from None
    except ValueError as error:
        known = isinstance(error, json.JSONDecodeError | JsonError)
        raise JsonError(str(error) if known else "a number is too long") from None
    if not deep and is_too_deep(value):
        raise JsonError(TOO_DEEP)
    return value


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
"""Skips the check for cycles: responses have none, and it takes a third of the time."""


def error(
    id_: Id, code: int, message: str, data: Mapping[str, Json] | None = None
) -> dict[str, Any]:
    """Return an error response."""
    fields: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        fields["data"] = data
    return {"jsonrpc": "2.0", "id": id_, "error": fields}


def dump(value: object) -> bytes:
    """Encode as one line of UTF-8 JSON, with ASCII escapes only if there is a lone surrogate."""
    text = _ENCODER.encode(value)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode("ascii")


@dataclass(slots=True)
class Message:
    """A valid message; its kind is "request", "notification" or "response"."""

    fields: dict[str, Any]
    kind: str

    @property
    def id(self) -> RequestId:
        """The id of a request; KeyError for a notification."""
        return self.fields["id"]


@dataclass(frozen=True, slots=True)
class InvalidMessage:
    """The error response to an invalid message; `id` is None if it was unreadable."""

    code: int
    message: str
    id: RequestId | None = None

    @property
    def response(self) -> bytes:
        """The encoded error response."""
        return dump(error(self.id, self.code, self.message))


def decode_message(raw: bytes | bytearray) -> Message | InvalidMessage:
    """Return the decoded message, or its refusal, in time linear in the number of bytes."""
    try:
        value = parse(raw, deep=True)
    except JsonError as error:
        return InvalidMessage(PARSE_ERROR, f"Parse error: {error}")
    if not isinstance(value, dict):
        reason = "it is not an object"
        if isinstance(value, list):
            reason = "batches are not supported; send each message on its own"
        return InvalidMessage(INVALID_REQUEST, f"Invalid Request: {reason}")
    fields = cast(dict[str, Any], value)
    if "method" not in fields and ("result" in fields or "error" in fields):
        kind, wrong = "response", _why_invalid_response(fields)
    else:
        kind = "notification"
        if "id" in fields:
            kind = "request"
        wrong = _why_invalid_call(fields)
    # Few messages have as many brackets, and only those are walked.
    if wrong is None and raw.count(b"[") + raw.count(b"{") > MAX_LEVELS and is_too_deep(fields):
        wrong = TOO_DEEP
    if wrong is not None:
        id_ = fields.get("id")  # the id of a response is the server's own
        if kind == "response" or not _is_id(id_):
            id_ = None
        return InvalidMessage(INVALID_REQUEST, f"Invalid Request: {wrong}", id_)
    is_lasting = kind == "request" and fields["method"] in _LASTING
    if is_lasting and len(raw) > _MAX_LASTING_BYTES:
        sizes = f"at most {_MAX_LASTING_BYTES:,} bytes, and this has {len(raw):,}"
        reason = f"{fields['method']} accepts {sizes}; send less"
        return InvalidMessage(INVALID_PARAMS, reason, fields["id"])
    return Message(fields, kind)


def too_long(most: int) -> InvalidMessage:
    """Return the refusal of a message that exceeds `most` bytes, whose rest was not read."""
    reason = f"Invalid Request: the message has more than {most:,} bytes"
    return InvalidMessage(INVALID_REQUEST, reason)


def _why_invalid_call(fields: Mapping[str, Any]) -> str | None:
    if fields.get("jsonrpc") != "2.0":
        return 'jsonrpc must be "2.0"'
    if "id" in fields and not _is_id(fields["id"]):
        return f"id must be a string of at most {MAX_ID:,} characters or an integer"
    if not isinstance(fields.get("method"), str):
        return "method must be a string"
    if not isinstance(fields.get("params"), _OBJECT_OR_NONE):
        return "params must be an object"
    return None


def _why_invalid_response(fields: Mapping[str, Any]) -> str | None:
    result, error = fields.get("result"), fields.get("error")
    id_ = fields.get("id")
    if fields.get("jsonrpc") == "2.0":
        if "error" not in fields and isinstance(result, dict) and _is_id(id_):
            return None
        if "result" not in fields and isinstance(error, dict) and (id_ is None or _is_id(id_)):
            given = cast(dict[str, Any], error)
            if type(given.get("code")) is int and isinstance(given.get("message"), str):
                return None
    return "it is neither a request nor a response"


def _is_id(value: object) -> bool:
    return type(value) is int or (isinstance(value, str) and len(value) <= MAX_ID)


def duplicate(id_: RequestId) -> InvalidMessage:
    """Return the refusal of a request that reuses the id of one in progress."""
    shown = dump(id_[:100] if isinstance(id_, str) else id_).decode()
    reason = f"a request with the id {shown} is already in progress; give each request its own id"
    return InvalidMessage(INVALID_REQUEST, f"Invalid Request: {reason}", id_)
