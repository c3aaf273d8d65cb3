"""State of an ACP conversation between editor and agent, and the messages that the proxy inserts.

Functions map bytes to bytes without I/O. The editor's messages are unchanged, except that each new
session gets one more MCP server. For the agent's messages only the additions to send after them are
returned. Unparsable messages pass unchanged.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Final

from mcp_skills_server.dialects import acp
from mcp_skills_server.dialects.acp import (
    AgentResponse,
    AvailableSkill,
    SessionRequest,
    UpdateForms,
)
from mcp_skills_server.model.decoding import load_json

_MAX_KEPT: Final = 1000
"""The most tracked sessions, and pending requests; then the oldest is evicted."""
_MAX_BYTES: Final = 16 << 20
"""The most bytes of stored agent updates, over all sessions."""
_MAX_ID: Final = 1024
"""The maximum length of a session id, in characters; other sessions are ignored."""


class Conversation:
    """A conversation of one editor and one agent, with thread-safe methods.

    Args:
        command: of the MCP server for sessions, with an absolute program path; empty for none.
        may_add: called when a session is opened; returns True if that server is useful.
    """

    def __init__(self, command: Sequence[str], may_add: Callable[[], bool]) -> None:
        self._command = command
        self._may_add = may_add
        self._lock = Lock()
        self._version = 1
        self._starts_servers = True
        self._forms = UpdateForms()
        self._pending: OrderedDict[acp.Key, acp.Request] = OrderedDict()
        self._open: OrderedDict[str, None] = OrderedDict()
        self._agent_updates = _AgentUpdates()
        self._skills: tuple[AvailableSkill, ...] | None = None

    def to_agent(self, lines: bytes) -> bytes:
        """Return whole lines of the editor in the form to send to the agent."""
        return b"\n".join(map(self._line_to_agent, lines.split(b"\n")))

    def _line_to_agent(self, line: bytes) -> bytes:
        message = _read(line)
        request = acp.parse_request(message)
        with self._lock:
            if request is not None and request.key is not None:
                _put(self._pending, request.key, request)
            version, can = self._version, self._starts_servers and bool(self._command)
        if not (can and isinstance(request, SessionRequest) and self._may_add()):
            return line
        changed = acp.with_server(message, lambda name: acp.server(name, self._command, version))
        return line if changed is None else changed.encode("utf-8")

    def after_agent_lines(self, lines: bytes) -> bytes:
        """Return the lines to send to the client after these whole lines of the agent, if any."""
        due: dict[str, bool] = {}  # by session: whether also the extension notification is due
        with self._lock:
            for line in lines.split(b"\n"):
                message = _read(line)
                response, update = acp.parse_response(message), acp.parse_update(message)
                if response is not None:
                    session_id = self._handle_response(response)
                    if session_id is not None:
                        due[session_id] = True
                elif update is not None and self._store_update(update):
                    by_extension = update.kind == acp.EXTENSION_METHOD
                    due[update.session_id] = due.get(update.session_id, False) or by_extension
            return self._lines(due)

    def _handle_response(self, response: AgentResponse) -> str | None:
        """Update the state, and return the session that this response opens, or None."""
        request = self._pending.pop(response.key, None)
        opened: str | None = None
        if isinstance(request, acp.InitializeRequest):
            self._record_handshake(request, response)
        elif isinstance(request, SessionRequest):
            opened = acp.opened_session_id(request, response)
            if opened is not None and len(opened) > _MAX_ID:
                opened = None
            if opened is not None:
                _put(self._open, opened, None)
            self._agent_updates.keep(self._expected())
        elif isinstance(request, acp.SessionEnd) and response.result is not None:
            self._open.pop(request.session_id or "", None)
            self._agent_updates.keep(self._expected())
        return opened

    def _record_handshake(self, request: acp.InitializeRequest, response: AgentResponse) -> None:
        if response.result is not None:
            self._version = acp.negotiated_version(request, response)
            self._forms = acp.accepted_forms(self._version, request.capabilities)
            self._starts_servers = acp.starts_servers(self._version, response.result)

    def _store_update(self, update: acp.AgentUpdate) -> bool:
        """Store the agent's own update; return True if it overwrote ours in an open session."""
        is_short = len(update.session_id) <= _MAX_ID
        is_merged = update.kind in acp.merged_kinds(self._forms)
        if not (is_merged and is_short and self._expected()(update.session_id)):
            return False
        self._agent_updates.put(update.session_id, update.kind, update.fields)
        return update.session_id in self._open

    def _expected(self) -> Callable[[str], bool]:
        """Return a test for open or pending sessions; a load replays before its response.

        A new session gets its id (None) only with its response: until then it may have any.
        """
        pending = self._pending.values()
        asked = {request.session_id for request in pending if isinstance(request, SessionRequest)}
        return lambda session_id: session_id in self._open or session_id in asked or None in asked

    def announce(self, skills: tuple[AvailableSkill, ...]) -> bytes:
        """Return the update lines for a new list of skills, or nothing if it is unchanged."""
        with self._lock:
            if skills == self._skills:
                return b""
            self._skills = skills
            return self._lines(dict.fromkeys(self._open, True))

    def _lines(self, due: Mapping[str, bool]) -> bytes:
        """Return full updates for sessions, with the extension notification if the flag is set."""
        skills = self._skills
        if skills is None:
            return b""
        lines: list[bytes] = []
        for session_id, extension in due.items():
            # A session whose agent update cannot be repeated gets no update of ours.
            with suppress(ValueError):
                theirs = self._agent_updates.stored(session_id)
                notifications = acp.notifications(
                    session_id, skills, self._forms, theirs, extension=extension
                )
                lines += [acp.message(method, params) for method, params in notifications]
        return b"".join(lines)


class _AgentUpdates:
    """The agent's own last updates by session and kind, as text: parsed takes 20 times as much."""

    def __init__(self) -> None:
        # None: unrepeatable
        self._texts: OrderedDict[tuple[str, str], str | None] = OrderedDict()
        self._bytes = 0

    def put(self, session_id: str, kind: str, update: Mapping[str, Any]) -> None:
        """Store an update; beyond `_MAX_BYTES` drop the oldest texts."""
        try:
            text: str | None = json.dumps(update, separators=(",", ":"), allow_nan=False)
        except (ValueError, RecursionError):
            text = None
        self._drop((session_id, kind))
        self._texts[session_id, kind] = text
        self._bytes += len(text or "")
        for key in list(self._texts):
            if self._bytes <= _MAX_BYTES:
                break
            self._bytes -= len(self._texts[key] or "")
            self._texts[key] = None
        if len(self._texts) > len(acp.KINDS) * _MAX_KEPT:
            self._drop(next(iter(self._texts)))

    def stored(self, session_id: str) -> dict[str, Mapping[str, Any]]:
        """Return the updates of a session by kind.

        Raises:
            ValueError: one of them cannot be repeated.
        """
        out: dict[str, Mapping[str, Any]] = {}
        for kind in acp.KINDS:
            if (session_id, kind) in self._texts:
                text = self._texts[session_id, kind]
                if text is None:
                    raise ValueError(f"the last {kind} is no longer stored")
                out[kind] = load_json(text)
        return out

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Drop the updates of all sessions except the wanted ones."""
        for key in [key for key in self._texts if not wanted(key[0])]:
            self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        self._bytes -= len(self._texts.pop(key, None) or "")


def _read(line: bytes) -> object:
    """Decode the JSON of a line, or return None."""
    # Not by `load_json`, whose bound would hide a deep update: it overwrites ours at the editor.
    try:
        return json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def _put(kept: OrderedDict[Any, Any], key: object, value: object) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > _MAX_KEPT:
        kept.popitem(last=False)
