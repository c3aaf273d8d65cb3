"""Where the skills come from, which revision is served, and how the last look at each source went."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.model import Standing
from mcp_skills_server.web.ui.look import Look, source_name

if TYPE_CHECKING:
    from mcp_skills_server.sources.mirrors import SourceState


@dataclass(frozen=True, slots=True)
class SourceRow:
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
        state = states.get(root.origin) if root.origin is not None else None
        trouble = (state.trouble if state is not None else lost.get(root.shown)) or ""
        if trouble and not look.is_admin:
            trouble = "It could not be read at the last look; what was read before is served."
        revision = (state.revision if state is not None else "") or root.revision
        out.append(
            SourceRow(source_name(look, root.index), revision, counts[root.index], left_out[root.index], state, trouble)
        )
    return out
