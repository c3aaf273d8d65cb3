"""Routes of the page: views, authorization, and security headers.

A view is a row of `VIEWS`. It takes a `Context` and returns a response. If a file changed
meanwhile, it is called again with a new `Context`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from anyio import to_thread
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.authoring.tokens import ESTIMATE_RULE, estimated_tokens
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.views import View, Views, retry_when_stale
from mcp_skills_server.errors import RequestError, UnreadableError
from mcp_skills_server.runtime.offering import Offering
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.usage import spark
from mcp_skills_server.web.connections import SLOT, Slot
from mcp_skills_server.web.forwarded import PREFIX
from mcp_skills_server.web.part import REQUESTER, Part, requester
from mcp_skills_server.web.ui.activity import Activity
from mcp_skills_server.web.ui.addresses import BASE, base, file_address, prefix, skill_address
from mcp_skills_server.web.ui.changes import RETRY, TYPE, Live
from mcp_skills_server.web.ui.colours import changed_words, diff_lines
from mcp_skills_server.web.ui.context import Context, SharedContext
from mcp_skills_server.web.ui.pages import (
    archive,
    catalogue,
    edit,
    file,
    history,
    live,
    model,
    operation,
    problems,
    proposals,
    skill,
    tools,
    triggers,
)
from mcp_skills_server.web.ui.render import marked, plain, visible
from mcp_skills_server.web.ui.revisions import Revisions
from mcp_skills_server.web.ui.session import PageSessions, Viewer, is_of_own_page
from mcp_skills_server.web.ui.sign_in import MAX_FORM, SignInEndpoints, form_of
from mcp_skills_server.web.ui.usage import UsageReports

if TYPE_CHECKING:
    from mcp_skills_server.sources.mirrors import SourceState
    from mcp_skills_server.telemetry.usage import UsageStore


_HERE: Final = Path(__file__).parent
_STATIC: Final = {"ui.css": "text/css", "ui.js": "text/javascript", "mark.svg": "image/svg+xml"}
_MIN_COMPRESSED: Final = 1024
"""Responses of at least so many bytes are compressed."""
_NOT_THERE: Final = (
    "There is no such page. Its skill may have been deleted, or you may not read it."
)

PageOf: TypeAlias = Callable[[Request, Context], Awaitable[Response]]
Form = TypeVar("Form")
FormWork: TypeAlias = Callable[[Request, Context, Form], str | Response]
"""Handles a form in a thread; returns the path of the view to redirect to, or the form again."""
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src "
    "'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    # With "no-referrer" a browser sends forms with `Origin: null`, which would hide the page that
    # they come from.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def _in_thread(page: Callable[[Request, Context], Response]) -> PageOf:
    """Return a view that is made in a worker thread."""
    return partial(to_thread.run_sync, page)


class _PageView(NamedTuple):
    """A view: its entry of the navigation, and the role that it requires.

    `title` names it among several views of its entry; "" for a view that others link to.
    """

    path: str
    page: PageOf
    entry: str = ""
    title: str = ""
    admin: bool = False
    review: bool = False


VIEWS: Final = (
    _PageView("/", _in_thread(catalogue.page), "Skills", "Skills"),
    _PageView("/skills/{path:path}", skill.page, "Skills"),
    _PageView("/files/{path:path}", file.page, "Skills"),
    _PageView("/raw/{path:path}", file.raw_file),
    _PageView("/edit/{path:path}", edit.page, "Skills"),
    _PageView("/archive", _in_thread(archive.page), "Skills"),
    _PageView("/history/{path:path}", _in_thread(history.page), "Skills"),
    _PageView("/problems", problems.page, "Problems", "Problems"),
    _PageView("/proposals", _in_thread(proposals.page), "Proposals", "Proposals", review=True),
    _PageView("/proposals/{id}", _in_thread(proposals.one), "Proposals", review=True),
    _PageView("/live", live.page, "Activity", "Live"),
    _PageView("/live/events", live.events),
    _PageView("/usage", _in_thread(operation.usage), "Activity", "Usage"),
    _PageView("/runs", operation.runs, "Activity", "Runs", admin=True),
    _PageView("/clients", operation.clients, "Activity", "Clients", admin=True),
    _PageView("/sources", operation.sources, "Sources", "Sources"),
    _PageView("/model", model.page, "Try it", "What the model sees"),
    _PageView("/try", _in_thread(triggers.page), "Try it", "Triggers"),
    _PageView("/tools", tools.page, "Try it", "Tools"),
)


class WebPage:
    """The page, which authenticates viewers itself.

    Args:
        settings: those of the MCP server.
        site_states: returns the state of each fetched root.
        counts: the counts of uses; None if nothing is counted.
        answers: the cache of `evaluate --outputs`.
    """

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        views: Views,
        sessions: PageSessions,
        *,
        site_states: Callable[[], Sequence[SourceState]] = list,
        counts: UsageStore | None = None,
        answers: Index | None = None,
    ) -> None:
        self._runtime = runtime
        self._views = views
        self._sessions = sessions
        registry = runtime.registry
        self._site = SharedContext(
            _templates(),
            settings,
            site_states,
            UsageReports(counts, [root.address for root in registry.roots]),
            Revisions(registry),
            is_local=sessions.is_private,
            is_open=sessions.is_open,
            live=Live(settings.streams),
            activity=Activity(),
            grants=lambda: views.grants,
            principals=lambda: [token.admission.principal for token in sessions.policy.tokens],
            answers=answers,
        )
        self._sign_in = SignInEndpoints(sessions, self._site.templates)

    @asynccontextmanager
    async def _running(self) -> AsyncGenerator[None]:
        """Track changes of skills and requests from now on."""
        self._site.revisions.start()
        self._site.live.follow(self._runtime.registry)
        self._runtime.events.subscribe(self._site.activity.take)
        threading.Thread(target=self._prepare, name="skills-ui-search", daemon=True).start()
        yield

    def part(self) -> Part:
        """Return the part of the application: the routes below `BASE`, and redirects to it."""
        local: list[Route] = []
        if self._site.is_local:
            most = edit.FORM_FACTOR * self._runtime.registry.limits.skill_md + MAX_FORM
            text_of = partial(form_of, most=most)
            local = [
                Route("/edit/{path:path}", self._posted(edit.save, text_of), methods=["POST"]),
                Route("/archive", self._posted(archive.look, archive.upload_of), methods=["POST"]),
            ]
        routes = [
            *(Route(view.path, self._answer(view), methods=["GET"]) for view in VIEWS),
            Route("/try", self._posted(triggers.save, form_of), methods=["POST"]),
            Route("/proposals/{id}", self._posted(proposals.decide, form_of), methods=["POST"]),
            Route("/switch", self._posted(catalogue.switch_skill, form_of), methods=["POST"]),
            *local,
            Route("/static/{name}", _static, methods=["GET"]),
            *self._sign_in.routes(),
            Route("/{rest:path}", self._answer(_PageView("/*", _missing)), methods=["GET"]),
        ]
        router = ExceptionMiddleware(Router(routes))
        below = _PageMiddleware(GZipMiddleware(router, _MIN_COMPRESSED))
        page = Mount(BASE, below)
        for route in (page, *routes):  # match line breaks too, which the name of a folder may have
            route.path_regex = re.compile(route.path_regex.pattern, re.DOTALL)
        to_page = [Route(path, _to_page, methods=["GET"]) for path in ("/", BASE)]
        return Part(
            [*to_page, page],
            open_at=frozenset(("/",)),
            open_below=(BASE,),
            page=f"{BASE}/",
            running=self._running,
            end_streams=self._site.live.close,
        )

    def _prepare(self) -> None:
        """Run the deep checks once the search is ready: 10,000 skills take 10 s."""
        registry = self._runtime.registry
        self._runtime.prepare_search()
        registry.subscribe(lambda _: registry.checks.begin(registry))
        registry.checks.begin(registry)

    # Views

    def _answer(self, view: _PageView) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            viewer = await self._sessions.viewer(request)
            if viewer is None:
                return RedirectResponse(f"{base()}/sign-in", 303)
            if viewer.principal is not None:  # count it in the viewer's quotas
                address = requester(request.scope).address
                client = self._sessions.quotas.requester(viewer.principal, address)
                request.scope[REQUESTER] = client
                slot: Slot | None = request.scope.get("state", {}).get(SLOT)
                if slot is not None:
                    slot.admit(client.owner)
            return await self._shown(request, viewer, view)

        return answer

    async def _shown(self, request: Request, viewer: Viewer, view: _PageView) -> Response:
        ctx = self._context(viewer.principal)
        offering = ctx.offering
        if not self._runtime.registry.loaded.is_set():
            if view.page is live.events:  # after another response a browser does not ask again
                return Response(RETRY, media_type=TYPE)
            response = _message(ctx, "The skills are still being read", 503)
            response.headers["refresh"] = "1"
            return response
        if view.admin and not ctx.sees_others:
            return _message(ctx, "This view is for administrators", 403)
        if view.review and not proposals.may_review(ctx):
            return _message(ctx, "This view is for reviewers of proposals", 403)

        async def has_access() -> bool:
            now = await self._sessions.viewer(request, renew=False)
            return now == viewer and self._offering_of(viewer.principal) is offering

        open_ctx = replace(ctx, entry=view.entry, address=base() + view.path, has_access=has_access)

        async def handler(bound: View) -> Response:
            return await view.page(request, replace(open_ctx, view=bound))

        # without the skill's path, which another field of the event has
        method = f"GET {BASE}{view.path.partition('/{')[0]}"
        who, client = viewer.principal, requester(request.scope).address
        with events.Request(events.PAGE, method, principal=who, address=client) as event:
            try:
                return await retry_when_stale(offering.skill_set, handler)
            except (HTTPException, RequestError) as error:
                event.outcome = "refused"
                return _refusal(ctx, error)

    def _posted(
        self, work: FormWork[Form], read: Callable[[Request], Awaitable[Form | None]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that handles a form, and redirects to the view that `work` names.

        `read` returns the content of the form; None for a malformed form, or one too long.
        """

        async def answer(request: Request) -> Response:
            viewer, fault = await self._sessions.viewer(request), ""
            if not is_of_own_page(request):
                fault = "This form was sent from another page."
            elif viewer is None:
                fault = "You are not signed in any more. Sign in, and send the form again."
            if viewer is None or fault:
                return self._sign_in.page("message.html", 403, title="Forbidden", words=fault)
            ctx, fields = self._context(viewer.principal), await read(request)
            if fields is None:
                return _message(ctx, "The form is too long, or malformed.", 400)
            method = f"POST {BASE}/{request.url.path.rpartition(BASE)[2].split('/')[1]}"
            who, client = viewer.principal, requester(request.scope).address
            with events.Request(events.PAGE, method, principal=who, address=client) as event:
                try:
                    done = await to_thread.run_sync(work, request, ctx, fields)
                except (HTTPException, RequestError) as error:
                    event.outcome = "refused"
                    return _refusal(ctx, error)
            return RedirectResponse(base() + done, 303) if isinstance(done, str) else done

        return answer

    def _offering_of(self, principal: Principal | None) -> Offering:
        return self._runtime.offerings.get(self._views.for_principal(principal))

    def _context(self, principal: Principal | None) -> Context:
        """Return a viewer's context. Without a principal, others' activity needs a grant."""
        offering, admin = self._offering_of(principal), self._views.is_admin(principal)
        others = admin and (principal is not None or self._views.grants is not None)
        ctx = Context(
            self._site,
            self._runtime,
            offering,
            View(offering.skill_set),
            principal,
            is_admin=self._site.is_local or admin,
            sees_others=self._site.is_local or others,
        )
        reviews = proposals.may_review(ctx)
        nav: dict[str, list[tuple[str, str]]] = {}
        for view in VIEWS:
            if view.title and (ctx.sees_others or not view.admin) and (reviews or not view.review):
                nav.setdefault(view.entry, []).append((base() + view.path, view.title))
        return replace(ctx, nav=nav)


def _message(ctx: Context, words: str, status: int) -> Response:
    return ctx.page("message.html", status, title=HTTPStatus(status).phrase, words=words)


def _refusal(ctx: Context, error: HTTPException | RequestError) -> Response:
    if isinstance(error, HTTPException):
        return _message(ctx, error.detail, error.status_code)
    return _message(ctx, str(error), 503 if isinstance(error, UnreadableError) else 400)


async def _missing(_: Request, __: Context) -> Response:
    raise HTTPException(404, _NOT_THERE)


class _PageMiddleware:
    """ASGI middleware that sets the path prefix of addresses, and security headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        token = prefix.set(scope.get(PREFIX, ""))
        try:
            await self._app(scope, receive, sending)
        finally:
            prefix.reset(token)


async def _to_page(request: Request) -> Response:
    return RedirectResponse(f"{request.scope.get(PREFIX, '')}{BASE}/", 303)


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _STATIC:
        return Response("no such file\n", 404, media_type="text/plain")
    response = FileResponse(_HERE / "static" / name, media_type=_STATIC[name])
    response.headers["cache-control"] = "no-cache"  # browsers revalidate by ETag
    return response


@cache
def _templates() -> Environment:
    loader, undefined = FileSystemLoader(_HERE / "templates"), StrictUndefined
    # Without `trim_blocks` and `lstrip_blocks`, which join the words before and after a line break.
    made = Environment(loader=loader, autoescape=True, undefined=undefined)
    filters = {"visible": visible, "marked": marked, "plain": plain}
    filters |= {"tokens": estimated_tokens, "spark": spark, "moment": _moment, "day": _day}
    made.filters.update(filters)  # pyright: ignore[reportUnknownMemberType]
    made.globals.update(  # pyright: ignore[reportUnknownMemberType]
        skill_address=skill_address,
        file_address=file_address,
        token_rule=ESTIMATE_RULE,
        changed_words=changed_words,
        diff_lines=diff_lines,
    )
    return made


def _day(seconds: float) -> Markup:
    """Return a UTC day as HTML, which the page's script converts to the local one."""
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    return Markup('<time datetime="{}" data-day>{}</time>').format(text, text[:10])


def _moment(seconds: float | None) -> Markup:
    """Return a UTC time as HTML, which the page's script converts to local time."""
    if seconds is None:
        return Markup("never")
    moment = time.gmtime(seconds)
    machine = time.strftime("%Y-%m-%dT%H:%M:%SZ", moment)
    people = time.strftime("%Y-%m-%d %H:%M UTC", moment)
    return Markup('<time datetime="{}">{}</time>').format(machine, people)
