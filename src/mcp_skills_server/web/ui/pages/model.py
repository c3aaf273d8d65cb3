"""First view of a model: instructions and tools as a host gets them, with sizes and cuts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.authoring import context
from mcp_skills_server.authoring.context import Part, ShownText
from mcp_skills_server.catalog.views import View
from mcp_skills_server.dialects import jsonrpc, runtime
from mcp_skills_server.dialects.runtime import Offer
from mcp_skills_server.dialects.table import AUTO
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.hosts.table import HOSTS, HostContext
from mcp_skills_server.model import Json, Standing
from mcp_skills_server.runtime.sessions import Sessions
from mcp_skills_server.server import eras, prompts, skills
from mcp_skills_server.server.eras import Era
from mcp_skills_server.server.requests import Caller, Handler
from mcp_skills_server.server.tools import Tools
from mcp_skills_server.web.ui.addresses import choice_of
from mcp_skills_server.web.ui.context import Context

ERAS: Final[Mapping[str, Era]] = {"modern": eras.MODERN, "legacy": eras.LEGACY}
_MAX_SHOWN: Final = 20_000
"""Characters shown of a response."""


class MethodAnswer(NamedTuple):
    """The response of a method as sent: JSON with items. The dialect is "" if all share it."""

    method: str
    dialect: str
    raw: bytes
    items: int
    more: bool

    @property
    def text(self) -> str:
        """Return indented JSON, cut if it is long."""
        whole = json.dumps(json.loads(self.raw), indent=2, ensure_ascii=False)
        if len(whole) > _MAX_SHOWN:
            return f"{whole[:_MAX_SHOWN]}\n..."
        return whole


async def page(request: Request, ctx: Context) -> Response:
    """Return the view, for one era and one dialect."""
    era = choice_of(request.query_params, "era", ERAS, "modern")
    dialects = [AUTO, *(dialect.name for dialect in ctx.site.settings.spoken.dialects)]
    dialect = choice_of(request.query_params, "dialect", dialects, AUTO)
    host = choice_of(request.query_params, "host", context.CONTEXTS, "generic")
    answers = [method_answer async for method_answer in method_answers(ctx, ERAS[era], dialects)]

    def written() -> Response:
        texts, parts = unasked(ctx, context.CONTEXTS[host])
        return ctx.page(
            "model.html",
            texts=texts,
            parts=parts,
            host=host,
            hosts=[*context.CONTEXTS],
            answers=answers,
            chosen=[answer for answer in answers if answer.dialect in ("", dialect)],
            era=era,
            eras=[*ERAS],
            dialect=dialect,
            dialects=dialects,
            withheld=withheld(ctx),
            table=HOSTS.values(),
        )

    return await to_thread.run_sync(written)  # indenting long texts takes time


def unasked(
    ctx: Context, host: HostContext
) -> tuple[list[ShownText], Mapping[Part, Sequence[Offer]]]:
    """Return the texts that this host shows its model unasked, and the skills by what they show."""
    texts, offers = list[ShownText](), ctx.offering.briefing.overview.offers
    if ctx.site.settings.tools and offers:
        texts = context.shown_unasked(ctx.offering, host)
    return texts, context.parts_shown(texts, offers)


def withheld(ctx: Context) -> Sequence[str]:
    """Return the paths of readable skills whose frontmatter keeps them from models."""
    skills, paths = ctx.snapshot.skills, ctx.snapshot.paths(Standing.LENIENT)
    return [path for path in paths if not runtime.is_offered(skills[path])]


async def method_answers(
    ctx: Context, era: Era, dialects: Sequence[str]
) -> AsyncIterator[MethodAnswer]:
    """Yield the responses to a host that lists everything, the first page of each list."""
    settings = ctx.site.settings
    if settings.tools:
        yield await _listed(ctx, era, "tools/list", "", Caller())
    if settings.prompts:
        yield await _listed(ctx, era, "prompts/list", "", Caller(served=partial(_served, ctx)))
    extensions: dict[str, Mapping[str, Json]] = {AUTO: {}}
    extensions |= {dialect.name: dialect.extensions for dialect in settings.spoken.dialects}
    for name in dialects:
        # without extensions, no client can select this dialect alone
        if name == AUTO or extensions[name]:
            caller = Caller(extensions[name], served=partial(_served, ctx))
            yield await _listed(ctx, era, "skills/list", name, caller)


async def _listed(
    ctx: Context, era: Era, method: str, dialect: str, caller: Caller
) -> MethodAnswer:
    """Return the first page of a list as sent."""
    handlers: dict[str, Handler] = {
        "tools/list": _tools(ctx).list_tools,
        "prompts/list": prompts.list_prompts,
        "skills/list": skills.list_skills,
    }
    result = await handlers[method](ctx.view, ctx.site.settings, caller, {})
    entries, more = result[method.partition("/")[0]], result.get("nextCursor") is not None
    raw = jsonrpc.dump(era.in_era(method, result))
    return MethodAnswer(method, dialect, raw, len(entries), more)


def _tools(ctx: Context) -> Tools:
    return Tools(Sessions(ctx.runtime), ctx.site.settings.proposals)


async def _served(ctx: Context, view: View) -> Served:
    """Return the server's tools and prompts, to resolve a skill's dependencies."""
    settings, served = ctx.site.settings, Served()
    if settings.tools:
        tools = _tools(ctx).definitions(view.skill_set)
        served = served._replace(tools=frozenset(str(tool["name"]) for tool in tools))
    if settings.prompts:
        served = served._replace(prompts=prompts.Names(view, settings))
    return served
