"""Requests of legacy sessions that can be answered at once, answered by our own front instead of the SDK's.

The rule: ours is a POST of a session whose handshake the SDK has seen to its end, from the caller that opened it, whose
headers are as every client sends them, and whose body is a request that only looks at what is at hand. All else is the
SDK's: the sessions themselves, refusals, whatever has to be waited for. `tests/front/` shows that both answer alike.
"""

from __future__ import annotations

from typing import Final

from starlette.types import Scope, Send

from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.front.dispatch import Dispatcher, answer
from mcp_skills_server.server.front.eras import LEGACY, LEGACY_VERSIONS, Client
from mcp_skills_server.server.front.request import Request
from mcp_skills_server.server.messages import Message
from mcp_skills_server.web.endpoint import Sessions
from mcp_skills_server.web.exchange import Exchange
from mcp_skills_server.web.modern import takes_both

SESSION: Final = b"mcp-session-id"
_VERSION: Final = b"mcp-protocol-version"
_LOOKED_AT: Final = frozenset({SESSION, _VERSION, b"accept", b"content-type"})
_VERSIONS: Final = frozenset({None, *(each.encode() for each in LEGACY_VERSIONS)})
_JSON: Final = b"application/json"


class Legacy:
    """Answers requests of legacy sessions.

    Args:
        attachment: the skills that are served. Somebody else keeps it running.
        sessions: the SDK's.
    """

    def __init__(self, attachment: Attachment, sessions: Sessions) -> None:
        self._dispatcher: Final = Dispatcher(attachment)
        self._sessions = sessions

    async def answered(self, message: Message, scope: Scope, send: Send) -> bool:
        """Answer it if it is one of ours, and whether it was."""
        session = _session(scope)
        connection = None if session is None else self._sessions.open_to(session, scope)
        if session is None or connection is None or connection.client_params is None:
            return False
        client, fields = connection.client_params, message.fields
        who = Client(client.capabilities.extensions or {}, client.client_info.name, connection.protocol_version)
        exchange = Exchange(scope, send, connection)
        request = Request(
            message.id, fields["method"], fields.get("params"), LEGACY, who, channel=exchange, admitted=True
        )
        body = self._dispatcher.at_once(request)
        if body is None:
            return False
        self._sessions.touch(session)
        await exchange.end_stream(session, b"".join(answer(message.id, body)))
        return True


def _session(scope: Scope) -> str | None:
    """The session of a POST whose headers are as every client sends them; None for any other."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _LOOKED_AT:
            if name in found:
                return None
            found[name] = value
    fits = (
        found.get(_VERSION) in _VERSIONS
        and found.get(b"content-type", b"").partition(b";")[0].strip() == _JSON
        and takes_both(found.get(b"accept", b""))
    )
    return found[SESSION].decode("latin-1") if fits and SESSION in found else None
