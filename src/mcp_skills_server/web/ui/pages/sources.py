"""Where the skills come from, which revision is served, and how the last look at each source went."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.model import Standing
from mcp_skills_server.web.ui.look import Look, source_name

if TYPE_CHECKING:
    from mcp_skills_server.sources.mirrors import SourceState


class SourceRow(NamedTuple):
    """One root.

    Attributes:
        name: what people call it.
        revision: which revision is served; "" for a folder, and where that is not known.
        skills: how many of its skills the viewer may see.
        left_out: how many of them are not served to everybody.
        state: the state of what is fetched; None for a folder, which is watched.
        trouble: what went wrong at the last look, "" for nothing.
    """

    name: str
    revision: str
    skills: int
    left_out: int
    state: SourceState | None
    trouble: str


async def page(_: Request, look: Look) -> Response:
    """Return the view."""
    return look.page("sources.html", rows=rows(look))


def rows(look: Look) -> list[SourceRow]:
    """Return the roots that the viewer has a skill of; all of them for who may see what the operator sees."""
    states = {each.name: each for each in look.site.sources()}
    lost = {each.path: each.message for each in look.runtime.registry.snapshot.problems if each.code == "root-missing"}
    counts = Counter(skill.root for skill in look.snapshot.skills.values())
    left_out = Counter(s.root for s in look.snapshot.skills.values() if s.standing < Standing.VALID)
    out: list[SourceRow] = []
    for root in look.runtime.registry.roots:
        if not counts[root.index] and not look.is_admin:
            continue
        state, revision, trouble = states.get(root.origin or ""), root.revision, lost.get(root.shown)
        if state is not None:
            revision, trouble = state.revision or revision, state.trouble
        if trouble and not look.is_admin:
            trouble = "It could not be read at the last look; what was read before is served."
        name = source_name(look, root.index)
        out.append(SourceRow(name, revision, counts[root.index], left_out[root.index], state, trouble or ""))
    return out
