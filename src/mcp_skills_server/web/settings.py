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
        secret_hash: SHA-256 of the one-time secret; None where the policy admits viewers.
        only: serve the page and nothing else.
        counts: the usage counts; None where nothing is counted.
    """

    secret_hash: bytes | None = None
    only: bool = False
    counts: UsageStore | None = None


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Settings of the HTTP server.

    Attributes:
        host: address to listen on.
        port: port to listen on, 0 for any that is free.
        policy: conditions of admission.
        session_idle: seconds after which an unused legacy session is closed.
        max_sessions: legacy sessions at once; beyond it the owner with most loses its longest idle
            one.
        max_body: bytes of a request body.
        max_connections: connections at once, if there are enough file descriptors.
        request_timeout: seconds that a client has for the head of a request, and again for its
            body.
        site_states: returns the state of the roots that are sites.
        quotas: shares of one principal or address in common resources, beside `rates`.
        rates: rate limits of requests and of failed authentications.
        take_shared: counts requests across replicas; None where each counts for itself.
        poll_sources: polls all sources, and returns their number; None if every root is a folder.
        root_path: path prefix that clients see, such as `/skills`; "" for none.
        proxies: addresses and networks of proxies whose `X-Forwarded-For` and `-Proto` are trusted.
        keep_alive: seconds that an idle connection stays open.
        drain: seconds from SIGTERM to shutdown, in which requests are answered and `/readyz` fails.
        make_tool_sessions: makes the session store of the tools.
        status_lines: returns a status line for each dependency beside the roots, such as Redis.
        page_sessions: store that replicas share for the page's sessions; None where each has its
            own.
        recent: repeats notifications when another replica has caught up; None without replicas.
        allow_empty: whether the server is ready although no root has a skill.
        answers_mcp: whether there is an MCP endpoint.
        start_path: the path in the log line at startup.
        is_private: whether only the user who started the server may use it.
    """

    host: str
    port: int
    policy: Policy
    session_idle: float = 1800
    max_sessions: int = 1000
    max_body: int = 1 << 20
    max_connections: int = 1000
    request_timeout: float = 30
    site_states: Callable[[], Sequence[SourceState]] = list
    quotas: QuotaSettings = field(default_factory=QuotaSettings)
    rates: Rates = field(default_factory=lambda: Rates(QuotaSettings()))
    take_shared: TakeShared | None = None
    poll_sources: Callable[[], int] | None = None
    root_path: str = ""
    proxies: Sequence[str] = ()
    keep_alive: int = 5
    drain: float = 0
    make_tool_sessions: Callable[[Runtime], ToolSessions] = ToolSessions
    status_lines: Callable[[], Sequence[str]] = tuple
    page_sessions: Records | None = None
    recent: RecentNotifications | None = None
    allow_empty: bool = True
    answers_mcp: bool = True
    start_path: str = "/mcp"
    is_private: bool = False
