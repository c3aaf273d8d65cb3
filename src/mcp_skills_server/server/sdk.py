"""Adapter from the SDK's requests to our handlers: callers, views, errors and events.

Sessions are bound to the principal. Quotas count by principal or, without authentication, by
address.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, cast

import mcp_types as types
from anyio import BrokenResourceError, ClosedResourceError
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import principal_components
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.access.quota import Owner, owner_of
from mcp_skills_server.catalog.views import View
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.server import eras
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.notify import ClientLeftError, Stream
from mcp_skills_server.server.requests import Caller, given_arguments
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.events import carrier_from_headers, trace_of

Context: TypeAlias = ServerRequestContext[Any, Any]
SdkHandler: TypeAlias = Callable[[Context, Any], Awaitable[Any]]
FeaturesOf: TypeAlias = Callable[[Context, View], Awaitable[Served]]
"""Returns the server's other features for one caller."""


def principal(scope: Mapping[str, Any]) -> Principal | None:
    """Return the principal that the server authenticated, from the ASGI scope, or None."""
    user = scope.get("user")
    if not isinstance(user, AuthenticatedUser):
        return None
    client, issuer, subject = principal_components(user.access_token)
    return Principal(
        "user", subject or client or "", issuer or "", scopes=frozenset(user.access_token.scopes)
    )


def quota_owner(scope: Mapping[str, Any]) -> Owner | None:
    """Return the owner whose quotas a request counts against, from the ASGI scope."""
    who = principal(scope)
    return owner_of(None if who is None else who.key, address(scope))


def address(scope: Mapping[str, Any]) -> str | None:
    """Return the client's address from the ASGI scope, or None for a pipe."""
    client: tuple[str | None, int] = scope.get("client") or (None, 0)
    return client[0]


def caller_of(ctx: Context, attachment: Attachment, others: FeaturesOf) -> Caller:
    """Return the caller of a request."""
    scope = scope_of(ctx)
    name, extensions = host_of(ctx)
    modern = eras.era_of_version(ctx.protocol_version) is eras.MODERN
    connection = None if modern else connection_of(ctx)
    # over a pipe all modern requests come from one client, which the attachment stands for
    is_pipe = ctx.request is None
    return Caller(
        extensions,
        served=partial(others, ctx),
        principal=principal(scope),
        quota_owner=quota_owner(scope),
        connection=connection,
        progress=partial(_report, ctx),
        list_connection=attachment if modern and is_pipe else connection,
        client=name,
    )


def map_errors(call: SdkHandler) -> SdkHandler:
    """Wrap a handler to raise MCPError: client errors by code, bugs as -32603 without internals."""

    async def guarded(ctx: Context, params: Any) -> Any:
        try:
            return await call(ctx, params)
        except MCPError:
            raise
        except Exception as error:
            fault = eras.era_of_version(ctx.protocol_version).fault_of(error, ctx.method)
            raise MCPError(code=fault.code, message=str(fault), data=fault.data) from None

    return guarded


async def record_event(attachment: Attachment, ctx: Context, call_next: CallNext) -> HandlerResult:
    """Record each request as an event of the server, and name an invalid param (middleware)."""
    if ctx.request_id is None:
        return await call_next(ctx)
    scope, era = scope_of(ctx), eras.era_of_version(ctx.protocol_version)
    host = None
    with suppress(ValidationError):  # of a handshake that will be refused
        host, _ = host_of(ctx)
    with (
        attachment.events.serving(),
        events.Request(
            "mcp",
            ctx.method,
            principal=principal(scope),
            address=address(scope),
            era=era.name,
            host=host,
            # An SDK session runs in the context of its first request, whose trace would be wrong.
            trace=trace_of(
                ctx.method,
                ctx.params,
                ctx.request_id,
                carrier_from_headers(scope.get("headers", ())),
                version=ctx.protocol_version,
            ),
        ) as request,
    ):
        try:
            reason = eras.shape_error(ctx.params or {}, era.shapes.get(ctx.method, {}))
            if reason is not None:
                raise MCPError(types.INVALID_PARAMS, f"Invalid params: {reason}")
            if ctx.method == "prompts/get" and ctx.params:  # the SDK refuses null
                ctx = replace(ctx, params={**ctx.params, "arguments": given_arguments(ctx.params)})
            result = await call_next(ctx)
        except (MCPError, ValidationError) as error:
            request.code = types.INVALID_PARAMS
            if isinstance(error, MCPError):
                request.code = error.error.code
            request.outcome = eras.outcome_of_error(request.code)
            raise
        if isinstance(result, dict):
            request.outcome = eras.outcome_of_result(result)
        return result


def host_of(ctx: Context) -> tuple[str | None, Mapping[str, Any]]:
    """Return the client's name and its declared MCP extensions."""
    client, capabilities = ctx.session.client_params, ctx.session.client_capabilities
    if ctx.method == "initialize":  # the session has it only after this request
        client = types.InitializeRequestParams.model_validate(ctx.params)
        capabilities = client.capabilities
    name = None if client is None else client.client_info.name
    extensions = None if capabilities is None else capabilities.extensions
    return name, extensions or {}


def scope_of(ctx: Context) -> Mapping[str, Any]:
    """Return the ASGI scope of a request, empty for a pipe."""
    return getattr(ctx.request, "scope", {})


def connection_of(ctx: Context) -> Connection:
    """Return a request's connection, which lasts for the client's session and has an exit stack."""
    # The only use of a private SDK name in this package. `ctx.session` is new for each message, and
    # mcp 2.3.0 has no public object with the client's lifetime for handlers and middleware:
    # `mcp.server.context.Context` has a public `connection`, but `ServerRunner` does not construct
    # it yet.
    return ctx.session._connection  # pyright: ignore[reportPrivateUsage]


class SessionPeer:
    """A legacy client reached through the SDK's session, from one of its messages."""

    def __init__(self, ctx: Context) -> None:
        self._session = ctx.session
        self.principal = principal(scope_of(ctx))
        self.connection = connection_of(ctx)

    def add_exit_callback(self, work: Callable[[], object]) -> None:
        """Call `work` when the connection ends."""
        self.connection.exit_stack.callback(work)

    async def send(self, method: str, params: dict[str, Any] | None) -> None:
        """Send a notification outside any request.

        Raises:
            ClientLeftError: the client is gone.
        """
        try:
            await self._session.send_notification(_notification(method, params))
        except (BrokenResourceError, ClosedResourceError):
            raise ClientLeftError("a client left while it was being notified") from None


def stream_of(ctx: Context) -> Stream:
    """Return the stream for responses to this request."""

    async def send(method: str, params: dict[str, Any] | None) -> None:
        await ctx.session.send_notification(
            _notification(method, params), related_request_id=ctx.request_id
        )

    return Stream(ctx.request_id, send, ctx.request is None, principal(scope_of(ctx)))


class _Notification(types.Notification[dict[str, Any] | None, str]):
    """Any notification, including methods unknown to the SDK."""


def _notification(method: str, params: dict[str, Any] | None) -> types.ServerNotification:
    return cast("types.ServerNotification", _Notification(method=method, params=params))


async def _report(ctx: Context, seconds: float) -> None:
    await ctx.session.report_progress(seconds, None, f"running for {seconds:.0f} s")
