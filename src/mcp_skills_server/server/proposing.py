"""The proposal tools over MCP: `skills_propose` and `skills_proposals`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.catalog.threads import in_thread
from mcp_skills_server.catalog.views import View, permissions_of
from mcp_skills_server.dialects import runtime
from mcp_skills_server.errors import RequestError, quoted
from mcp_skills_server.format import identity
from mcp_skills_server.model import Json, Skill, Snapshot, Standing
from mcp_skills_server.proposals.intake import propose
from mcp_skills_server.proposals.store import LOCAL, Proposal, ProposalStore
from mcp_skills_server.runtime.offering import Offering
from mcp_skills_server.runtime.tool_arguments import invalid_arguments
from mcp_skills_server.server.requests import Caller
from mcp_skills_server.telemetry import events

_MAX_LISTED: Final = 50


class ProposalTools:
    """The proposal tools, shared by all callers."""

    tools: Final = (runtime.PROPOSE, runtime.PROPOSALS)

    def __init__(self, registry: Registry, store: ProposalStore) -> None:
        self._registry = registry
        self._store = store

    def definitions(self, skill_set: SkillSet) -> list[dict[str, Json]]:
        """Return the proposal tools, or none if the grants allow no proposal."""
        permissions = permissions_of(skill_set)
        if permissions is None or permissions.permits_any("propose"):
            return runtime.proposing()
        return []

    async def call(
        self, view: View, tool: str, given: Mapping[str, Any], offering: Offering, *, caller: Caller
    ) -> runtime.ToolResult:
        """Call one of `tools`; errors that the model can correct are results with `isError`."""
        try:
            invalid = invalid_arguments(tool, given)
            if invalid:
                raise RequestError(invalid)
            if not self.definitions(view.skill_set):
                instead = "tell the user what you would have proposed"
                raise RequestError(f"You may not propose skills here; {instead}")
            if tool == runtime.PROPOSALS:
                return await in_thread(self._list, proposer_of(caller))
            skill = _find_target(offering, view.snapshot, given["name"])
            return await in_thread(partial(self._propose, given, view, skill, caller))
        except RequestError as error:
            return runtime.failure(str(error))

    def _list(self, principal: str) -> runtime.ToolResult:
        own = [
            proposal.as_json() for proposal in self._store.list() if proposal.principal == principal
        ]
        return runtime.proposal_list(own[:_MAX_LISTED])

    def _propose(
        self, given: Mapping[str, Any], view: View, skill: Skill | None, caller: Caller
    ) -> runtime.ToolResult:
        name = given["name"].strip("/")
        if skill is not None:
            name = skill.path
        permissions = permissions_of(view.skill_set)
        if permissions is not None and not permissions.permits("propose", name):
            instead = "tell the user what you would propose"
            raise RequestError(f"You may not propose the skill {quoted(name)}; {instead}")
        draft = Proposal(
            id="",
            name=name,
            principal=proposer_of(caller),
            reason=given["reason"],
            host=caller.client or "",
            base=given.get("base") or "",
        )
        kept = propose(self._registry, self._store, draft, given["files"], view.snapshot)
        events.record_use(events.Use("propose", kept.name, kept.id, kept.base))
        return runtime.proposal_stored(kept.as_json())


def proposer_of(caller: Caller) -> str:
    """Return a caller's name in proposals: principal, else address, else the local user."""
    if caller.principal is not None:
        return caller.principal.key
    return str(caller.quota_owner or LOCAL)


def _find_target(offering: Offering, snapshot: Snapshot, wanted: str) -> Skill | None:
    """Return the skill with this name, path or location, or None for a new skill.

    Raises:
        RequestError: several skills have the name.
    """
    skill = offering.locate(snapshot, wanted) or snapshot.skills.get(wanted)
    if skill is not None or not snapshot.named(wanted, Standing.LENIENT):
        return skill
    return identity.require(snapshot, wanted, Standing.LENIENT)
