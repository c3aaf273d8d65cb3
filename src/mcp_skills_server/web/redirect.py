"""A path with a slash too many leads to the one without, by a relative redirect: proxies may change the origin."""

from __future__ import annotations

from starlette.responses import RedirectResponse
from starlette.routing import Match, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_skills_server.web.forwarded import PREFIX


def redirect_relatively(router: Router) -> None:
    """Have a router answer what it has no route for, with the path that it has instead of one that names a host."""
    router.redirect_slashes = False
    router.default = _WithoutSlash(router, router.default)


class _WithoutSlash:
    def __init__(self, router: Router, otherwise: ASGIApp) -> None:
        self._router = router
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"].rstrip("/") if scope["type"] == "http" else ""
        answer = self._otherwise
        if path and path != scope["path"]:
            there = {**scope, "path": path}
            if any(route.matches(there)[0] is not Match.NONE for route in self._router.routes):
                query = scope["query_string"].decode("latin-1")
                answer = RedirectResponse(scope.get(PREFIX, "") + path + (f"?{query}" if query else ""))
        await answer(scope, receive, send)
