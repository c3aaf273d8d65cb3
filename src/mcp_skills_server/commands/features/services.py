"""The services of a server over HTTP, which its features and its reloader use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp_skills_server.access.tokens import Tokens
    from mcp_skills_server.runtime.runtime import Runtime
    from mcp_skills_server.runtime.sessions import Sessions
    from mcp_skills_server.server.notify import RecentNotifications
    from mcp_skills_server.shared.records import Records
    from mcp_skills_server.web.front import FrontSettings
    from mcp_skills_server.web.rates import TakeShared


@dataclass(frozen=True, slots=True)
class SharedState:
    """The state that replicas share, or by default that of this process alone."""

    poll_sources: Callable[[], int]  # polls all sources, and returns their number
    make_tool_sessions: Callable[[Runtime], Sessions] | None = None
    page_sessions: Records | None = None
    recent: RecentNotifications | None = None  # repeated when another replica has caught up
    take_requests: TakeShared | None = None  # counts requests


@dataclass(frozen=True, slots=True)
class HttpServices:
    """The services of a server over HTTP, on which the parts of its features build."""

    front: FrontSettings
    tokens: Tokens
    shared: SharedState
