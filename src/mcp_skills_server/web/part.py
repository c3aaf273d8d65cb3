"""A part of the HTTP application: open paths, routes, background tasks; who sent a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mcp_skills_server.access.quota import LOCAL_REQUESTER, Requester

if TYPE_CHECKING:
    from starlette.routing import BaseRoute


REQUESTER: Final = "mcp_skills_server.requester"
"""The key of the requester in the ASGI scope. The front sets it, and the page for its viewer."""


def requester(scope: Mapping[str, Any]) -> Requester:
    """Return who sent a request."""
    return scope.get(REQUESTER, LOCAL_REQUESTER)


def _end_no_stream() -> None:
    """Do nothing, for a part without streams."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the application: what it opens, and what runs while the application does."""

    routes: Sequence[BaseRoute]
    open_at: frozenset[str] = frozenset()  # paths that need no token
    open_below: tuple[str, ...] = ()  # prefixes of such paths
    page: str | None = None  # prefix of the page, which authenticates viewers itself
    running: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    end_streams: Callable[[], None] = _end_no_stream  # at shutdown
