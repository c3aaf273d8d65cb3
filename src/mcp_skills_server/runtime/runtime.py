"""The `Runtime`: the registry, briefing, search and script runner that sessions share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from mcp_skills_server.caches import LruCache
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.catalog.threads import in_thread
from mcp_skills_server.dialects import runtime
from mcp_skills_server.errors import RequestError, UsageError
from mcp_skills_server.format import identity, uris
from mcp_skills_server.format.fields import tags_of
from mcp_skills_server.format.uris import SCHEME
from mcp_skills_server.model import SKILL_MD, Changes, Json, Skill, Snapshot, Standing
from mcp_skills_server.runtime.briefing import Briefing, name_of
from mcp_skills_server.runtime.session import ClosingMixin, Session
from mcp_skills_server.telemetry.events import Events

if TYPE_CHECKING:
    from mcp_skills_server.runtime.embeddings.index import Embeddings
    from mcp_skills_server.runtime.scripts.runner import Scripts
    from mcp_skills_server.runtime.scripts.settings import ScriptSettings
    from mcp_skills_server.runtime.search import Search

_SUGGESTED: Final = 3
_MAX_RESTRICTED: Final = 4096
"""The most restricted runtimes that are cached, of about a kilobyte each."""


class RuntimeSettings(NamedTuple):
    """The settings of a `Runtime`.

    Attributes:
        max_loaded: the most skills that a session may have loaded at once.
        overview_characters: the limit of the instructions, without loaded skills, and of the load
            tool's description, each, in characters. None means 4,000, or more for hosts known not
            to truncate.
        result_characters: the most characters of a file, of instructions or of descriptions in
            the result of one call.
        media_bytes: the largest image or sound returned as an MCP media block, in bytes.
        absolute_paths: return locations as local paths instead of URIs, for agents on this disk.
        local_root_dirs: return the directory of a skill from a local folder as a path, for hosts
            on this machine whose shell runs its scripts; locations stay URIs.
        preferred_tags: tags of skills whose descriptions come first if not all fit.
        load_dependencies: also load the skills in `dependencies.skills` of a loaded skill, and
            name their own dependencies.
    """

    max_loaded: int = 8
    overview_characters: int | None = None
    result_characters: int = runtime.RESULT_CHARACTERS
    media_bytes: int = 1 << 20
    absolute_paths: bool = False
    local_root_dirs: bool = False
    preferred_tags: Sequence[str] = ()
    load_dependencies: bool = False


class _Searches:
    """The searches of sets of skills, with one index for all of them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = Lock()
        self._search: Search | None = None

    def of(self, skill_set: SkillSet) -> Search:
        """Return the search of a set of skills."""
        from mcp_skills_server.runtime.search import Search

        with self._lock:
            if self._search is None:
                self._search = Search(self._runtime.registry, self._runtime.embeddings)
        return self._search.restricted_to(skill_set)


class Runtime(ClosingMixin):
    """A factory of sessions, one per conversation, for a custom agent loop or an MCP server.

    Use it in a `with` or `async with` statement, which removes all work directories at the end.
    `async with` also reads the skills on entry, in a thread.

    Args:
        registry: the skills. The caller keeps ownership: `close` does not stop its watcher.
        settings: the operator's settings; None for the defaults.
        scripts: the settings of script execution; None disables scripts.

    Raises:
        UsageError: scripts cannot be run with these settings.
    """

    def __init__(
        self,
        registry: Registry,
        settings: RuntimeSettings | None = None,
        *,
        scripts: ScriptSettings | None = None,
    ) -> None:
        self.registry = registry
        self.skill_set: SkillSet = registry
        """The skills of the sessions: the registry, or the part that some grants allow."""
        self.embeddings: Embeddings | None = None
        """The semantic search, if any. Set and start it before the first query; `close` ends it."""
        self.settings = settings or RuntimeSettings()
        """The operator's settings. Set them before the first session."""
        self.events = Events()
        """The events of the server that has this runtime."""
        registry.subscribe(self._emit)  # for good: an attached server runs again after `close`
        self.scripts: Scripts | None = None
        if scripts is not None:
            self.enable_scripts(scripts)
        self._restricted = LruCache(self._make_restricted, _MAX_RESTRICTED)
        self.searches = _Searches(self)
        self.briefing = Briefing(registry, self)
        self._set_skill_set(registry)

    def enable_scripts(self, settings: ScriptSettings) -> None:
        """Let sessions run scripts. Call this before the first session.

        Raises:
            UsageError: scripts cannot be run with these settings.
        """
        from mcp_skills_server.runtime.scripts.runner import Scripts

        self.scripts = Scripts(self.registry, settings, self.events)

    def _emit(self, changes: Changes) -> None:
        if self.registry.loaded.is_set():  # the first scan is not a change
            self.events.emit_changes(changes)

    def _set_skill_set(self, skill_set: SkillSet) -> None:
        self.skill_set = skill_set
        self._located: tuple[Snapshot, dict[str, Skill]] | None = None
        self._runs: tuple[Snapshot, bool] | None = None

    def restricted_to(self, skill_set: SkillSet) -> Runtime:
        """Return a cached runtime restricted to a set of skills, which shares all other state."""
        return self if skill_set is self.registry else self._restricted.of(skill_set)

    def _make_restricted(self, skill_set: SkillSet) -> Runtime:
        made = copy(self)
        made._set_skill_set(skill_set)
        made.briefing = Briefing(skill_set, made, self.briefing)
        return made

    @property
    def runs_scripts(self) -> bool:
        """True if scripts of at least one of these skills may run."""
        permissions = self.skill_set.permissions
        if self.scripts is None or permissions is None:
            return self.scripts is not None
        snapshot = self.skill_set.snapshot
        if self._runs is None or self._runs[0] is not snapshot:
            paths = snapshot.paths(Standing.LENIENT) if permissions.permits_any("scripts") else ()
            self._runs = snapshot, any(permissions.permits("scripts", path) for path in paths)
        return self._runs[1]

    def prepare_search(self) -> None:
        """Wait for the first scan, then index the skills, so that no client waits for that."""
        from mcp_skills_server.runtime.search_index import NoFullTextError

        self.registry.loaded.wait()
        with suppress(NoFullTextError):
            self.searches.of(self.registry).find("skill", 1, runtime.is_offered)

    async def __aenter__(self) -> Self:
        await self.load()
        return self

    async def load(self) -> None:
        """Read the skills in a thread if needed, so that `session` does not block."""
        if not self.registry.loaded.is_set():
            await in_thread(self.registry.load)

    def session(self) -> Session:
        """Return a new session, which the caller binds to a conversation and closes at its end.

        Outside of an event loop this first reads the skills if needed, which blocks.

        Raises:
            UsageError: the skills are unread, and reading them would block this thread's event
                loop. Enter the runtime with `async with`, or await `load`.
        """
        if not self.registry.loaded.is_set():
            try:
                asyncio.get_running_loop()
            except RuntimeError:  # none is running
                self.registry.load()
            else:
                raise UsageError(
                    "Runtime.session: the skills are not read yet; enter the runtime with 'async "
                    "with', or await its load() first"
                )
        return Session(self, hosted=True)

    def close(self) -> None:
        """Remove all work directories, close briefing and embeddings. Safe to call twice."""
        self.briefing.close()
        if self.embeddings is not None:
            self.embeddings.close()
        if self.scripts is not None:
            self.scripts.close()

    # Look-up of skills

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
            return self.searches.of(self.skill_set).find(wanted, _SUGGESTED, runtime.is_offered)
        except NoFullTextError:
            return []

    def locate(self, snapshot: Snapshot, wanted: str) -> Skill | None:
        """Return the skill at this location, or None."""
        if wanted[: len(SCHEME)].lower() == SCHEME:
            target = wanted.rstrip("/").removesuffix(f"/{SKILL_MD}")
            skill = uris.find(snapshot, f"{target}/{SKILL_MD}", Standing.LENIENT)
            return skill[0] if skill and skill[1] == SKILL_MD else None
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
