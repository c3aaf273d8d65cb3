"""What a model sees before it asks: instructions and tools as a host gets them, their size, and what was cut."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.authoring.tokens import estimated
from mcp_skills_server.catalog.view import View
from mcp_skills_server.dialects import jsonrpc, runtime
from mcp_skills_server.dialects.runtime import Overview, Shown
from mcp_skills_server.dialects.table import AUTO
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.model import Json, Standing
from mcp_skills_server.model.clients import UNKNOWN
from mcp_skills_server.server import eras, methods, prompts
from mcp_skills_server.server.eras import Era
from mcp_skills_server.server.requests import Caller, Handler
from mcp_skills_server.web.ui.look import Look

ERAS: Final[Mapping[str, Era]] = {"modern": eras.MODERN, "legacy": eras.LEGACY}
MOST_CUT: Final = 100
"""Skills that are named of those that were cut."""
_MOST_SHOWN: Final = 20_000
"""Characters of an answer that are shown."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A skill of which not all is shown.

    Attributes:
        name: what it is called here.
        path: its skill path.
        shown: how much of its description, in words.
    """

    name: str
    path: str
    shown: str


@dataclass(frozen=True, slots=True)
class UnaskedText:
    """A text that a model reads unasked.

    Attributes:
        title: what it is.
        text: all of it.
        limit: characters that it may have.
        whole: how many skills it shows with their whole descriptions.
        cut: how many with a part of them.
        named: how many by name alone.
        unnamed: how many not at all.
        examples: some of the skills that are not whole.
    """

    title: str
    text: str
    limit: int
    whole: int
    cut: int
    named: int
    unnamed: int
    examples: Sequence[Cut]

    @property
    def tokens(self) -> int:
        """Estimate how many tokens it takes."""
        return estimated(self.text)

    @property
    def is_cut(self) -> bool:
        """Tell whether something is missing in it."""
        return bool(self.cut or self.named or self.unnamed)


@dataclass(frozen=True, slots=True)
class MethodAnswer:
    """What a method answers, as it is sent.

    Attributes:
        method: the method.
        dialect: of which dialect it is, "" where all have the same.
        raw: the result as JSON.
        items: how many entries it has.
        more: whether there is another page.
    """

    method: str
    dialect: str
    raw: bytes
    items: int
    more: bool

    @property
    def tokens(self) -> int:
        """Estimate how many tokens it takes, if a host hands it on as it is."""
        return estimated(self.raw)

    @property
    def text(self) -> str:
        """Return the JSON for people, cut where it is long."""
        whole = json.dumps(json.loads(self.raw), indent=2, ensure_ascii=False)
        return whole if len(whole) <= _MOST_SHOWN else f"{whole[:_MOST_SHOWN]}\n..."


async def page(request: Request, look: Look) -> Response:
    """Return the view, for one era and one dialect."""
    era = request.query_params.get("era", "")
    era = era if era in ERAS else "modern"
    dialects = [AUTO, *(each.name for each in look.site.settings.spoken.dialects)]
    dialect = request.query_params.get("dialect", AUTO)
    dialect = dialect if dialect in dialects else AUTO
    answers = [each async for each in _answers(look, ERAS[era], dialects)]
    chosen = [each for each in answers if each.dialect in ("", dialect)]

    def written() -> Response:
        return look.page(
            "model.html",
            channels=list(channels(look)),
            answers=answers,
            chosen=chosen,
            era=era,
            eras=[*ERAS],
            dialect=dialect,
            dialects=dialects,
            withheld=withheld(look),
            offers_tools=look.site.settings.tools,
        )

    return await to_thread.run_sync(written)  # long texts, made readable


def channels(look: Look) -> Iterator[UnaskedText]:
    """Yield the texts that a model reads unasked; none where tools are not offered, or there is no skill."""
    briefing = look.runtime.briefing
    limit = briefing.characters(UNKNOWN)
    overview = briefing.overview
    tools = briefing.tools(handles=True)
    if not look.site.settings.tools or not overview:
        return
    scripts = any(tool["name"] == runtime.RUN for tool in tools)
    shown = runtime.in_instructions(overview, limit, scripts=scripts)
    yield channel("Instructions", briefing.instructions(), limit, overview, shown)
    loading = next(str(tool["description"]) for tool in tools if tool["name"] == runtime.LOAD)
    title = f"Description of the tool {runtime.LOAD}"
    yield channel(title, loading, limit, overview, runtime.in_loading(overview, limit))


def channel(title: str, text: str, limit: int, overview: Overview, shown: Shown) -> UnaskedText:
    """Return a text with what of the skills it does not show."""
    count = len(overview.offers)
    if shown.names is not None:
        # The names that are there say enough of themselves; what is missing comes first.
        left_out = [position for position in range(count) if position not in shown.names]
        examples = [_cut(overview, position, "not named") for position in left_out[:MOST_CUT]]
        return UnaskedText(title, text, limit, 0, 0, len(shown.names), len(left_out), examples)
    cut = [position for position, part in shown.cut.items() if part]
    examples = [_cut(overview, position, runtime.shown_part(overview, shown, position)) for position in cut[:MOST_CUT]]
    return UnaskedText(title, text, limit, count - len(shown.cut), len(cut), len(shown.cut) - len(cut), 0, examples)


def _cut(overview: Overview, position: int, words: str) -> Cut:
    offer = overview.offers[position]
    return Cut(offer.name, offer.path, words)


def withheld(look: Look) -> Sequence[str]:
    """Paths of the skills that can be read and that no model is offered, because they say so."""
    skills = look.snapshot.skills
    return [path for path in look.snapshot.paths(Standing.LENIENT) if not runtime.is_offered(skills[path])]


async def _answers(look: Look, era: Era, dialects: Sequence[str]) -> AsyncIterator[MethodAnswer]:
    """Yield the answers to a host that asks for all that a model could be shown, the first page of each list."""
    settings = look.site.settings
    if settings.tools:
        tools: list[Json] = [*look.runtime.briefing.tools(handles=True)]
        fields = {"resultType": "complete", "tools": tools, "ttlMs": settings.ttl_ms, "cacheScope": "private"}
        yield MethodAnswer("tools/list", "", jsonrpc.dump(era.written("tools/list", fields)), len(tools), more=False)
    if settings.prompts:
        caller = Caller(served=_served(look))
        found = await _listed(look, era, "prompts/list", methods.PROMPTS["prompts/list"], caller)
        yield MethodAnswer("prompts/list", "", *found)
    by_name = {each.name: each for each in settings.spoken.dialects}
    for name in dialects:
        extensions = () if name == AUTO else tuple(by_name[name].extensions)
        if name != AUTO and not extensions:
            continue  # no client can ask for this one alone
        caller = Caller(extensions, served=_served(look))
        found = await _listed(look, era, "skills/list", methods.SKILLS["skills/list"], caller)
        yield MethodAnswer("skills/list", name, *found)


async def _listed(look: Look, era: Era, method: str, handler: Handler, caller: Caller) -> tuple[bytes, int, bool]:
    """Return the first page of a list as it is sent, how many entries it has, and whether there are more."""
    result = await handler(look.view, look.site.settings, caller, {})
    entries = result[method.partition("/")[0]]
    return jsonrpc.dump(era.written(method, result)), len(entries), result.get("nextCursor") is not None


def _served(look: Look) -> Callable[[View], Awaitable[Served]]:
    """Return what the server has beside skills, for a skill's dependencies."""

    async def served(view: View) -> Served:
        settings = look.site.settings
        tools = look.runtime.briefing.tools(handles=True) if settings.tools else []
        names = prompts.Names(view, settings) if settings.prompts else ()
        return Served(tools=frozenset(str(each["name"]) for each in tools), prompts=names)

    return served
