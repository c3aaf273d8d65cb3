"""The routes of the page, who may open which, and what every answer of it carries.

A view is a row of `VIEWS`. It gets a `Look` and returns a response; it is called again with a new one where a file
turns out to have changed meanwhile.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import parse_qsl

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.view import View, retry_when_stale
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.errors import REPEATS, RequestError, StaleFileError
from mcp_skills_server.runtime.full_text import NoFullTextError
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.callers import PRINCIPAL, address
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.usage_store import Report, spark
from mcp_skills_server.web.forwarded import PREFIX
from mcp_skills_server.web.guards import Policy
from mcp_skills_server.web.issuer_fetch import fetch, post
from mcp_skills_server.web.places import PLACE, Place
from mcp_skills_server.web.ui import estimate, foreign
from mcp_skills_server.web.ui.live import Live
from mcp_skills_server.web.ui.look import BASE, Look, Site, UsageReports, base, file_address, prefix, skill_address
from mcp_skills_server.web.ui.pages import (
    activity,
    catalogue,
    file,
    history,
    live,
    model,
    problems,
    skill,
    sources,
    triggers,
)
from mcp_skills_server.web.ui.revisions import Revisions
from mcp_skills_server.web.ui.session import CALLBACK, SignIn, SignInError, Viewer, is_of_own_page

if TYPE_CHECKING:
    from mcp_skills_server.sources.follower import SourceState
    from mcp_skills_server.web.ui.oauth import Flow

logger = logging.getLogger(__name__)

_HERE: Final = Path(__file__).parent
_STATIC: Final = {"ui.css": "text/css", "ui.js": "text/javascript"}
_AWAY: Final = "skills-ui-away"
"""The cookie of a browser that is at the issuer."""
_LONGEST_FORM: Final = 1 << 14
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    # With "no-referrer" a browser sends the forms of a page with `Origin: null`, and nobody could tell whose they are.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_NOT_THERE: Final = "There is no such page. It may be of a skill that is gone, or that you may not read."

PageOf: TypeAlias = Callable[[Request, Look], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class UiSettings:
    """What the operator chose for the page.

    Attributes:
        once: SHA-256 of what lets the first who brings it in; None where the server's own policy says who may look.
        only: serve the page and nothing else.
        usage: makes the report of the counts; None where nothing is counted.
        failures: how often one address may fail to sign in, in a minute.
    """

    once: bytes | None = None
    only: bool = False
    usage: Callable[[], Report] | None = None
    failures: int | None = 60


@dataclass(frozen=True, slots=True)
class _View:
    path: str
    page: PageOf
    title: str = ""
    """In the navigation; "" for a view that stands there not."""
    admin: bool = False


VIEWS: Final = (
    _View("/", catalogue.page, "Skills"),
    _View("/skills/{path:path}", skill.page),
    _View("/files/{path:path}", file.page),
    _View("/raw/{path:path}", file.raw),
    _View("/history/{path:path}", history.page),
    _View("/model", model.page, "What the model sees"),
    _View("/try", triggers.page, "Trigger playground"),
    _View("/problems", problems.page, "Problems"),
    _View("/live", live.page, "Live"),
    _View("/live/events", live.events),
    _View("/sources", sources.page, "Sources"),
    _View("/runs", activity.runs, "Runs", admin=True),
    _View("/clients", activity.clients, "Clients", admin=True),
)


class Ui:
    """The page.

    Args:
        runtime: of all skills.
        settings: what clients of MCP are shown.
        ui: what the operator chose.
        policy: who may come in.
        sources: the state of each root that is fetched.
        views: who may read which skills; None where everybody reads all.
        streams: live pages that one viewer may have open; None for a part of all.
    """

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        ui: UiSettings,
        policy: Policy,
        *,
        sources: Callable[[], Sequence[SourceState]] = list,
        views: Views | None = None,
        streams: int | None = None,
    ) -> None:
        self._runtime = runtime
        self._views = views or Views(runtime.registry)
        self.sign_in = SignIn(policy, ui.once, ui.failures)
        self._flow = _flow_of(policy)
        self.site = Site(
            _templates(),
            settings,
            sources,
            UsageReports(ui.usage),
            Revisions(runtime.registry),
            local=ui.once is not None,
            open=self.sign_in.is_open,
            live=Live(streams),
        )
        self.site.revisions.start()
        self.site.live.feed(runtime.registry)  # from the start on, and not from the first look
        threading.Thread(target=self._prepare, name="skills-ui-search", daemon=True).start()

    def start(self) -> Callable[[], None]:
        """Note from now on what is going on. Returns what ends that."""
        return self.site.activity.start()

    def close(self) -> None:
        """End every open stream."""
        self.site.live.close()

    def routes(self) -> list[BaseRoute]:
        """All routes."""
        views = [Route(each.path, self._answer(each), methods=["GET"]) for each in VIEWS]
        own = [
            Route("/static/{name}", _static, methods=["GET"]),
            Route("/enter", self._enter, methods=["GET"]),
            Route("/sign-in", self._sign_in, methods=["GET", "POST"]),
            Route("/oauth/begin", self._leave_for_issuer, methods=["GET"]),
            Route(CALLBACK, self._come_back, methods=["GET"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
            Route("/{rest:path}", self._missing, methods=["GET"]),
        ]
        return [Route(BASE, _to_slash, methods=["GET"]), Mount(BASE, _Prefixed(Router([*views, *own])))]

    def runtime_of(self, principal: Principal | None) -> Runtime:
        """The runtime of the skills that a principal may read."""
        return self._runtime.over(self._views.of(principal))

    def is_admin(self, principal: Principal | None) -> bool:
        """Whether somebody may see what others do: by grants, else who proved a name, or has the page for himself."""
        if self._views.are_restricted:
            return self._views.may_admin(principal)
        return principal is not None or self.site.local

    def _prepare(self) -> None:
        """Have the index of words made before somebody types: of 10,000 skills that takes a second."""
        self._runtime.registry.loaded.wait()
        with suppress(NoFullTextError):
            self._runtime.search.find("skill", 1, lambda _: True)

    # Views

    def _answer(self, view: _View) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            viewer = await self.sign_in.viewer(request)
            if viewer is None:
                return _safe(RedirectResponse(f"{base()}/sign-in", 303))
            _admit(request, viewer)
            return _safe(await self._shown(request, viewer, view))

        return answer

    async def _shown(self, request: Request, viewer: Viewer, view: _View) -> Response:
        who = viewer.principal
        runtime = self.runtime_of(who)
        if not runtime.registry.loaded.is_set():
            return self._message(self._look(runtime, None, who), "The skills are still being read", 503, refresh=True)
        if view.admin and not self.is_admin(who):
            return self._message(self._look(runtime, None, who), "This view is for administrators", 403)

        async def handler(bound: View) -> Response:
            look = self._look(runtime, bound, who, view.path)
            return await view.page(request, replace(look, stays=lambda: self._stays(request, viewer, runtime)))

        name = None if who is None else who.id
        method = f"GET {BASE}{view.path}"
        with events.observe(events.PAGE, method, principal=name, address=address(request.scope)):
            try:
                return await retry_when_stale(runtime.skill_set, handler)
            except StaleFileError as stale:
                logger.warning("cannot be read: %s", stale, extra=REPEATS)
                words = "A file is being changed just now, or cannot be read. Look again in a moment."
                return self._message(self._look(runtime, None, who), words, 503)
            except HTTPException as error:
                return self._message(self._look(runtime, None, who), error.detail, error.status_code)
            except RequestError as error:
                return self._message(self._look(runtime, None, who), str(error), 400)

    async def _stays(self, request: Request, viewer: Viewer, runtime: Runtime) -> bool:
        """Whether who asked is still the same viewer, and sees the same skills."""
        now = await self.sign_in.viewer(request, renew=False)
        return now == viewer and self.runtime_of(viewer.principal) is runtime

    def _look(self, runtime: Runtime, view: View | None, principal: Principal | None, here: str = "") -> Look:
        admin = self.is_admin(principal)
        nav = [(base() + each.path, each.title) for each in VIEWS if each.title and (admin or not each.admin)]
        return Look(self.site, runtime, view or View(runtime.skill_set), principal, admin, nav, base() + here)

    async def _missing(self, request: Request) -> Response:
        async def page(_: Request, __: Look) -> Response:
            raise HTTPException(404, _NOT_THERE)

        return await self._answer(_View("/*", page))(request)

    @staticmethod
    def _message(look: Look, words: str, status: int, *, refresh: bool = False) -> Response:
        title = HTTPStatus(status).phrase
        response = look.page("message.html", status, title=title, words=words, signs_in=False)
        if refresh:
            response.headers["refresh"] = "1"
        return response

    # Signing in

    async def _enter(self, request: Request) -> Response:
        """Take the secret of a page that somebody opened for himself out of the address, and give a cookie for it."""
        if await self.sign_in.viewer(request) is None:
            if wait := self.sign_in.wait(request):
                return self._too_often(wait)
            viewer = self.sign_in.by_first_use(request.query_params.get("once", ""))
            if viewer is None:
                self.sign_in.failed(request)
                return self._form("This address was used before, or is not whole.", 403)
            response = RedirectResponse(f"{base()}/", 303)
            self.sign_in.begin(request, response, viewer)
            return _safe(response)
        return _safe(RedirectResponse(f"{base()}/", 303))

    async def _sign_in(self, request: Request) -> Response:
        if request.method != "POST":
            if await self.sign_in.viewer(request) is not None:
                return _safe(RedirectResponse(f"{base()}/", 303))
            return self._form("", 200)
        if not is_of_own_page(request):
            return self._form("This form was sent from another page.", 403)
        if wait := self.sign_in.wait(request):
            return self._too_often(wait)
        form = await _form_of(request)
        viewer = None if form is None else self.sign_in.by_token(form.get("token", "").strip())
        if viewer is None:
            self.sign_in.failed(request)
            logger.warning("refused a token at the page", extra=REPEATS)
            events.emit_refusal(f"POST {BASE}/sign-in", "unknown-token", address=address(request.scope))
            return self._form("This is no token that lets you in.", 403)
        response = RedirectResponse(f"{base()}/", 303)
        self.sign_in.begin(request, response, viewer)
        return _safe(response)

    async def _leave_for_issuer(self, request: Request) -> Response:
        if self._flow is None:
            return self._form("There is no issuer to sign in at.", 404)
        if wait := self.sign_in.wait(request):
            return self._too_often(wait)
        self.sign_in.failed(request)  # until he comes back
        browser = secrets.token_urlsafe(32)
        try:
            response = RedirectResponse(await self._flow.begin(browser), 303)
        except SignInError as error:
            return self._form(str(error), 503)
        # Lax, for the way back begins at the issuer; it opens nothing by itself.
        response.set_cookie(
            _AWAY,
            browser,
            max_age=600,
            path=f"{base()}/oauth",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="lax",
        )
        return _safe(response)

    async def _come_back(self, request: Request) -> Response:
        if self._flow is None:
            return self._form("There is no issuer to sign in at.", 404)
        try:
            found = await self._flow.finish(request.query_params, request.cookies.get(_AWAY, ""))
        except SignInError as error:
            logger.warning("signing in at the issuer failed: %s", error, extra=REPEATS)
            events.emit_refusal(f"GET {BASE}{CALLBACK}", "issuer", address=address(request.scope))
            return self._form(str(error), 403)
        # No redirect: a browser sends a strict cookie only along a way that began on a page of ours.
        body = self.site.templates.get_template("signed_in.html").render(look=None, base=base())
        response = Response(body, media_type="text/html", headers={"refresh": f"0; url={base()}/"})
        self.sign_in.begin(request, response, Viewer(found))
        response.delete_cookie(_AWAY, path=f"{base()}/oauth", httponly=True, samesite="lax")
        return _safe(response)

    async def _sign_out(self, request: Request) -> Response:
        if not is_of_own_page(request):
            return self._form("This form was sent from another page.", 403)
        response = RedirectResponse(f"{base()}/", 303)
        self.sign_in.end(request, response)
        return _safe(response)

    @property
    def _issuer(self) -> str:
        """Where people can sign in; "" for nowhere."""
        return "" if self._flow is None else self._flow.host

    def _form(self, trouble: str, status: int) -> Response:
        template = self.site.templates.get_template("sign_in.html")
        body = template.render(
            look=None, base=base(), trouble=trouble, tokens=self.sign_in.takes_tokens, issuer=self._issuer
        )
        return _safe(Response(body, status, media_type="text/html"))

    def _too_often(self, wait: float) -> Response:
        seconds = max(1, math.ceil(wait))
        response = self._form(f"Too many tries from your address; try again in {seconds} s.", 429)
        response.headers["retry-after"] = str(seconds)
        return response


def _flow_of(policy: Policy) -> Flow | None:
    """The way to the issuer and back; None where the issuer does not know the page."""
    oauth = policy.oauth
    if oauth is None or oauth.settings.ui_client_id is None:
        return None
    from mcp_skills_server.web.ui.oauth import Flow  # with what proves signatures

    return Flow(oauth, oauth.settings.ui_client_id, fetch, post)


class _Prefixed:
    """Has the addresses of a page begin as the browser knows them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = prefix.set(scope.get(PREFIX, ""))
        try:
            await self._app(scope, receive, send)
        finally:
            prefix.reset(token)


def _admit(request: Request, viewer: Viewer) -> None:
    """Have what the request opens counted as the viewer's."""
    if viewer.principal is None:
        return
    request.scope[PRINCIPAL] = viewer.principal
    place: Place | None = request.scope.get("state", {}).get(PLACE)
    if place is not None:
        place.admitted(viewer.principal.key)


def _safe(response: Response) -> Response:
    """The response with the headers that every one has; its own are kept."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


async def _form_of(request: Request) -> dict[str, str] | None:
    """The fields of a small form, None where it is none."""
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > _LONGEST_FORM:
            return None
    try:
        return dict(parse_qsl(raw.decode("ascii"), max_num_fields=10))
    except ValueError:
        return None


async def _to_slash(request: Request) -> Response:
    return _safe(RedirectResponse(f"{request.scope.get(PREFIX, '')}{BASE}/", 307))


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _STATIC:
        return _safe(Response("no such file\n", 404, media_type="text/plain"))
    response = FileResponse(_HERE / "static" / name, media_type=_STATIC[name])
    response.headers["cache-control"] = "no-cache"  # the ETag says whether it is another one
    return _safe(response)


def _templates() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(  # pyright: ignore[reportUnknownMemberType]
        visible=foreign.visible, marked=foreign.marked, tokens=estimate.tokens, spark=spark, moment=_moment
    )
    made.globals.update(  # pyright: ignore[reportUnknownMemberType]
        skill_address=skill_address, file_address=file_address, token_rule=estimate.RULE
    )
    return made


def _moment(seconds: float | None) -> str:
    """A moment of UTC, for people."""
    return "never" if seconds is None else time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
