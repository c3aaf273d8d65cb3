"""Adapter from requests of the SDK to handlers: the caller, its view, and the error that answers
it.

Sessions are bound to the principal. Quotas count by the principal or, where none is required, by
the address.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias, cast

import mcp_types as types
from anyio import BrokenResourceError, ClosedResourceError
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import principal_components
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.views import View
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.runtime.quota import Owner, owner_of
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.eras import (
    MODERN,
    era_of_version,
    outcome_of_error,
    outcome_of_result,
)
from mcp_skills_server.server.notify import ClientLeftError, Stream
from mcp_skills_server.server.requests import Caller
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.events import of_headers, trace_of

PRINCIPAL: Final = "principal"
"""The key of the ASGI scope that holds the principal, set by our guard."""

Context: TypeAlias = ServerRequestContext[Any, Any]
Call: TypeAlias = Callable[[Context, Any], Awaitable[Any]]
Others: TypeAlias = Callable[[Context, View], Awaitable[Served]]
"""Returns what a server has beside skills, for one of its callers."""


def principal(scope: Mapping[str, Any]) -> Principal | None:
    """Return the proved identity of a request's caller, None where none is required; takes the ASGI
    scope, empty for a pipe.
    """
    found: Principal | None = scope.get(PRINCIPAL)
    if found is not None:
        return found
    user = scope.get("user")
    if not isinstance(user, AuthenticatedUser):  # of the server that we are attached to
        return None
    client, issuer, subject = principal_components(user.access_token)
    return Principal(
        "user", subject or client or "", issuer or "", scopes=frozenset(user.access_token.scopes)
    )


def counted(scope: Mapping[str, Any]) -> Owner:
    """Return the owner whose quotas count what a request opens; takes the ASGI scope, empty for a
    pipe."""
    who = principal(scope)
    return owner_of(None if who is None else who.key, address(scope))


def address(scope: Mapping[str, Any]) -> str | None:
    """Return the address that a request comes from; takes the ASGI scope, empty for a pipe."""
    client: tuple[str, int] | None = scope.get("client")
    if client:
        return client[0]
    return None


def caller_of(ctx: Context, attachment: Attachment, others: Others) -> Caller:
    """Return the caller of a request."""
    scope = scope_of(ctx)
    name, extensions = host_of(ctx)
    modern = era_of_version(ctx.protocol_version) is MODERN
    connection = None
    if not modern:
        connection = connection_of(ctx)
    return Caller(
        extensions,
        served=partial(others, ctx),
        principal=principal(scope),
        counted=counted(scope),
        connection=connection,
        progress=partial(_report, ctx),
        audience=attachment if modern and ctx.request is None else connection,
        client=name,
    )


def guarded(call: Call) -> Call:
    """Errors become the protocol's: the client's fault by its code, a bug as -32603 without
    internals."""

    async def guarded(ctx: Context, params: Any) -> Any:
        try:
            return await call(ctx, params)
        except MCPError:
            raise
        except Exception as error:
            fault = era_of_version(ctx.protocol_version).fault_of(error, ctx.method)
            raise MCPError(code=fault.code, message=fault.message, data=fault.data) from None

    return guarded


async def observed(attachment: Attachment, ctx: Context, call_next: CallNext) -> HandlerResult:
    """Middleware: have every request become an event of the server, while events are read."""
    if ctx.request_id is None or not attachment.events.has_readers:
        return await call_next(ctx)
    client = ctx.session.client_params
    scope = scope_of(ctx)
    with (
        attachment.events.serving(),
        events.Request(
            "mcp",
            ctx.method,
            principal=principal(scope),
            address=address(scope),
            era=era_of_version(ctx.protocol_version).name,
            host=None if client is None else client.client_info.name,
            # A session of the SDK lives in the context of the request that began it.
            trace=lambda: trace_of(
                ctx.method,
                ctx.params,
                ctx.request_id,
                of_headers(scope.get("headers", ())),
                version=ctx.protocol_version,
            ),
        ) as request,
    ):
        try:
            result = await call_next(ctx)
        except MCPError as error:
            request.code = error.error.code
            request.outcome = outcome_of_error(error.error.code)
            raise
        except ValidationError:
            request.code = types.INVALID_PARAMS
            request.outcome = "refused"
            raise
        if isinstance(result, dict):
            request.outcome = outcome_of_result(result)
        return result


def host_of(ctx: Context) -> tuple[str | None, Mapping[str, Any]]:
    """Return what the client calls itself, and the extensions of MCP that it declared."""
    client, capabilities = ctx.session.client_params, ctx.session.client_capabilities
    if ctx.method == "initialize":  # the session knows it one request later
        client = types.InitializeRequestParams.model_validate(ctx.params)
        capabilities = client.capabilities
    name = None
    if client is not None:
        name = client.client_info.name
    if capabilities is None:
        return name, {}
    return name, capabilities.extensions or {}


def scope_of(ctx: Context) -> Mapping[str, Any]:
    """The ASGI scope of a request, empty where it came over a pipe."""
    return getattr(ctx.request, "scope", {})


def connection_of(ctx: Context) -> Connection:
    """Return the connection of a request. It lasts from the handshake on, and its exit stack tells
    of its end."""
    # The one private name of the SDK in this package. `ctx.session` is made anew for each message,
    # and mcp 2.3.0 gives handlers and middleware nothing public that lasts as long as the client:
    # `mcp.server.context.Context` has a public `connection`, and `ServerRunner` does not construct
    # it yet.
    return ctx.session._connection  # pyright: ignore[reportPrivateUsage]


class SessionPeer:
    """A legacy client that the SDK's session reaches.

    Args:
        ctx: of one of its messages.

    Attributes:
        principal: the proved identity, None where none is required.
    """

    def __init__(self, ctx: Context) -> None:
        self._session = ctx.session
        self.principal = principal(scope_of(ctx))
        self.connection = connection_of(ctx)

    def at_end(self, work: Callable[[], object]) -> None:
        """Have `work` called when the connection ends."""
        self.connection.exit_stack.callback(work)

    async def send(self, method: str, params: dict[str, Any] | None) -> None:
        """Send a notification that belongs to no request.

        Raises:
            ClientLeftError: the client has left.
        """
        try:
            await self._session.send_notification(_notification(method, params))
        except (BrokenResourceError, ClosedResourceError):
            raise ClientLeftError("a client left while it was being notified") from None


def stream_of(ctx: Context) -> Stream:
    """The stream that answers this request."""

    async def send(method: str, params: dict[str, Any] | None) -> None:
        await ctx.session.send_notification(
            _notification(method, params), related_request_id=ctx.request_id
        )

    return Stream(ctx.request_id, send, ctx.request is None, principal(scope_of(ctx)))


class _Notification(types.Notification[dict[str, Any] | None, str]):
    """Any notification, whether the SDK knows it or not."""


def _notification(method: str, params: dict[str, Any] | None) -> types.ServerNotification:
    return cast("types.ServerNotification", _Notification(method=method, params=params))


async def _report(ctx: Context, seconds: float) -> None:
    await ctx.session.report_progress(seconds, None, f"running for {seconds:.0f} s")
