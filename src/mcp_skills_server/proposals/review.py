"""Review of a proposal: its changes, its problems, and similar skills."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from mcp_skills_server.catalog.bundle import without_nested
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Root
from mcp_skills_server.model import Skill, Snapshot, Standing
from mcp_skills_server.proposals.approval import scripts_in
from mcp_skills_server.proposals.intake import error_texts, files_of, trial, with_proposal
from mcp_skills_server.proposals.store import BEFORE, Proposal, ProposalStore
from mcp_skills_server.provenance.difference import Difference, Files, compare
from mcp_skills_server.runtime.overlap import overlaps

_ALIKE: Final = 0.3
"""The overlap of descriptions from which on two skills are reported as similar."""
_MAX_ALIKE: Final = 5


class Review(NamedTuple):
    """A proposal beside the skill as it is now."""

    proposal: Proposal
    before: Files  # of the skill now, or before it was approved; empty for a new skill
    after: Files  # with the proposal applied
    difference: Difference | None  # None if nothing would change
    problems: Sequence[str]  # errors that `validate` finds in the result
    scripts: Sequence[str]  # the files that could run, or that a script may load
    alike: Sequence[str]  # skills with the same name or a similar description
    is_outdated: bool  # the skill has changed since, so the proposal cannot be approved
    digest: str  # of the result, as lock files use it


def review(registry: Registry, store: ProposalStore, proposal: Proposal, seen: Snapshot) -> Review:
    """Compare a proposal with its skill now, and with those `seen` by its reviewer. Blocks."""
    root = root_of(registry, proposal)
    skill = registry.of_root(root).skills.get(proposal.name)
    before: Files = {}
    base, digest, alike = "", "", list[str]()
    if skill is not None:
        skill = without_nested(skill, skill.nested, root)
        before, base = files_of(registry, skill), registry.digest_over(skill)
    if proposal.state == "approved":
        before = {path: (raw, False) for path, raw in store.files(proposal, BEFORE).items()}
    written = store.files(proposal)
    after = with_proposal(before, written, proposal.removed)
    with trial(registry, proposal.name, root, after) as alone:
        problems = error_texts(alone)
        tried = next(iter(alone.snapshot.skills.values()), None)
        if tried is not None:
            alike = _alike(tried, proposal.name, seen)
            digest = alone.digest_over(tried)
    return Review(
        proposal,
        before,
        after,
        compare(proposal.name, before, after),
        problems,
        scripts_in(before, after),
        alike,
        is_outdated=proposal.state == "pending" and proposal.base_files != base,
        digest=digest,
    )


def root_of(registry: Registry, proposal: Proposal) -> Root:
    """Return the root that a proposal is for, or the first root if that one is no longer served."""
    return next((root for root in registry.roots if root.path == proposal.root), registry.roots[0])


def _alike(tried: Skill, name: str, seen: Snapshot) -> list[str]:
    others = [
        skill
        for path, skill in seen.skills.items()
        if path != name and skill.standing > Standing.UNUSABLE
    ]
    same = [f"{other.path} has the same name" for other in others if other.name == tried.name]
    near = [overlap for overlap in overlaps(tried, others) if overlap.share >= _ALIKE][:_MAX_ALIKE]
    return [
        *same,
        *(f"{overlap.other.path} says much the same ({overlap.share:.0%})" for overlap in near),
    ]
