"""The front of the HTTP application: what every request passes before its route.

It reads from top to bottom: id and trace, path prefix; Host and Origin, bearer token, connection
slot, request rate, concurrency. Each of the latter steps refuses a request, or passes it on.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from mcp_skills_server.access.principal import Admission
from mcp_skills_server.errors import REPEATS
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.events import Events, request_id
from mcp_skills_server.web.bearer import authenticate, no_valid_token
from mcp_skills_server.web.connections import SLOT, Slot
from mcp_skills_server.web.forwarded import strip_prefix
from mcp_skills_server.web.open_responses import OpenResponses
from mcp_skills_server.web.part import REQUESTER, requester
from mcp_skills_server.web.policy import Policy
from mcp_skills_server.web.rates import ClientLimits, count_failure
from mcp_skills_server.web.refusals import RefusalError

if TYPE_CHECKING:
    from mcp_skills_server.web.probes import Drain

logger = logging.getLogger(__name__)

OPEN_PATHS: Final = frozenset(("/healthz", "/readyz"))
"""Probes of the container platform: under any Host, without a token, not rate limited."""
_EXPOSED: Final = "Mcp-Session-Id, ETag, Content-Range, X-Request-Id, WWW-Authenticate, Retry-After"
"""Response headers that pages of allowed origins may read (CORS)."""
_STREAM: Final = (b"content-type", b"text/event-stream")


@dataclass(frozen=True, slots=True)
class FrontSettings:
    """The conditions and limits under which the front passes requests on."""

    policy: Policy
    limits: ClientLimits = field(default_factory=ClientLimits)
    responses: OpenResponses = field(default_factory=OpenResponses)
    root_path: str = ""  # path prefix that clients see, such as `/skills`
    proxies: Sequence[str] = ()  # whose `X-Forwarded-For` and `-Proto` are trusted


class Front:
    """The outermost ASGI application. `app` has the routes."""

    def __init__(
        self, app: ASGIApp, settings: FrontSettings, publisher: Events, drain: Drain
    ) -> None:
        self._app = app
        self._policy = policy = settings.policy
        self._prefix = settings.root_path
        self._events = publisher
        self._drain = drain
        self._limits = settings.limits
        self._responses = settings.responses
        self._admitting: ASGIApp = self._admit
        if policy.origins:
            self._admitting = CORSMiddleware(
                self._admitting,
                allow_origins=sorted(policy.origins),
                allow_methods=["GET", "HEAD", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=[_EXPOSED],
            )
        if settings.proxies:
            inner: Any = self._admitting  # uvicorn has ASGI types of its own
            proxied: Any = ProxyHeadersMiddleware(inner, trusted_hosts=[*settings.proxies])
            self._admitting = proxied

    def start(self) -> None:
        """Prepare for requests; call it in the event loop that will handle them."""
        self._responses.start()
        if self._policy.oauth is not None:
            self._policy.oauth.issuer.start_fetch()  # for the first request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give a request its id, without its path prefix, and admit it.

        Refusals have an id too. An id sent by the client is ignored.
        """
        id_ = f"{random.getrandbits(64):016x}"
        slot: Slot | None = scope.get("state", {}).get(SLOT)
        # a spare slot is only for one answer, such as that all connections are busy
        is_last = slot is not None and slot.is_spare

        has_begun = False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = [*message.get("headers", ()), (b"x-request-id", id_.encode())]
                if is_last or self._drain.begun:
                    headers.append((b"connection", b"close"))
                message["headers"] = headers
            await send(message)

        # The context ends with the task of the request.
        request_id.set(id_)
        events.http_carrier.set(events.carrier_from_headers(scope["headers"]))
        if self._prefix:
            strip_prefix(scope, self._prefix)
        try:
            with self._events.serving():
                await self._admitting(scope, receive, sending)
        except asyncio.CancelledError:
            if has_begun or not self._drain.is_over:
                raise
            refusal = RefusalError(503, "The server is shutting down; try again", "shutdown")
            await refusal.response()(scope, receive, sending)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it with 400, 401, 403, 429 or 503."""
        address = scope["client"][0] if scope.get("client") else None
        scope[REQUESTER] = self._limits.quotas.requester(None, address)
        try:
            await self._pass_on(scope, receive, send)
        except RefusalError as error:
            client = requester(scope)
            events.emit_refusal(
                scope["method"], error.reason, principal=client.principal, address=client.address
            )
            await error.response(self._policy.oauth)(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to its route; each step before that raises RefusalError."""
        policy, path = self._policy, scope["path"]
        # with a query, such as ?verbose, an operator asks, who must be allowed to
        if path in OPEN_PATHS and not scope.get("query_string"):
            await self._app(scope, receive, send)
            return
        self._check_page(scope)
        admission: Admission | None = None
        if not policy.needs_no_token(path):
            admission = await self._authenticate(scope)
        client = requester(scope)
        slot: Slot | None = scope.get("state", {}).get(SLOT)
        if slot is not None and not slot.admit(client.owner):
            raise RefusalError(503, "All connections are busy; try again in a moment", "busy")
        if path not in OPEN_PATHS:
            await self._limits.rate.take(client)

        permit = self._limits.concurrency.permit(client.owner)

        async def receiving() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                await permit.take()
            return message

        async def sending(message: Message) -> None:
            if _STREAM in message.get("headers", ()):
                permit.release()  # a stream only waits, and must not count as a request
            await send(message)

        if scope["method"] != "POST":  # else once the body has arrived, which may take long
            await permit.take()
        try:
            if admission is None:
                await self._app(scope, receiving, sending)
            else:
                await self._answer_while_admitted(admission, scope, receiving, sending)
        finally:
            permit.release()

    def _check_page(self, scope: Scope) -> None:
        """Refuse a foreign Host or Origin: DNS rebinding, pages of other sites."""
        host = origin = None
        for name, value in scope["headers"]:
            if name == b"host":
                host = value.decode("latin-1")
            elif name == b"origin":
                origin = value.decode("latin-1")
        policy = self._policy
        if not policy.host_allowed(host):
            logger.warning("refused Host %.100r; --allowed-host admits it", host, extra=REPEATS)
            raise RefusalError(403, "This Host is not served here", "host")
        if not policy.origin_allowed(origin) and not policy.is_form_of_own_page(
            scope["path"], host or "", origin or ""
        ):
            logger.warning(
                "refused Origin %.100r; --allowed-origin admits it", origin, extra=REPEATS
            )
            raise RefusalError(403, "This Origin is not allowed", "origin")

    async def _authenticate(self, scope: Scope) -> Admission:
        """Authenticate a request, and set its requester."""
        client = requester(scope)
        try:
            admission = await authenticate(scope, self._policy.tokens, self._policy.oauth)
        except RefusalError as error:
            if error.status == 401:
                count_failure(self._limits.quotas, client)  # over the quota of failures it is a 429
            raise
        logger.debug("%s authenticated as %s", scope["method"], admission.principal.name)
        scope[REQUESTER] = self._limits.quotas.requester(admission.principal, client.address)
        return admission

    async def _answer_while_admitted(
        self, admission: Admission, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Handle a request until it is answered, or its token expires or is revoked."""
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            await send(message)
            started = True

        with self._responses.until_removed(admission) as until_removed:
            await self._app(scope, receive, sending)
        if until_removed.cancelled_caught:
            if not started:
                raise no_valid_token("expired-token")
            with suppress(RuntimeError):  # the response was complete
                await send({"type": "http.response.body", "body": b""})
