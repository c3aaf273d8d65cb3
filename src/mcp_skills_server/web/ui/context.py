"""Context of one page request: its viewer, permissions, and one snapshot of the skills."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from mcp_skills_server.access.grants import LOCAL, Grant
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.views import View, permissions_of
from mcp_skills_server.codes import unlisting_problem
from mcp_skills_server.dialects import runtime
from mcp_skills_server.format import identity
from mcp_skills_server.model import Problem, Skill, Snapshot
from mcp_skills_server.runtime.offering import Offering
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.sources.git.history import Histories
from mcp_skills_server.telemetry.events import Use
from mcp_skills_server.telemetry.usage import UsageRow
from mcp_skills_server.web.part import requester
from mcp_skills_server.web.ui.activity import Activity
from mcp_skills_server.web.ui.addresses import base
from mcp_skills_server.web.ui.changes import Live
from mcp_skills_server.web.ui.revisions import Revisions
from mcp_skills_server.web.ui.usage import UsageReports

if TYPE_CHECKING:
    from jinja2 import Environment

    from mcp_skills_server.sources.mirrors import SourceState


@dataclass(frozen=True, slots=True)
class SharedContext:
    """The context that all viewers share."""

    templates: Environment
    settings: Settings
    sources: Callable[[], Sequence[SourceState]]  # returns the state of each fetched root
    usage: UsageReports
    revisions: Revisions
    is_local: bool  # one person's page, on this machine only, which may show disk folders
    is_open: bool  # needs no sign-in
    live: Live
    activity: Activity
    grants: Callable[[], Sequence[Grant] | None]  # returns the grants in force; None without any
    principals: Callable[[], Iterable[Principal]]  # returns those of the static tokens
    answers: Index | None = None  # the cache of `evaluate --outputs`
    histories: Histories = field(default_factory=Histories)  # of fetched git repositories


class Argument(NamedTuple):
    """A form field for an argument of a skill or tool. Without choices it takes any text."""

    name: str
    words: str
    is_required: bool
    value: str
    choices: Sequence[str] = ()


async def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Context:
    """The context of one page request: its viewer, permissions and skills."""

    site: SharedContext
    runtime: Runtime
    offering: Offering  # the skills that the viewer may read
    view: View  # these skills, from one snapshot
    principal: Principal | None  # the viewer; None where no authentication is required
    is_admin: bool  # may see what is for the operator
    sees_others: bool  # may see other users and their activity
    # the views that the viewer may open, by entry of the navigation: address and title
    nav: Mapping[str, Sequence[tuple[str, str]]] = field(
        default_factory=dict[str, Sequence[tuple[str, str]]]
    )
    entry: str = ""  # the entry of the open view
    address: str = ""  # the address of the open view
    has_access: Callable[[], Awaitable[bool]] = _always  # unchanged, for long responses

    @property
    def snapshot(self) -> Snapshot:
        """Return the skills that the viewer may read, as of the start of the request."""
        return self.view.snapshot

    @property
    def number(self) -> int:
        """Return the number of the last change on the page, from which its stream continues."""
        skills = self.offering.skill_set
        number = self.site.live.number(skills)
        if skills.snapshot is not self.snapshot:
            return 0  # this snapshot lacks newer changes
        return number

    @property
    def folders(self) -> str:
        """Return the names of the first folders of a local page; "" on a server."""
        if not self.site.is_local:
            return ""
        return ", ".join(os.path.basename(root.path) for root in self.runtime.registry.roots[:3])

    def used(self) -> Mapping[str, UsageRow] | None:
        """Return usage of the last 30 days by skill path, from a file; None if not counted."""
        report = self.site.usage.read()
        if report is None:
            return None
        return {line.name: line for line in report.lines if line.name in self.snapshot.skills}

    def may_read(self, path: str) -> bool:
        """Return whether the viewer may know of a skill at this path, even if it is gone."""
        permissions = permissions_of(self.offering.skill_set)
        return permissions is None or permissions.can_read(path)

    def offers(self, skill: Skill) -> bool:
        """Return whether the viewer may read a skill, and models are offered it."""
        return runtime.is_offered(skill) and skill.path in self.snapshot.skills

    def page(self, template: str, status: int = 200, **values: object) -> Response:
        """Return the response of a template, rendered with these values and `ctx`."""
        made = self.site.templates.get_template(template)
        return HTMLResponse(made.render(ctx=self, base=base(), **values), status)


def emit_decision(request: Request, ctx: Context, use: Use, proposer: str = "") -> None:
    """Emit what the viewer decided by a form."""
    reviewer, label = LOCAL, ""
    if ctx.principal is not None:
        reviewer, label = ctx.principal.id, ctx.principal.label
    address = requester(request.scope).address
    ctx.runtime.events.emit_decision(
        use, proposer=proposer, reviewer=reviewer, label=label, address=address
    )


def source_name(ctx: Context, root: int) -> str:
    """Return the name of a root: its origin or folder. Only a local page has whole paths."""
    served = ctx.runtime.registry.roots[root]
    if served.origin is not None:
        if ctx.site.is_local:
            return served.origin
        return identity.shown_origin(served.origin)
    if ctx.site.is_local:
        return served.shown
    return os.path.basename(served.path) or "folder"


def reason_left_out(ctx: Context, skill: Skill) -> Problem | None:
    """Return why a skill is not listed or not served, as `shown_problem`; None if it is valid."""
    problem = unlisting_problem(skill.problems)
    return problem and shown_problem(ctx, problem)


def shown_problem(ctx: Context, problem: Problem) -> Problem:
    """Return a problem without the server's folders, except on a local page."""
    hint = problem.hint and without_folders(ctx, problem.hint)
    return problem._replace(message=without_folders(ctx, problem.message), hint=hint)


def without_folders(ctx: Context, text: str) -> str:
    """Return a text with root paths replaced by root names, except on a local page."""
    if ctx.site.is_local:
        return text
    for root in sorted(ctx.runtime.registry.roots, key=lambda root: -len(root.path)):
        for location in dict.fromkeys((root.path, root.given, root.shown)):
            if os.sep in location:
                text = text.replace(location, source_name(ctx, root.index))
    return text
