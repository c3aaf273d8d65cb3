"""The settings of the HTTP server and of its page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcp_skills_server.access.quotas import QuotaSettings, Rates
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.sessions import Sessions as ToolSessions
from mcp_skills_server.server.notify import RecentNotifications
from mcp_skills_server.web.guards import Policy
from mcp_skills_server.web.rates import TakeShared

if TYPE_CHECKING:
    from mcp_skills_server.shared.records import Records
    from mcp_skills_server.sources.mirrors import SourceState
    from mcp_skills_server.telemetry.usage import UsageStore


@dataclass(frozen=True, slots=True)
class UiSettings:
    """Settings of the page.

    Attributes:
        once: SHA-256 of the secret that lets in once; None where the server's own policy says who
            may look.
        only: serve the page and nothing else.
        counts: of uses; None where nothing is counted.
    """

    once: bytes | None = None
    only: bool = False
    counts: UsageStore | None = None


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Settings of the HTTP server.

    Attributes:
        host: address to listen on.
        port: port to listen on, 0 for any that is free.
        policy: who may come in.
        session_idle: seconds after which an unused legacy session is closed.
        max_sessions: legacy sessions at once; then the owner with most loses the one it left alone
            longest.
        max_body: bytes of a request.
        max_connections: connections at once, if there are file descriptors for so many.
        request_timeout: seconds that a client may take for the head of a request, and again for its
            body.
        sites: tells the state of the roots that are sites.
        quotas: what one principal or address may take of what all share, beside `rates`.
        rates: how often one may ask, and how often fail to prove who it is.
        take_shared: counts requests with other replicas; None where each counts for itself.
        look: polls all sources now, and returns how many there are; None where every root is a
            folder.
        root_path: what stands before all paths that clients see, such as `/skills`; "" for nothing.
        proxies: addresses and networks of proxies, whose `X-Forwarded-For` and `-Proto` are
            believed.
        keep_alive: seconds for which a connection stays without a request.
        drain: seconds from SIGTERM to the end, in which requests are answered and `/readyz` says
            that it ends.
        sessions: makes what keeps the sessions of the tools.
        states: tells the state of what is beside the roots, such as Redis, a line for each thing.
        page_sessions: where replicas share who is signed in at the page; None where each keeps its
            own.
        recent: repeats notifications when another replica has caught up; None where there are no
            replicas.
        allow_empty: ready although no folder has a skill.
        answers_mcp: whether there is an endpoint of MCP.
        entrance: the path that the operator sees in the log.
        is_private: whether only the user who started the server may look.
    """

    host: str
    port: int
    policy: Policy
    session_idle: float = 1800
    max_sessions: int = 1000
    max_body: int = 1 << 20
    max_connections: int = 1000
    request_timeout: float = 30
    sites: Callable[[], Sequence[SourceState]] = list
    quotas: QuotaSettings = field(default_factory=QuotaSettings)
    rates: Rates = field(default_factory=lambda: Rates(QuotaSettings()))
    take_shared: TakeShared | None = None
    look: Callable[[], int] | None = None
    root_path: str = ""
    proxies: Sequence[str] = ()
    keep_alive: int = 5
    drain: float = 0
    sessions: Callable[[Runtime], ToolSessions] = ToolSessions
    states: Callable[[], Sequence[str]] = tuple
    page_sessions: Records | None = None
    recent: RecentNotifications | None = None
    allow_empty: bool = True
    answers_mcp: bool = True
    entrance: str = "/mcp"
    is_private: bool = False
