"""A part of the HTTP application: settings, routes, background tasks, and who sent a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from mcp_skills_server.access.quota import LOCAL_REQUESTER, Requester

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from mcp_skills_server.web.settings import HttpSettings


REQUESTER: Final = "mcp_skills_server.requester"
"""The key of the requester in the ASGI scope. The front sets it, and the page for its viewer."""


def requester(scope: Mapping[str, Any]) -> Requester:
    """Return who sent a request."""
    return scope.get(REQUESTER, LOCAL_REQUESTER)


class Part:
    """A part of the application. Subclasses override the methods that they need.

    `routes` is called once every part has configured the settings.
    """

    def configure(self, http: HttpSettings) -> HttpSettings:
        """Return the settings with this part's changes, such as paths that take no token."""
        return http

    def routes(self, http: HttpSettings) -> Sequence[BaseRoute]:  # noqa: ARG002
        """Return the routes."""
        return ()

    def running(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager that is entered while the application runs."""
        return nullcontext()

    def end_streams(self) -> None:
        """End every open stream on shutdown."""


class Routes(Part):
    """A part with routes only."""

    def __init__(self, make: Callable[[HttpSettings], Sequence[BaseRoute]]) -> None:
        self._make = make

    def routes(self, http: HttpSettings) -> Sequence[BaseRoute]:
        """Return the routes."""
        return self._make(http)
