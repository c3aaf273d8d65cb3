"""State of the conversation between an editor and an agent, and the messages that the proxy adds to
it.

Bytes in, bytes out: no pipe is touched here. A message of the editor comes out as it went in, but
for a setup of a session, which gets one MCP server more. Of the agent's messages nothing comes out
but what is to be sent behind them. What cannot be parsed is passed on unchanged.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Final

from mcp_skills_server.dialects import acp
from mcp_skills_server.dialects.acp import Answer, AvailableSkill, Ending, Hello, Setup, Takes

_MOST: Final = 1000
"""Sessions, and pending requests, that are tracked; beyond that the oldest is evicted."""
_MOST_BYTES: Final = 16 << 20
"""Of the agent's own updates, over all sessions."""
_LONGEST_ID: Final = 1024
"""Characters of a session's id; a session of a longer one is not looked at."""
_KINDS: Final = (acp.COMMANDS_UPDATE, acp.SKILLS_UPDATE, acp.EXTENSION_METHOD)


class Conversation:
    """One editor and one agent. `ask`, `hear` and `announce` may be called in different threads.

    Args:
        words: the command line of the MCP server that sessions get, its program by absolute path;
            empty for none.
        may_add: asked when a session is set up: whether that server can be of use.
    """

    def __init__(self, words: Sequence[str], may_add: Callable[[], bool]) -> None:
        self._words = words
        self._may_add = may_add
        self._lock = Lock()
        self._version = 1
        self._starts_servers = True
        self._takes = Takes()
        self._pending: OrderedDict[acp.Key, Hello | Setup | Ending] = OrderedDict()
        self._open: OrderedDict[str, None] = OrderedDict()
        self._agent_updates = _AgentUpdates()
        self._skills: tuple[AvailableSkill, ...] | None = None

    def ask(self, lines: bytes) -> bytes:
        """Return whole lines of the editor as the agent gets them."""
        return b"\n".join(map(self._ask, lines.split(b"\n")))

    def _ask(self, line: bytes) -> bytes:
        text, message = _read(line)
        requests = acp.asked(message)
        with self._lock:
            for each in requests:
                if each.key is not None:
                    _put(self._pending, each.key, each)
            version, can = self._version, self._starts_servers
        if not (
            self._words
            and can
            and any(isinstance(each, Setup) for each in requests)
            and self._may_add()
        ):
            return line
        return acp.with_server(text, lambda name: acp.server(name, self._words, version)).encode(
            "utf-8"
        )

    def hear(self, lines: bytes) -> bytes:
        """Return what to send the client behind these whole lines of the agent: lines, or
        nothing."""
        due: dict[str, bool] = {}
        with self._lock:
            for line in lines.split(b"\n"):
                _, message = _read(line)
                for session_id in self._answered(message):
                    due[session_id] = True
                for each in self._updated(message):
                    by_extension = each.kind == acp.EXTENSION_METHOD
                    due[each.session_id] = due.get(each.session_id, False) or by_extension
            return self._lines(due)

    def _answered(self, message: object) -> Iterable[str]:
        """Return the sessions that these answers open."""
        for answer in acp.answered(message):
            request = self._pending.pop(answer.key, None)
            if isinstance(request, Hello):
                self._record_handshake(request, answer)
            elif isinstance(request, Setup):
                session_id = acp.opened(request, answer)
                if session_id is not None and len(session_id) <= _LONGEST_ID:
                    _put(self._open, session_id, None)
                    yield session_id
                self._agent_updates.keep(self._expected())
            elif (
                isinstance(request, Ending)
                and request.session_id is not None
                and answer.result is not None
            ):
                self._open.pop(request.session_id, None)
                self._agent_updates.keep(self._expected())

    def _record_handshake(self, hello: Hello, answer: Answer) -> None:
        if answer.result is not None:
            self._version = acp.spoken(hello, answer)
            self._takes = acp.takes(self._version, hello.capabilities)
            self._starts_servers = acp.starts_servers(self._version, answer.result)

    def _updated(self, message: object) -> Iterable[acp.AgentUpdate]:
        """Yield the agent's own updates, each of which replaced ours at the client."""
        expected = self._expected()
        for each in acp.updated(message):
            if (
                each.kind in acp.kinds(self._takes)
                and len(each.session_id) <= _LONGEST_ID
                and expected(each.session_id)
            ):
                self._agent_updates.put(each.session_id, each.kind, each.fields)
                if each.session_id in self._open:
                    yield each

    def _expected(self) -> Callable[[str], bool]:
        """Return a test whether a session is open or pending: a loaded one replays its history
        before the answer."""
        asked = {each.session_id for each in self._pending.values() if isinstance(each, Setup)}
        return lambda session_id: session_id in self._open or session_id in asked or None in asked

    def announce(self, skills: tuple[AvailableSkill, ...]) -> bytes:
        """Return what to send the client now that these are the skills: nothing where they are the
        same as before."""
        with self._lock:
            if skills == self._skills:
                return b""
            self._skills = skills
            return self._lines(dict.fromkeys(self._open, True))

    def _lines(self, due: Mapping[str, bool]) -> bytes:
        """Return the full snapshot for these sessions, with the extension notification where it is
        due."""
        skills = self._skills
        if skills is None:
            return b""
        lines: list[bytes] = []
        for session_id, extension in due.items():
            # Where the agent's own update cannot be repeated, that session alone gets no update of
            # ours.
            with suppress(ValueError, RecursionError):
                theirs = self._agent_updates.of(session_id)
                notifications = acp.notifications(
                    session_id, skills, self._takes, theirs, extension=extension
                )
                lines += [acp.message(method, params) for method, params in notifications]
        return b"".join(lines)


class _AgentUpdates:
    """The agent's own last updates, by session and kind, as text: parsed it could take twenty times
    the memory."""

    def __init__(self) -> None:
        # None: it cannot be repeated
        self._texts: OrderedDict[tuple[str, str], str | None] = OrderedDict()
        self._bytes = 0

    def put(self, session_id: str, kind: str, update: Mapping[str, Any]) -> None:
        """Record an update. Beyond `_MOST_BYTES` the texts of the oldest ones are dropped."""
        try:
            text: str | None = json.dumps(update, separators=(",", ":"), allow_nan=False)
        except (ValueError, RecursionError):
            text = None
        self._drop((session_id, kind))
        self._texts[session_id, kind] = text
        self._bytes += len(text or "")
        for key in list(self._texts):
            if self._bytes <= _MOST_BYTES:
                break
            self._bytes -= len(self._texts[key] or "")
            self._texts[key] = None
        if len(self._texts) > len(_KINDS) * _MOST:
            self._drop(next(iter(self._texts)))

    def of(self, session_id: str) -> dict[str, Mapping[str, Any]]:
        """Return the updates of a session by kind; ValueError or RecursionError if some of it
        cannot be repeated."""
        out: dict[str, Mapping[str, Any]] = {}
        for kind in _KINDS:
            if (session_id, kind) in self._texts:
                text = self._texts[session_id, kind]
                if text is None:
                    raise ValueError(f"the last {kind} is not known any more")
                out[kind] = json.loads(text)
        return out

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Forget all sessions but these."""
        for key in [key for key in self._texts if not wanted(key[0])]:
            self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        self._bytes -= len(self._texts.pop(key, None) or "")


def _read(line: bytes) -> tuple[str, object]:
    """Return a line as text and as what it says, None where that cannot be read."""
    try:
        text = line.decode("utf-8")
        return text, json.loads(text)
    except (ValueError, RecursionError):
        return "", None


def _put(kept: OrderedDict[Any, Any], key: object, value: object) -> None:
    kept[key] = value
    if len(kept) > _MOST:
        kept.popitem(last=False)
