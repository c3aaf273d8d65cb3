"""The context of one page request: one view of the skills, bound once, and the permissions of the viewer."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.responses import HTMLResponse, Response

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.view import View
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format import identity
from mcp_skills_server.model import Problem, Skill, Snapshot, Standing
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.sources.git.history import Histories
from mcp_skills_server.telemetry.usage_store import By, Line, Report, UsageStore
from mcp_skills_server.web.ui.activity import Activity
from mcp_skills_server.web.ui.live import Live
from mcp_skills_server.web.ui.revisions import Revisions

if TYPE_CHECKING:
    from jinja2 import Environment

    from mcp_skills_server.sources.mirrors import SourceState

BASE: Final = "/ui"
"""Below which path all of it lies, as routes see it."""
prefix: Final[ContextVar[str]] = ContextVar("prefix", default="")
"""The prefix of `BASE` in the addresses that the viewer's browser knows."""
USAGE_DAYS: Final = 30
_USAGE_S: Final = 5.0
"""For so long a report is good enough."""


class UsageReports:
    """The reports of the counts, not made anew for every page.

    Args:
        counts: None where nothing is counted.
    """

    def __init__(self, counts: UsageStore | None) -> None:
        self._counts = counts
        self._made: dict[By, tuple[float, Report | None]] = {}

    @property
    def are_kept(self) -> bool:
        """Tell whether anything is counted."""
        return self._counts is not None

    def read(self, by: By = "skill") -> Report | None:
        """Return a report, None where there is none. Reads a file."""
        if self._counts is None:
            return None
        made, found = self._made.get(by, (-_USAGE_S, None))
        if time.monotonic() - made >= _USAGE_S:
            try:
                found = self._counts.report(by, USAGE_DAYS)
            except UsageError:
                found = None
            self._made[by] = time.monotonic(), found
        return found


@dataclass(frozen=True, slots=True)
class PageContext:
    """The context that all viewers share.

    Attributes:
        templates: the templates.
        settings: what clients of MCP are shown.
        sources: the state of each root that is fetched.
        usage: the counts of uses.
        revisions: what has changed since the start.
        local: whether the page is one person's own, on this machine alone: then it may name folders of the disk.
        open: whether the page needs no sign-in.
        live: the changes, and who follows them.
        activity: the latest runs and clients.
        histories: what git knows of the skills of repositories that are fetched.
    """

    templates: Environment
    settings: Settings
    sources: Callable[[], Sequence[SourceState]]
    usage: UsageReports
    revisions: Revisions
    local: bool = False
    open: bool = True
    live: Live = field(default_factory=Live)
    activity: Activity = field(default_factory=Activity)
    histories: Histories = field(default_factory=Histories)


async def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Look:
    """The context in which one request of a viewer is answered.

    Attributes:
        site: what all viewers have in common.
        runtime: of the skills that the viewer may read.
        view: these skills, bound once.
        principal: who looks; None where no proof is required.
        is_admin: whether the viewer may see what is for the operator.
        sees_others: whether the viewer may see who else there is, and what they do.
        nav: the views that the viewer may open: address and title.
        here: the address of the view that is open, for the mark in `nav`.
        stays: whether the viewer may still see the same, for answers that take long.
    """

    site: PageContext
    runtime: Runtime
    view: View
    principal: Principal | None
    is_admin: bool
    sees_others: bool
    nav: Sequence[tuple[str, str]] = ()
    here: str = ""
    stays: Callable[[], Awaitable[bool]] = _always

    @property
    def snapshot(self) -> Snapshot:
        """All skills that the viewer may read, as they were when the request came."""
        return self.view.snapshot

    @property
    def number(self) -> int:
        """Return the number of the last change that the page shows, for the stream that announces the next one."""
        skills = self.runtime.skill_set
        number = self.site.live.number(skills)
        if skills.snapshot is not self.snapshot:
            return 0  # there are changes that it does not show
        return number

    @property
    def folders(self) -> str:
        """Return the names of the folders of one's own page; "" for the page of a server."""
        if not self.site.local:
            return ""
        return ", ".join(os.path.basename(root.path) for root in self.runtime.registry.roots[:3])

    def used(self) -> Mapping[str, Line] | None:
        """Return the counts of the viewer's skills in the last 30 days, by skill path; None if nothing is counted.

        Reads a file.
        """
        report = self.site.usage.read()
        return (
            None if report is None else {each.name: each for each in report.lines if each.name in self.snapshot.skills}
        )

    def may_read(self, path: str) -> bool:
        """Tell whether the viewer may know of the skill of this path, although it may be gone."""
        permissions = self.runtime.skill_set.permissions
        return permissions is None or permissions.reads(path)

    def page(self, template: str, status: int = 200, **values: object) -> Response:
        """Return the response that a template makes of these values, which find the look itself under `look`."""
        return HTMLResponse(self.site.templates.get_template(template).render(look=self, base=base(), **values), status)


def start_of(query: Mapping[str, str]) -> int:
    """Return from which number on an address wants a list; 0 where it says nothing that makes sense."""
    start = query.get("from", "")
    return int(start) if start.isascii() and start.isdigit() and len(start) < 7 else 0


def base() -> str:
    """Below which path all of it lies, as the browser sees it. Every address on a page begins with it."""
    return prefix.get() + BASE


def skill_address(skill: Skill | str, view: str = "skills") -> str:
    """Return the address of a view about one skill."""
    return f"{base()}/{view}/{quote(skill if isinstance(skill, str) else skill.path)}"


def file_address(skill: Skill | str, file: str, view: str = "files") -> str:
    """Return the address of a view about one file of a skill."""
    return f"{skill_address(skill, view)}?file={quote(file)}"


def source_name(look: Look, root: int) -> str:
    """Return the name of a root: its origin or its folder. Only the operator sees whole paths of the disk."""
    found = look.runtime.registry.roots[root]
    if found.origin is not None:
        return found.origin if look.site.local else identity.shown_origin(found.origin)
    return found.shown if look.site.local else os.path.basename(found.path) or "folder"


def reason_left_out(skill: Skill) -> Problem | None:
    """Return what keeps a skill from being served to everybody: its first error."""
    if skill.standing is Standing.VALID:
        return None
    return next((each for each in skill.problems if each.severity == "error"), None)


def shown_problem(look: Look, problem: Problem) -> Problem:
    """Return a problem as a viewer reads it: where folders lie on the server's disk is the operator's matter."""
    hint = problem.hint and without_folders(look, problem.hint)
    return problem._replace(message=without_folders(look, problem.message), hint=hint)


def without_folders(look: Look, text: str) -> str:
    """Return a text with the names of roots in place of their paths on the server's disk."""
    if look.site.local:
        return text
    for root in sorted(look.runtime.registry.roots, key=lambda each: -len(each.path)):
        for place in dict.fromkeys((root.path, root.given, root.shown)):
            if os.sep in place:
                text = text.replace(place, source_name(look, root.index))
    return text
