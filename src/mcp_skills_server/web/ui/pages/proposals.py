"""Proposals by models: the diff from the served skill, and a reviewer's decision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mcp_skills_server.authoring import lift
from mcp_skills_server.authoring.evaluation import CaseResult, own_cases, ranked
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import View, permissions_of
from mcp_skills_server.errors import RequestError
from mcp_skills_server.format import frontmatter
from mcp_skills_server.model import SKILL_MD, Snapshot
from mcp_skills_server.proposals import approval
from mcp_skills_server.proposals.intake import MAX_LINES, trial
from mcp_skills_server.proposals.review import Review, review, root_of
from mcp_skills_server.proposals.store import LOCAL, Proposal, ProposalStore
from mcp_skills_server.provenance.difference import Files
from mcp_skills_server.runtime.search_index import NoFullTextError
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.events import Use
from mcp_skills_server.web.ui.context import Context, emit_decision, without_folders
from mcp_skills_server.web.ui.render import render

_AROUND: Final = 4
"""Context lines before and after a change."""
_MARKS: Final = str.maketrans("\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", "␍␋␌␜␝␞␤↵¶")
_MAX_EXACT: Final = 500**2
"""Product of line counts beyond which frequent lines are not matched: it takes cubic time."""
_MAX_QUERIES: Final = 20
_MAX_MESSAGE: Final = 1_000
_UNWRITABLE: Final = "It cannot be written into its folder; ask the operator of this server why."
_NONE: Final = "There is no such proposal, or you may not review it."


class Side(NamedTuple):
    """A row of a side-by-side diff: "same", "changed", or "gap" for omitted lines."""

    kind: str
    left: str | None
    right: str | None


class FileSides(NamedTuple):
    """The side-by-side diff of a file that is "added", "changed" or "removed"."""

    path: str
    kind: str
    rows: Sequence[Side]


def page(_: Request, ctx: Context) -> Response:
    """Return the list: pending proposals, and decided ones. Blocks."""
    reviewable = [proposal for proposal in _store(ctx).list() if may_review(ctx, proposal.name)]
    pending = [proposal for proposal in reviewable if proposal.state == "pending"]
    decided = [proposal for proposal in reviewable if proposal.state != "pending"]
    return ctx.page("proposals.html", pending=pending, decided=decided, seconds=_seconds)


def _seconds(moment: str) -> float | None:
    """Return a time of a proposal in seconds since 1970; None if its record has no valid one."""
    with suppress(ValueError):
        return datetime.fromisoformat(moment).timestamp()
    return None


def may_review(ctx: Context, name: str | None = None) -> bool:
    """Return whether the viewer may review proposals for skill `name`; None for any skill."""
    permissions = permissions_of(ctx.offering.skill_set)
    if ctx.site.settings.proposals is None or ctx.site.is_local:
        return ctx.site.settings.proposals is not None
    if permissions is None or ctx.principal is None:
        return False
    if name is None:
        return permissions.permits_any("review")
    return permissions.permits("review", name)


def _store(ctx: Context) -> ProposalStore:
    store = ctx.site.settings.proposals
    if store is None:
        raise HTTPException(404, _NONE)
    return store


def _found(ctx: Context, id_: str) -> Proposal:
    try:
        proposal = _store(ctx).get(id_)
    except RequestError:
        raise HTTPException(404, _NONE) from None
    if not may_review(ctx, proposal.name):
        raise HTTPException(404, _NONE)
    return proposal


def one(request: Request, ctx: Context, message: str = "", trouble: str = "") -> Response:
    """Return the view of one proposal, with the message and the error of a refused form. Blocks."""
    registry, proposal = ctx.runtime.registry, _found(ctx, request.path_params["id"])
    reviewed = review(registry, _store(ctx), proposal, ctx.snapshot)
    if reviewed.before:
        events.record_sent(Use("read", proposal.name, "", ""), 0)
    manifest, _ = reviewed.after.get(SKILL_MD, (b"", False))
    body = frontmatter.parse(manifest).body or ""
    return ctx.page(
        "proposal.html",
        400 if trouble else 200,
        message=message,
        trouble=trouble,
        seconds=_seconds,
        proposal=proposal,
        found=reviewed,
        problems=[without_folders(ctx, problem) for problem in reviewed.problems],
        files=list(sides(reviewed.before, reviewed.after)),
        rendered=render(body, proposal.name, reviewed.after.keys(), SKILL_MD),
        queries=queries(registry, reviewed, ctx.view),
        lift=lift.remembered(ctx.site.answers, reviewed.digest),
        is_own=ctx.principal is not None and ctx.principal.key == proposal.principal,
    )


def decide(request: Request, ctx: Context, fields: Mapping[str, str]) -> str | Response:
    """Approve or reject a proposal as the form says; return where to go, or the form. Blocks."""
    proposal, store = _found(ctx, request.path_params["id"]), _store(ctx)
    registry, reviewer = ctx.runtime.registry, LOCAL
    if ctx.principal is not None:
        reviewer = ctx.principal.key
    message = fields.get("message", "").strip()[:_MAX_MESSAGE]
    decision = fields.get("decision")
    try:
        if decision == "approve":
            accepts = "scripts" in fields
            approval.approve(
                registry, store, proposal.id, reviewer=reviewer, message=message, scripts=accepts
            )
        elif decision == "reject":
            approval.reject(store, proposal.id, reviewer=reviewer, message=message)
        else:
            raise RequestError("Choose approve or reject.")
    except approval.UnwritableError as error:
        return one(request, ctx, message, str(error) if ctx.is_admin else _UNWRITABLE)
    except RequestError as error:
        return one(request, ctx, message, str(error))
    use = Use(decision, proposal.name, proposal.id, proposal.base)
    emit_decision(request, ctx, use, proposal.principal)
    return f"/proposals/{proposal.id}"


def sides(before: Files, after: Files) -> Iterator[FileSides]:
    """Yield the side-by-side diff of each file that differs."""
    for path in sorted(before.keys() | after.keys()):
        (old, _), (new, _) = before.get(path, (b"", False)), after.get(path, (b"", False))
        kind = "changed"
        if path not in before:
            kind = "added"
        elif path not in after:
            kind = "removed"
        elif old == new:
            continue
        yield FileSides(path, kind, list(_rows(_lines(old), _lines(new))))


def _lines(raw: bytes) -> list[str]:
    """Split a file as the limits of a proposal count its lines; mark other ends than LF."""
    lines = raw.decode("utf-8", "replace").splitlines(keepends=True)
    return [line.removesuffix("\n").translate(_MARKS) for line in lines]


def _rows(left: Sequence[str], right: Sequence[str]) -> Iterator[Side]:
    if max(len(left), len(right)) > MAX_LINES:
        count = f"{len(left):,} lines are served and {len(right):,} proposed"
        yield Side("gap", f"{count}, too many to compare; at most {MAX_LINES:,} are shown", None)
        yield from (Side("changed", None, line) for line in right[:MAX_LINES])
        return
    size = len(left) * len(right)
    matcher = SequenceMatcher(None, left, right, autojunk=size > _MAX_EXACT)
    for group in matcher.get_grouped_opcodes(_AROUND):
        if group[0][1]:
            yield Side("gap", f"from line {group[0][1] + 1:,}", None)
        for tag, start, stop, first, last in group:
            kind = "same"
            if tag != "equal":
                kind = "changed"
            for served, proposed in zip_longest(left[start:stop], right[first:last]):
                yield Side(kind, served, proposed)


def queries(
    registry: Registry, reviewed: Review, view: View
) -> list[tuple[CaseResult | None, CaseResult]]:
    """Return results of a pending proposal's trigger queries, before and with the proposal.

    They rank the skills of the reviewer's view. The first is None for a new skill.
    """
    name, skills, cases = reviewed.proposal.name, {**view.snapshot.skills}, []
    if reviewed.proposal.state != "pending":
        return []
    with trial(registry, name, root_of(registry, reviewed.proposal), reviewed.after) as alone:
        for tried in alone.snapshot.skills.values():
            skills[name] = replace(tried, path=name)
            cases = own_cases(alone.read, skills[name], str)[0][:_MAX_QUERIES]
    now = view.snapshot.skills.get(name)
    try:
        after = ranked(cases, View(view.skill_set, Snapshot(skills)))
        if now is None:
            return [(None, line) for line in after]
        before = ranked([(now, case) for _, case in cases], view)
    except NoFullTextError:
        return []
    return [*zip(before, after, strict=True)]
