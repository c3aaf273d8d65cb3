"""First view of a model: instructions and tools as a host gets them, with sizes and cuts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.catalog.views import View
from mcp_skills_server.dialects import jsonrpc, runtime
from mcp_skills_server.dialects.runtime import Overview, Shown
from mcp_skills_server.dialects.table import AUTO
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.hosts.table import HOSTS
from mcp_skills_server.model import Json, Standing
from mcp_skills_server.model.clients import UNKNOWN
from mcp_skills_server.runtime.sessions import Sessions
from mcp_skills_server.server import eras, prompts, skills
from mcp_skills_server.server.eras import Era
from mcp_skills_server.server.requests import Caller, Handler
from mcp_skills_server.server.tools import Tools
from mcp_skills_server.web.ui.context import Context, choice_of

ERAS: Final[Mapping[str, Era]] = {"modern": eras.MODERN, "legacy": eras.LEGACY}
MOST_CUT: Final = 100
"""Cut skills that are named."""
_MOST_SHOWN: Final = 20_000
"""Characters shown of a response."""


class Cut(NamedTuple):
    """A skill that is not shown whole, and in words how much of its description is."""

    name: str
    path: str
    shown: str


class UnaskedText(NamedTuple):
    """A text that a model reads unasked, with counts of skills by how much it shows."""

    title: str
    text: str
    limit: int
    examples: Sequence[Cut]
    whole: int = 0  # with the description
    cut: int = 0  # with a part of it
    named: int = 0  # with the name only
    unnamed: int = 0


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
        if len(whole) > _MOST_SHOWN:
            return f"{whole[:_MOST_SHOWN]}\n..."
        return whole


async def page(request: Request, ctx: Context) -> Response:
    """Return the view, for one era and one dialect."""
    era = choice_of(request.query_params, "era", ERAS, "modern")
    dialects = [AUTO, *(each.name for each in ctx.site.settings.spoken.dialects)]
    dialect = choice_of(request.query_params, "dialect", dialects, AUTO)
    answers = [each async for each in method_answers(ctx, ERAS[era], dialects)]

    def written() -> Response:
        return ctx.page(
            "model.html",
            channels=list(channels(ctx)),
            answers=answers,
            chosen=[each for each in answers if each.dialect in ("", dialect)],
            era=era,
            eras=[*ERAS],
            dialect=dialect,
            dialects=dialects,
            withheld=withheld(ctx),
            hosts=HOSTS.values(),
        )

    return await to_thread.run_sync(written)  # indenting long texts takes time


def channels(ctx: Context) -> Iterator[UnaskedText]:
    """Yield the texts that a model reads unasked; none without tools or skills."""
    briefing = ctx.runtime.briefing
    limit, overview = briefing.characters(UNKNOWN), briefing.overview
    if not ctx.site.settings.tools or not overview:
        return
    tools = {str(tool["name"]): str(tool["description"]) for tool in briefing.tools(handles=True)}
    shown = runtime.in_instructions(overview, limit, scripts=runtime.RUN in tools)
    yield channel("Instructions", briefing.instructions(), limit, overview, shown)
    title = f"Description of the tool {runtime.LOAD}"
    yield channel(title, tools[runtime.LOAD], limit, overview, runtime.in_loading(overview, limit))


def channel(title: str, text: str, limit: int, overview: Overview, shown: Shown) -> UnaskedText:
    """Return a text with the skills that it does not show whole."""
    offers = overview.offers
    if shown.names is not None:
        # The text itself shows the other names, so the examples are the missing ones.
        left_out = [each for position, each in enumerate(offers) if position not in shown.names]
        examples = [Cut(each.name, each.path, "not named") for each in left_out[:MOST_CUT]]
        named, unnamed = len(shown.names), len(left_out)
        return UnaskedText(title, text, limit, examples, named=named, unnamed=unnamed)
    cut, examples = [position for position, part in shown.cut.items() if part], list[Cut]()
    for position in cut[:MOST_CUT]:
        each, part = offers[position], runtime.shown_part(overview, shown, position)
        examples.append(Cut(each.name, each.path, part))
    whole, named = len(offers) - len(shown.cut), len(shown.cut) - len(cut)
    return UnaskedText(title, text, limit, examples, whole, len(cut), named)


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
    extensions |= {each.name: each.extensions for each in settings.spoken.dialects}
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
    settings, found = ctx.site.settings, Served()
    if settings.tools:
        tools = _tools(ctx).definitions(view.skill_set)
        found = found._replace(tools=frozenset(str(each["name"]) for each in tools))
    if settings.prompts:
        found = found._replace(prompts=prompts.Names(view, settings))
    return found
