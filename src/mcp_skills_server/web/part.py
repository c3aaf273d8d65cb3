"""A part of the HTTP application: open paths, routes, background tasks; who sent a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from mcp_skills_server.access.principal import LOCAL_REQUESTER, Requester
from mcp_skills_server.web.policy import OpenPaths

if TYPE_CHECKING:
    from starlette.routing import BaseRoute


REQUESTER: Final = "mcp_skills_server.requester"
"""The key of the requester in the ASGI scope. The front sets it, and the page for its viewer."""


def requester(scope: Mapping[str, Any]) -> Requester:
    """Return who sent a request."""
    return scope.get(REQUESTER, LOCAL_REQUESTER)


class Part:
    """A part of the application. Subclasses override what they need."""

    open_paths: OpenPaths = OpenPaths()
    """The paths of the part that need no token."""

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes."""
        return ()

    def running(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager that is entered while the application runs."""
        return nullcontext()

    def end_streams(self) -> None:
        """End every open stream on shutdown."""


class Routes(Part):
    """A part with routes only."""

    def __init__(self, *routes: BaseRoute) -> None:
        self._routes = routes

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes."""
        return self._routes
