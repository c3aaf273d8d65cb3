"""First view of a model: instructions and tools as a host gets them, with sizes and cuts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.dialects import runtime
from mcp_skills_server.dialects.runtime import Overview, Shown
from mcp_skills_server.model import Standing
from mcp_skills_server.model.clients import UNKNOWN
from mcp_skills_server.web.ui.context import Context

MOST_CUT: Final = 100
"""Cut skills that are named."""


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


async def page(_: Request, ctx: Context) -> Response:
    """Return the view."""
    return await to_thread.run_sync(_page, ctx)


def _page(ctx: Context) -> Response:
    return ctx.page("model.html", channels=list(channels(ctx)), withheld=withheld(ctx))


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
