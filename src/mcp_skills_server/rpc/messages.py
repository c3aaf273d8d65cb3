"""Decoding of Skills Protocol calls from JSON-RPC 2.0 messages, and encoding of responses.

An invalid message raises CallError with the standard's code, which becomes an error response.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, Id
from mcp_skills_server.dialects.skills_protocol import Run
from mcp_skills_server.errors import RequestError
from mcp_skills_server.format.fields import mapping
from mcp_skills_server.model import Json

MAX_BATCH: Final = 100
"""The most calls in one batch."""
MAX_SUMMARY: Final = 200
"""The maximum length of a summary, in characters."""


class CallError(RequestError):
    """A failed call: JSON-RPC code, and data with the requested skill, version or path."""

    def __init__(
        self, message: str, data: Mapping[str, Json] | None = None, code: int = INVALID_PARAMS
    ) -> None:
        super().__init__(message)
        self.data = data
        self.code = code


@dataclass(frozen=True, slots=True)
class Call:
    """A call; `wants_response` is False for a notification."""

    method: str
    params: Mapping[str, Any]
    wants_response: bool
    id: Id


def parse(raw: bytes) -> Any:
    """Decode the JSON of a message, or raise CallError."""
    try:
        return jsonrpc.parse(raw)
    except jsonrpc.JsonError as error:
        raise CallError(f"Parse error: {error}", code=PARSE_ERROR) from None


def parse_call(message: object) -> Call | None:
    """Validate a message as a call, or raise CallError; then `id_of` has the response's id.

    None is a notification with invalid params, whose error has no response (JSON-RPC 2.0, 4.1).
    """
    if not isinstance(message, dict):
        raise CallError("Invalid Request: a call must be an object", code=INVALID_REQUEST)
    fields = cast(dict[str, Any], message)
    if fields.get("jsonrpc") != "2.0":
        raise CallError('Invalid Request: jsonrpc must be "2.0"', code=INVALID_REQUEST)
    if not _is_id(fields.get("id")):
        message = "Invalid Request: id must be a string, a number or null"
        raise CallError(message, code=INVALID_REQUEST)
    method, params = fields.get("method"), fields.get("params")
    if not isinstance(method, str):
        raise CallError("Invalid Request: method must be a string", code=INVALID_REQUEST)
    if not isinstance(params, dict | None):
        if "id" not in fields:
            return None
        code = INVALID_PARAMS if isinstance(params, list) else INVALID_REQUEST
        message = "params must be an object; parameters by position are not supported"
        raise CallError(message, code=code)
    return Call(method, cast(dict[str, Any], params or {}), "id" in fields, fields.get("id"))


def id_of(message: object) -> Id:
    """Return the id for the error response to an invalid call, or None."""
    id_ = mapping(message).get("id")
    return cast(Id, id_) if _is_id(id_) else None


def _is_id(value: object) -> bool:
    return value is None or (isinstance(value, str | int | float) and not isinstance(value, bool))


def failed(kind: str, message: str) -> Run:
    """Return the result of a run that could not start."""
    return Run(new_run_id(), message[:MAX_SUMMARY], error=(kind, message))


def new_run_id() -> str:
    """Return a random identifier for a run."""
    return f"run_{secrets.token_hex(8)}"
