"""The settings of the HTTP server and of its page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from mcp_skills_server.access.quota import Quotas
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.sessions import Sessions as ToolSessions
from mcp_skills_server.server.notify import RecentNotifications
from mcp_skills_server.telemetry.load import Load
from mcp_skills_server.web.policy import Policy
from mcp_skills_server.web.rates import ConcurrencyLimits, TakeShared

if TYPE_CHECKING:
    from mcp_skills_server.shared.records import Records
    from mcp_skills_server.sources.mirrors import SourceState
    from mcp_skills_server.telemetry.metrics import Metrics
    from mcp_skills_server.telemetry.usage import UsageStore


@dataclass(frozen=True, slots=True)
class UiSettings:
    """Settings of the page."""

    secret_hash: bytes | None = None  # SHA-256 of the one-time secret; None: the policy admits
    only: bool = False  # serve the page and nothing else
    counts: UsageStore | None = None  # None where nothing is counted


class ProbeAddress(NamedTuple):
    """The address of the listener for probes, the hosts it admits, and its metrics, if any."""

    host: str
    port: int
    admits: Callable[[str], bool]
    metrics: Metrics | None


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Settings of the HTTP server."""

    host: str
    port: int  # 0 for any that is free
    policy: Policy
    session_idle: float = 1800  # seconds after which an unused legacy session is closed
    max_sessions: int = 1000  # legacy sessions at once
    max_body: int = 1 << 20  # bytes of a request body
    max_connections: int = 1000  # at once, if there are enough file descriptors
    request_timeout: float = 30  # seconds for the head of a request, and again for its body
    site_states: Callable[[], Sequence[SourceState]] = list  # of the roots that are sites
    quotas: Quotas = field(default_factory=Quotas)
    concurrency: ConcurrencyLimits = field(default_factory=ConcurrencyLimits)
    load: Load = field(default_factory=Load)
    probe_address: ProbeAddress | None = None
    take_shared: TakeShared | None = None  # counts requests across replicas
    poll_sources: Callable[[], int] | None = None
    """Polls all sources, and returns their number; None if every root is a folder."""
    root_path: str = ""  # path prefix that clients see, such as `/skills`
    proxies: Sequence[str] = ()  # whose `X-Forwarded-For` and `-Proto` are trusted
    keep_alive: int = 5  # seconds that an idle connection stays open
    drain: float = 0  # seconds from SIGTERM to shutdown, in which `/readyz` fails
    make_tool_sessions: Callable[[Runtime], ToolSessions] = ToolSessions
    status_lines: Callable[[], Sequence[str]] = tuple
    """Returns a line for each dependency beside the roots, such as the last reload and Redis; none
    affects readiness."""
    page_sessions: Records | None = None  # shared by replicas; None where each has its own
    recent: RecentNotifications | None = None
    """Repeats notifications when another replica has caught up; None without replicas."""
    allow_empty: bool = True
    """Whether the server is ready although no root had a skill since the start, as with an
    unmounted volume."""
    answers_mcp: bool = True  # whether there is an MCP endpoint
    start_path: str = "/mcp"  # in the log line at startup
    is_private: bool = False  # whether only the user who started the server may use it
