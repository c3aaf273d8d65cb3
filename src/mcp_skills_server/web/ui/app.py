"""The routes of the page, who may open which, and what every answer of it carries.

A view is a row of `VIEWS`. It gets a `Look` and returns a response; it is called again with a new one where a file
turns out to have changed meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.authoring.tokens import ESTIMATE_RULE, estimated
from mcp_skills_server.catalog.view import View, retry_when_stale
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.errors import RequestError, UnreadableError
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.search_index import NoFullTextError
from mcp_skills_server.server.callers import PRINCIPAL, address
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.usage_store import spark
from mcp_skills_server.web.connections import SLOT, Slot
from mcp_skills_server.web.forwarded import PREFIX
from mcp_skills_server.web.part import Part
from mcp_skills_server.web.rates import FailedAuthentications
from mcp_skills_server.web.settings import HttpSettings, UiSettings
from mcp_skills_server.web.ui.activity import Activity
from mcp_skills_server.web.ui.entrance import Entrance, form_of
from mcp_skills_server.web.ui.live import Live
from mcp_skills_server.web.ui.look import (
    BASE,
    Look,
    PageContext,
    UsageReports,
    base,
    file_address,
    prefix,
    skill_address,
)
from mcp_skills_server.web.ui.pages import (
    catalogue,
    file,
    history,
    live,
    model,
    problems,
    proposals,
    skill,
    sources,
    tools,
    triggers,
    usage,
)
from mcp_skills_server.web.ui.render import marked, plain, visible
from mcp_skills_server.web.ui.revisions import Revisions
from mcp_skills_server.web.ui.session import Viewer, Viewers, is_of_own_page

logger = logging.getLogger(__name__)

_HERE: Final = Path(__file__).parent
_STATIC: Final = {"ui.css": "text/css", "ui.js": "text/javascript", "mark.svg": "image/svg+xml"}
_LEAST_COMPRESSED: Final = 1024
"""Bytes of an answer from which on it is compressed for who takes it."""
_NOT_THERE: Final = "There is no such page. It may be of a skill that is gone, or that you may not read."

PageOf: TypeAlias = Callable[[Request, Look], Awaitable[Response]]
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    # With "no-referrer" a browser sends the forms of a page with `Origin: null`, and the sending page would be unknown.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True, slots=True)
class _PageView:
    path: str
    page: PageOf
    title: str = ""
    """In the navigation; "" for a view that stands there not."""
    admin: bool = False
    review: bool = False
    """For reviewers of proposals, where the server takes any."""


VIEWS: Final = (
    _PageView("/", catalogue.page, "Skills"),
    _PageView("/skills/{path:path}", skill.page),
    _PageView("/files/{path:path}", file.page),
    _PageView("/raw/{path:path}", file.raw),
    _PageView("/history/{path:path}", history.page),
    _PageView("/model", model.page, "What the model sees"),
    _PageView("/try", triggers.page, "Trigger playground"),
    _PageView("/tools", tools.page, "Tools"),
    _PageView("/problems", problems.page, "Problems"),
    _PageView("/proposals", proposals.page, "Proposals", review=True),
    _PageView("/proposals/{id}", proposals.one, review=True),
    _PageView("/usage", usage.page, "Usage"),
    _PageView("/live", live.page, "Live"),
    _PageView("/live/events", live.events),
    _PageView("/sources", sources.page, "Sources"),
    _PageView("/runs", live.runs, "Runs", admin=True),
    _PageView("/clients", live.clients, "Clients", admin=True),
)


class PagePart(Part):
    """The page as a part of the application.

    Args:
        runtime: of all skills.
        settings: what clients of MCP are shown.
        ui: what the operator chose.
        views: which skills each principal has.
    """

    _page: Ui

    def __init__(self, runtime: Runtime, settings: Settings, ui: UiSettings, views: Views) -> None:
        self._made_of = runtime, settings, ui, views

    def configure(self, http: HttpSettings) -> HttpSettings:
        """Take no token for the page, which authenticates viewers by itself, nor for `/`, which leads to it."""
        policy = http.policy
        below, at = (*policy.open_below, BASE), policy.open_at | {"/"}
        http = replace(http, policy=replace(policy, open_below=below, open_at=at, page=f"{BASE}/"))
        if self._made_of[2].only:
            return replace(http, answers_mcp=False, entrance=f"{BASE}/", is_private=True)
        return http

    def routes(self, http: HttpSettings) -> Sequence[BaseRoute]:
        """Return the routes of the page."""
        runtime, settings, ui, views = self._made_of
        self._page = Ui(runtime, settings, http, ui, views)
        return self._page.routes()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Note what goes on."""
        stop = self._page.start()
        try:
            yield
        finally:
            stop()

    def end_streams(self) -> None:
        """End the streams of the views that follow changes."""
        self._page.close()


class Ui:
    """The page.

    Args:
        runtime: of all skills.
        settings: what clients of MCP are shown.
        http: how the server is reached, and who may come in.
        ui: what the operator chose.
        views: which skills each principal has.
    """

    def __init__(self, runtime: Runtime, settings: Settings, http: HttpSettings, ui: UiSettings, views: Views) -> None:
        self._runtime = runtime
        self._views = views
        self._viewers = Viewers(http.policy, ui.once, FailedAuthentications(http.rates), store=http.page_sessions)
        self.site = PageContext(
            _templates(),
            settings,
            http.sites,
            UsageReports(ui.counts),
            Revisions(runtime.registry),
            local=ui.once is not None,
            open=self._viewers.is_open,
            live=Live(http.quotas.streams),
            activity=Activity(),
        )
        self._entrance = Entrance(self._viewers, http.policy, self.site.templates)
        self.site.revisions.start()
        self.site.live.follow(runtime.registry)
        threading.Thread(target=self._prepare, name="skills-ui-search", daemon=True).start()

    def start(self) -> Callable[[], None]:
        """Note from now on what is going on. Returns what ends that."""
        return self.site.activity.start(self._runtime.events)

    def close(self) -> None:
        """End every open stream."""
        self.site.live.close()

    def routes(self) -> list[BaseRoute]:
        """All routes."""
        views = [Route(each.path, self._answer(each), methods=["GET"]) for each in VIEWS]
        views.append(Route("/try", self._keep, methods=["POST"]))
        views.append(Route("/proposals/{id}", self._decide, methods=["POST"]))
        other = [Route("/{rest:path}", self._missing, methods=["GET"])]
        static = [Route("/static/{name}", _static, methods=["GET"])]
        below = _Below(GZipMiddleware(Router([*views, *static, *self._entrance.routes(), *other]), _LEAST_COMPRESSED))
        return [*(Route(path, _to_page, methods=["GET"]) for path in ("/", BASE)), Mount(BASE, below)]

    def _prepare(self) -> None:
        """Build the full-text index, then run the deep checks: of 10,000 skills these take a second and ten."""
        registry = self._runtime.registry
        registry.loaded.wait()
        with suppress(NoFullTextError):
            self._runtime.searches.of(self._runtime.skill_set).find("skill", 1, lambda _: True)
        registry.subscribe(lambda _: registry.checks.begin(registry))
        registry.checks.begin(registry)

    # Views

    def _answer(self, view: _PageView) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            viewer = await self._viewers.viewer(request)
            if viewer is None:
                if "authorization" in request.headers and (wait := self._viewers.failed(request)):
                    return self._entrance.too_often(wait)
                return RedirectResponse(f"{base()}/sign-in", 303)
            _admit(request, viewer)
            return await self._shown(request, viewer, view)

        return answer

    async def _shown(self, request: Request, viewer: Viewer, view: _PageView) -> Response:
        who = viewer.principal
        runtime = self._runtime_of(who)
        if not runtime.registry.loaded.is_set():
            return self._message(self._look(runtime, None, who), "The skills are still being read", 503, refresh=True)
        if view.admin and not self._sees_others(who):
            return self._message(self._look(runtime, None, who), "This view is for administrators", 403)
        if view.review and not proposals.may_review(self._look(runtime, None, who)):
            return self._message(self._look(runtime, None, who), "This view is for reviewers of proposals", 403)

        async def handler(bound: View) -> Response:
            look = self._look(runtime, bound, who, view.path)
            return await view.page(request, replace(look, stays=lambda: self._stays(request, viewer, runtime)))

        method = f"GET {BASE}{view.path.partition('/{')[0]}"  # the skill that the rest names is in the event
        with events.observe(events.PAGE, method, principal=who, address=address(request.scope)) as event:
            try:
                return await retry_when_stale(runtime.skill_set, handler)
            except UnreadableError as error:
                status, words = 503, str(error)
            except HTTPException as error:
                status, words = error.status_code, error.detail
            except RequestError as error:
                status, words = 400, str(error)
            if event is not None:
                event.outcome = "refused"
            return self._message(self._look(runtime, None, who), words, status)

    async def _keep(self, request: Request) -> Response:
        """Keep the prompts of the trigger playground in a skill of one's own."""

        async def keep(look: Look, fields: Mapping[str, str]) -> str:
            if not self.site.local:
                raise HTTPException(403, "Queries are kept on one's own page alone ('ui').")
            await triggers.keep(look, fields)
            return f"/try?{urlencode({**fields, 'kept': 1})}#set"

        return await self._posted(request, keep)

    async def _decide(self, request: Request) -> Response:
        """Approve or reject a proposal."""

        async def decide(look: Look, fields: Mapping[str, str]) -> str:
            await proposals.decide(look, request.path_params["id"], fields, address(request.scope))
            return f"/proposals/{request.path_params['id']}"

        return await self._posted(request, decide)

    async def _posted(self, request: Request, work: Callable[[Look, Mapping[str, str]], Awaitable[str]]) -> Response:
        """Do what a form of the page asks for, and lead to the view that `work` names."""
        viewer = await self._viewers.viewer(request)
        if viewer is None or not is_of_own_page(request):
            return self._message(self._look(self._runtime, None, None), "This form was sent from another page.", 403)
        look = self._look(self._runtime_of(viewer.principal), None, viewer.principal)
        fields = await form_of(request)
        if fields is None:
            return self._message(look, "The form is too long.", 400)
        try:
            return RedirectResponse(base() + await work(look, fields), 303)
        except HTTPException as error:
            return self._message(look, error.detail, error.status_code)
        except RequestError as error:
            return self._message(look, str(error), 400)

    def _runtime_of(self, principal: Principal | None) -> Runtime:
        return self._runtime.over(self._views.of(principal))

    def _is_admin(self, principal: Principal | None) -> bool:
        """Tell whether a viewer may see what is for the operator."""
        return self.site.local or self._views.may_admin(principal)

    def _sees_others(self, principal: Principal | None) -> bool:
        """Tell whether a viewer may see what others do: without a proved name only where it is granted."""
        return self.site.local or (
            self._views.may_admin(principal) and (principal is not None or self._views.are_restricted)
        )

    async def _stays(self, request: Request, viewer: Viewer, runtime: Runtime) -> bool:
        """Tell whether who asked is still the same viewer, and sees the same skills."""
        now = await self._viewers.viewer(request, renew=False)
        return now == viewer and self._runtime_of(viewer.principal) is runtime

    def _look(self, runtime: Runtime, view: View | None, principal: Principal | None, here: str = "") -> Look:
        admin = self._is_admin(principal)
        others = self._sees_others(principal)
        look = Look(self.site, runtime, view or View(runtime.skill_set), principal, admin, others, here=base() + here)
        hidden = {each.path for each in VIEWS if each.admin and not others}
        if not proposals.may_review(look):
            hidden |= {each.path for each in VIEWS if each.review}
        nav = [(base() + each.path, each.title) for each in VIEWS if each.title and each.path not in hidden]
        return replace(look, nav=nav)

    async def _missing(self, request: Request) -> Response:
        async def page(_: Request, __: Look) -> Response:
            raise HTTPException(404, _NOT_THERE)

        return await self._answer(_PageView("/*", page))(request)

    @staticmethod
    def _message(look: Look, words: str, status: int, *, refresh: bool = False) -> Response:
        title = HTTPStatus(status).phrase
        response = look.page("message.html", status, title=title, words=words, signs_in=False)
        if refresh:
            response.headers["refresh"] = "1"
        return response


class _Below:
    """Answer with addresses as the browser knows them, and with headers that keep foreign scripts out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = prefix.set(scope.get(PREFIX, ""))
        # Without the application above, what is refused by a route is answered here, with the headers too.
        scope = {name: value for name, value in scope.items() if name != "app"}
        try:
            await self._app(scope, receive, with_headers(send))
        finally:
            prefix.reset(token)


def _admit(request: Request, viewer: Viewer) -> None:
    """Have what the request opens counted as the viewer's."""
    if viewer.principal is None:
        return
    request.scope[PRINCIPAL] = viewer.principal
    slot: Slot | None = request.scope.get("state", {}).get(SLOT)
    if slot is not None:
        slot.admit(viewer.principal.key)


async def _to_page(request: Request) -> Response:
    return RedirectResponse(f"{request.scope.get(PREFIX, '')}{BASE}/", 303)


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _STATIC:
        return Response("no such file\n", 404, media_type="text/plain")
    response = FileResponse(_HERE / "static" / name, media_type=_STATIC[name])
    response.headers["cache-control"] = "no-cache"  # the ETag says whether it is another one
    return response


def _templates() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(  # pyright: ignore[reportUnknownMemberType]
        visible=visible,
        marked=marked,
        plain=plain,
        tokens=estimated,
        spark=spark,
        moment=_moment,
    )
    made.globals.update(  # pyright: ignore[reportUnknownMemberType]
        skill_address=skill_address, file_address=file_address, token_rule=ESTIMATE_RULE
    )
    return made


def _moment(seconds: float | None) -> Markup:
    """Return a moment of UTC, for people; the script of the page makes it their own time."""
    if seconds is None:
        return Markup("never")
    moment = time.gmtime(seconds)
    machine, people = time.strftime("%Y-%m-%dT%H:%M:%SZ", moment), time.strftime("%Y-%m-%d %H:%M UTC", moment)
    return Markup('<time datetime="{}">{}</time>').format(machine, people)


def with_headers(send: Send) -> Send:
    """Return what sends an answer with the headers that every one has; its own are kept."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
