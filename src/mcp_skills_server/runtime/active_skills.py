"""The skills loaded in one conversation, in loading order and reloaded after edits.

Calls of one conversation may come from principals with different views. Each call passes the
runtime of its own view, and gets the loaded skills as that runtime shows them.
"""

from __future__ import annotations

from asyncio import Lock
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from mcp_skills_server.catalog.views import View, retry_when_stale
from mcp_skills_server.dialects import runtime as dialect
from mcp_skills_server.dialects.runtime import Loaded
from mcp_skills_server.errors import RequestError, UnreadableError
from mcp_skills_server.format import identity
from mcp_skills_server.format.cursors import MOST_BYTES
from mcp_skills_server.format.dependencies import FIELD
from mcp_skills_server.format.fields import references
from mcp_skills_server.model import SKILL_MD, Skill, Snapshot, Standing
from mcp_skills_server.runtime.briefing import name_of
from mcp_skills_server.telemetry import events

if TYPE_CHECKING:
    from mcp_skills_server.runtime.runtime import Runtime

_MOST_NEEDED: Final = 64
"""The maximum number of dependencies of one skill that are followed."""
_MOST_ERRORS: Final = 3
"""The maximum number of unknown names reported by one call, because each one costs a search."""


Active: TypeAlias = Mapping[str, tuple[Skill, Loaded]]
"""The loaded skills by skill path, the latest last. Treated as immutable."""


class ActiveSkills:
    """The loaded skills of a session, the latest last."""

    def __init__(self, runtime: Runtime) -> None:
        self._loaded_by = runtime
        """The runtime that made `_loaded`: a skill's name and files depend on the other skills in
        its view."""
        self._loaded: Active = {}
        """Copy-on-write: replaced atomically, never mutated."""
        self._unused: set[str] = set()
        """Paths of loaded skills of which the model requested only the instructions."""
        self._pending: tuple[str, ...] | None = None
        """Paths of the skills that the next call loads after `restore`; None if none is pending."""
        self.change_count = 0
        """The number of loads and unloads so far."""
        self._changing = Lock()
        """Serializes changes of `_loaded`, which wait for files."""

    @property
    def names(self) -> list[str]:
        """The names of the loaded skills, the latest last."""
        return [loaded.name for loaded in loaded_list(self._loaded)]

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the loaded or pending skills, the latest last."""
        if self._pending is not None:
            return self._pending
        return tuple(self._loaded)

    async def restore(self, paths: tuple[str, ...]) -> None:
        """Replace the loaded skills at the next call, except those absent or unusable by then."""
        async with self._changing:
            self._pending = paths

    async def load(
        self, runtime: Runtime, names: Sequence[str], *, add: bool
    ) -> tuple[list[Loaded], Active]:
        """Load all these skills, by name, path or location, or none of them.

        With `add` they join the loaded skills, else they replace them.

        Returns:
            the requested skills with their dependencies, and all loaded skills.

        Raises:
            RequestError: one is unknown, or they are too many or too long. Nothing has changed.
            UnreadableError: a file keeps changing while it is read.
        """
        async with self._changing:
            await self._reload_if_needed(runtime)
            kept: Active = self._loaded if add else {}
            fresh = await retry_when_stale(
                runtime.skill_set, lambda view: self._fresh(runtime, view, names, kept)
            )
            self._replace({**kept, **fresh})
            return loaded_list(fresh), self._loaded

    async def unload(self, runtime: Runtime, names: Collection[str]) -> Active:
        """Unload skills by name, path or location, ignoring others, and return the rest."""
        async with self._changing:
            await self._reload_if_needed(runtime)
            gone = {_path_of(runtime, self._loaded, name) for name in names}
            self._replace({path: each for path, each in self._loaded.items() if path not in gone})
            return self._loaded

    async def unload_all(self) -> Active:
        """Unload every skill, after any load in progress, and return the empty mapping."""
        async with self._changing:
            self._pending = None
            self._replace({})
            return self._loaded

    def mark_used(self, path: str) -> None:
        """Record that the model used more of this skill than its instructions."""
        self._unused.discard(path)

    def _replace(self, loaded: Active) -> None:
        """Replace the loaded skills, and emit "dropped" for each one unloaded without any use."""
        for path, (_, before) in self._loaded.items():
            if path in self._unused and path not in loaded:
                events.record_use(events.Use("dropped", path, SKILL_MD, before.digest))
        self._unused = {path for path in loaded if path not in self._loaded or path in self._unused}
        self._loaded = loaded
        self.change_count += 1

    def clear(self) -> None:
        """Discard the loaded and the pending skills without locking, at the session's end."""
        self._loaded, self._pending = {}, None

    async def refresh(self, runtime: Runtime) -> Active:
        """Return the loaded skills, reloading edited ones and dropping removed ones.

        If a file stays unreadable, nothing is reloaded. Then the result is empty if another
        runtime made the loaded skills.
        """
        if not self._is_current(runtime):
            async with self._changing:
                with suppress(UnreadableError):
                    await self._reload(runtime)
                return self._loaded if self._loaded_by is runtime else {}
        return self._loaded

    def _is_current(self, runtime: Runtime) -> bool:
        skills = runtime.skill_set.snapshot.skills
        same = all(skills.get(path) is skill for path, (skill, _) in self._loaded.items())
        return same and self._pending is None and self._loaded_by is runtime

    async def _reload_if_needed(self, runtime: Runtime) -> None:
        """Load pending skills, or reload those of another runtime. The caller holds `_changing`."""
        if self._pending is not None or self._loaded_by is not runtime:
            await self._reload(runtime)

    async def _reload(self, runtime: Runtime) -> None:
        """Reload the loaded or pending skills from this runtime. The caller holds `_changing`."""
        self._loaded = await retry_when_stale(
            runtime.skill_set, lambda view: self._current(runtime, view)
        )
        self._pending, self._loaded_by = None, runtime

    async def _fresh(
        self, runtime: Runtime, view: View, names: Sequence[str], kept: Active
    ) -> Active:
        """Return the named skills and their dependencies, with all SKILL.md bodies read."""
        most = runtime.settings.max_loaded
        wanted = {skill.path: skill for skill in _find_all(runtime, view.snapshot, names)}
        # Dependencies first: requested skills stay the latest.
        if runtime.settings.load_dependencies:
            needed, _ = dependencies_of(view.snapshot, wanted.values())
            wanted = {each.path: each for each in needed if each.path not in wanted} | wanted
        count = len(kept.keys() | wanted.keys())
        if count > most:
            loaded = ""
            if self._loaded:
                loaded = f" Loaded now: {', '.join(self.names)}."
            raise RequestError(
                f"At most {most} skills can be loaded at once, and this would make {count}. Load "
                f"fewer, or unload some with {dialect.UNLOAD} first.{loaded}"
            )
        size = sum(skill.files[SKILL_MD].size for skill in wanted.values())
        if len(wanted) > 1 and size > MOST_BYTES:
            raise RequestError(
                f"These skills have {size:,} bytes of instructions, and one call loads at most "
                f'{MOST_BYTES:,} of several. Load them one by one, with mode "add"'
            )
        #
        return {path: (each, await _prepare(runtime, each, view)) for path, each in wanted.items()}

    async def _current(self, runtime: Runtime, view: View) -> Active:
        """Return the loaded or pending skills from this view, rereading those that changed."""
        now: dict[str, tuple[Skill, Loaded]] = {}
        for path in self.paths:
            found = view.snapshot.skills.get(path)
            known = self._loaded.get(path) if self._loaded_by is runtime else None
            if known is not None and found is known[0]:
                now[path] = known
            elif found is not None and dialect.is_usable(found):
                now[path] = (found, await _prepare(runtime, found, view))
        return now


def loaded_list(active: Active) -> list[Loaded]:
    """Return the loaded skills, the latest last."""
    return [loaded for _, loaded in active.values()]


def find_active(
    runtime: Runtime, active: Active, snapshot: Snapshot, name: str | None, *, reminder: str = ""
) -> Skill:
    """Return the loaded skill of this name, path or location, or the latest one for None.

    Raises:
        RequestError: it is not loaded. If none is, the message ends with `reminder`.
    """
    if not active:
        raise RequestError(
            f"No skill is loaded; call {dialect.LOAD} with the name of a skill first{reminder}"
        )
    if name is None:
        path = next(reversed([*active]))
    else:
        path = _path_of(runtime, active, name) or runtime.find(snapshot, name).path
    skill = snapshot.skills.get(path)
    if path not in active or skill is None:
        names = ", ".join(loaded.name for loaded in loaded_list(active))
        raise RequestError(
            f"The skill {str(name)[:200]!r} is not loaded; call {dialect.LOAD} with it first. "
            f"Loaded now: {names}"
        )
    return skill


def _path_of(runtime: Runtime, active: Active, wanted: str) -> str | None:
    """Return the path of the loaded skill of this name, skill path or location, or None."""
    for path, (_, loaded) in active.items():
        if wanted in {path, loaded.name, loaded.location}:
            return path
    located = runtime.locate(runtime.skill_set.snapshot, wanted)
    if located is None or located.path not in active:
        return None
    return located.path


def _find_all(runtime: Runtime, snapshot: Snapshot, names: Sequence[str]) -> list[Skill]:
    found: list[Skill] = []
    errors: list[str] = []
    for name in names:
        try:
            found.append(runtime.find(snapshot, name))
        except RequestError as error:
            errors.append(str(error))
        if len(errors) == _MOST_ERRORS:
            break
    if errors:
        raise RequestError("Nothing was loaded. " + ". ".join(errors))
    return found


def dependencies_of(snapshot: Snapshot, skills: Iterable[Skill]) -> tuple[list[Skill], list[str]]:
    """Return the skills named in `dependencies.skills` of these, and the unknown names."""
    found: dict[str, Skill] = {}
    missing: dict[str, None] = {}
    for skill in skills:
        given = skill.frontmatter.get(FIELD)
        names = references(given.get("skills"), "name") if isinstance(given, dict) else []
        for name in names[:_MOST_NEEDED]:
            other = identity.lookup(snapshot, name, Standing.LENIENT)
            if other is None:
                missing[name] = None
            else:
                found[other.path] = other
    return list(found.values()), list(missing)


async def _prepare(runtime: Runtime, skill: Skill, view: View) -> Loaded:
    text = await view.body(skill)
    rest = (path for path in skill.files if path != SKILL_MD and path not in text.linked)
    location = runtime.briefing.location
    return Loaded(
        name=name_of(skill, view.snapshot),
        location=location(skill),
        root_dir=runtime.briefing.root_dir(skill),
        digest=skill.files[SKILL_MD].digest,
        properties=skill.frontmatter,
        instructions=text.text,
        files=(*text.linked, *rest),
        problems=(*dialect.problems(skill), *dialect.hidden_remarks(skill.frontmatter, text.text)),
        origin=identity.origin(skill),
        line=text.line,
    )
