"""JSON-RPC 2.0: bytes to messages, and answers to bytes, the same for every protocol that is carried by it. Pure.

JSON is read as the standard has it: UTF-8, no NaN, no number that overflows; of two equal keys the last one counts. A
byte order mark is passed over. Half a character (a lone surrogate, which JavaScript writes for a cut emoji) is read as
U+FFFD, as every UTF-8 encoder of the web writes it: so the message can be answered, and so can whatever repeats it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn, TypeAlias

from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.model import Json

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
QUOTA_EXCEEDED: Final = -32000
"""Of the codes that a server may choose: the client has had all that one may have. `data` names the quota."""

Id: TypeAlias = str | int | float | None

_MARK: Final = "\ufeff"
_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")
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
        text = raw.decode("utf-8").removeprefix(_MARK)
    except UnicodeDecodeError:
        raise JsonError("the message is not UTF-8") from None
    if "\\u" in text and _HALF.search(text):
        text = _ESCAPE.sub(_whole, text)
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise JsonError("the message is nested too deeply") from None
    except ValueError as error:
        known = isinstance(error, json.JSONDecodeError | JsonError)
        raise JsonError(str(error) if known else "a number is too long") from None


def _whole(escape: re.Match[str]) -> str:
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
"""What is answered was made for it and is no circle; to look for one takes a third of the time."""


def error(id_: Id, code: int, message: str, data: Mapping[str, Json] | None = None) -> dict[str, Any]:
    """Return an answer that says why there is no result."""
    fields: dict[str, Any] = {"code": code, "message": message}
    return {"jsonrpc": "2.0", "id": id_, "error": fields if data is None else {**fields, "data": data}}


def dump(value: object) -> bytes:
    """Write JSON on one line in UTF-8. A lone surrogate is written as an escape."""
    text = _ENCODER.encode(value)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode("ascii")
