"""A request on its way through the front, and how it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.view import View
from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.runtime.quota import Owner
from mcp_skills_server.server.front.eras import Client, Era
from mcp_skills_server.server.messages import Id
from mcp_skills_server.server.methods import Fault
from mcp_skills_server.transport.scope import Scope

Params: TypeAlias = Mapping[str, Any]


class FaultError(SkillsServerError):
    """A request is refused."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class Channel(Protocol):
    """How requests came, and how their client is reached before they have their answers.

    Attributes:
        principal: whom the client proved to be, None where nobody has to.
        address: where the client is, None for a pipe.
        counted: among whose things counts what the client opens.
        connection: what the requests of a client of the legacy era have in common, None where each stands alone.
        audience: who saw the skills in one place where requests stand alone on a pipe; None where nobody is known to.
        is_shared: whether other messages share it, so that the end of a stream has to be said.
        is_gone: whether the client is known to read no more.
    """

    principal: Principal | None
    address: str | None
    counted: Owner
    connection: object | None
    audience: object | None
    is_shared: bool
    is_gone: bool

    async def send(self, method: str, params: dict[str, Any] | None) -> None:
        """Send a notification."""
        ...


class Request:
    """A request that has no answer yet.

    Attributes:
        id: as the client gave it.
        method: what is asked for.
        params: as they came; None where there are none.
        era: of the connection.
        client: who asks, as it is known when the request comes.
        channel: how it came.
        admitted: whether the handshake was over by then.
        taken_back: whether the client wants no answer any more.
        done: whether the handler has returned, after which it tells nothing.
        scope: what ends the work on it; None before anybody waits, and where a front has its own way.
        made_from: the view that the answer was made from, where it was made from nothing else.
    """

    __slots__ = (
        "admitted", "channel", "client", "done", "era", "id", "made_from", "method", "params", "scope", "taken_back",
    )  # fmt: skip

    def __init__(
        self,
        id_: Id,
        method: str,
        params: Params | None,
        era: Era,
        client: Client,
        *,
        channel: Channel,
        admitted: bool,
    ) -> None:
        self.id = id_
        self.method = method
        self.params = params
        self.era = era
        self.client = client
        self.channel = channel
        self.admitted = admitted
        self.scope: Scope | None = None
        self.taken_back = False
        self.done = False
        self.made_from: View | None = None
