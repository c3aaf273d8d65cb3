"""The part of the runtime for one set of skills: its texts, look-up, search, and script rights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.catalog.views import permissions_of
from mcp_skills_server.dialects import runtime
from mcp_skills_server.errors import RequestError
from mcp_skills_server.format import identity, uris
from mcp_skills_server.format.fields import tags_of
from mcp_skills_server.format.uris import SCHEME
from mcp_skills_server.model import SKILL_MD, Json, Skill, Snapshot, Standing
from mcp_skills_server.runtime.briefing import Briefing, name_of
from mcp_skills_server.runtime.settings import RuntimeSettings

if TYPE_CHECKING:
    from mcp_skills_server.runtime.scripts.runner import Scripts
    from mcp_skills_server.runtime.search import Search

_SUGGESTED: Final = 3


class Offering:
    """One set of skills as models are offered it: the skills of a registry, or those of a grant.

    Args:
        skill_set: the skills.
        settings: the operator's settings.
        scripts: the script runner; None if scripts are disabled.
        search: returns the search of all skills.
        of_all: the briefing of all skills, if these are a part of them.
    """

    def __init__(
        self,
        skill_set: SkillSet,
        settings: RuntimeSettings,
        scripts: Scripts | None,
        search: Callable[[], Search],
        of_all: Briefing | None = None,
    ) -> None:
        self.skill_set = skill_set
        self.settings = settings
        self.scripts = scripts
        self._search_of_all = search
        self.briefing = Briefing(skill_set, settings, lambda: self.runs_scripts, of_all)
        self._located: tuple[Snapshot, dict[str, Skill]] | None = None
        self._runs: tuple[Snapshot, bool] | None = None

    @property
    def search(self) -> Search:
        """The search of these skills."""
        return self._search_of_all().restricted_to(self.skill_set)

    @property
    def runs_scripts(self) -> bool:
        """True if scripts of at least one of these skills may run."""
        permissions = permissions_of(self.skill_set)
        if self.scripts is None or permissions is None:
            return self.scripts is not None
        snapshot = self.skill_set.snapshot
        if self._runs is None or self._runs[0] is not snapshot:
            paths = snapshot.paths(Standing.LENIENT) if permissions.permits_any("scripts") else ()
            self._runs = snapshot, any(permissions.permits("scripts", path) for path in paths)
        return self._runs[1]

    def entries(self, skills: Sequence[Skill], snapshot: Snapshot) -> list[dict[str, Json]]:
        """Return the entries of these skills for the results of listing and search."""
        return [
            runtime.entry(
                name_of(skill, snapshot),
                skill,
                self.briefing.location(skill),
                title=identity.title(skill),
                version=identity.version(skill.frontmatter),
                tags=tags_of(skill.frontmatter),
            )
            for skill in skills
        ]

    def find(self, snapshot: Snapshot, wanted: str) -> Skill:
        """Return the skill of this name, skill path or location.

        Raises:
            RequestError: there is none, or several share the name. The message lists these, or
                the nearest ones.
        """
        located = self.locate(snapshot, wanted)
        if located is not None:
            return located
        try:
            return identity.require(snapshot, wanted, Standing.LENIENT)
        except RequestError as error:
            if snapshot.named(wanted, Standing.LENIENT):
                raise  # the message lists all skills of this name
            near = [name_of(skill, snapshot) for skill in self._near(wanted)]
            hint = f"{runtime.LIST} shows what there is"
            if near:
                hint = f"nearest: {', '.join(near)}"
            raise RequestError(f"{error}; {hint}") from None

    def _near(self, wanted: str) -> list[Skill]:
        from mcp_skills_server.runtime.search_index import NoFullTextError

        try:
            return self.search.find(wanted, _SUGGESTED, runtime.is_offered)
        except NoFullTextError:
            return []

    def locate(self, snapshot: Snapshot, wanted: str) -> Skill | None:
        """Return the skill at this location, or None."""
        if wanted[: len(SCHEME)].lower() == SCHEME:
            target = wanted.rstrip("/").removesuffix(f"/{SKILL_MD}")
            served = uris.find(snapshot, f"{target}/{SKILL_MD}", Standing.LENIENT)
            # the SKILL.md of an unusable nested skill is only a file of the skill around it
            if served is None or served[1] != SKILL_MD:
                return None
            return served[0]
        if self.settings.absolute_paths and wanted.endswith(f"/{SKILL_MD}"):
            return self._by_location(snapshot).get(wanted)
        return None

    def _by_location(self, snapshot: Snapshot) -> dict[str, Skill]:
        """Return the skills by location, cached per snapshot, as one call may look up many."""
        kept = self._located
        if kept is None or kept[0] is not snapshot:
            usable = (snapshot.skills[path] for path in snapshot.paths(Standing.LENIENT))
            skills = {self.briefing.location(skill): skill for skill in usable}
            kept = self._located = snapshot, skills
        return kept[1]
