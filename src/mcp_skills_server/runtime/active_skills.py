"""The skills loaded in one conversation, in loading order and reloaded after edits.

Calls of one conversation may come from principals with different skills. Each call passes its own
offering, and gets the loaded skills as that shows them.
"""

from __future__ import annotations

from asyncio import Lock
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from mcp_skills_server.catalog.recalls import Advisory
from mcp_skills_server.catalog.views import View, retry_when_stale
from mcp_skills_server.dialects import runtime as dialect
from mcp_skills_server.dialects.runtime import Loaded
from mcp_skills_server.errors import RequestError, UnreadableError
from mcp_skills_server.format import identity
from mcp_skills_server.format.cursors import MAX_BYTES
from mcp_skills_server.format.dependencies import FIELD
from mcp_skills_server.format.fields import mapping, references
from mcp_skills_server.model import SKILL_MD, Skill, Snapshot, Standing
from mcp_skills_server.model.skill import whole_digest
from mcp_skills_server.runtime.briefing import name_of
from mcp_skills_server.runtime.offering import Offering
from mcp_skills_server.telemetry import events

_MAX_NEEDED: Final = 64
"""The maximum number of dependencies of one skill that are followed."""
_MAX_GIVEN: Final = 256
"""The maximum number of versions of skills, and of digests, that a session remembers."""
_MAX_ERRORS: Final = 3
"""The maximum number of unknown names reported by one call, because each one costs a search."""


class ActiveSkill(NamedTuple):
    """A loaded skill as read for a runtime: its name and files depend on other skills there."""

    skill: Skill
    loaded: Loaded
    offering: Offering


Active: TypeAlias = Mapping[str, ActiveSkill]
"""The loaded skills by skill path, the latest last. Treated as immutable."""


class ActiveSkills:
    """The loaded skills of a session, the latest last."""

    def __init__(self) -> None:
        self.paths: tuple[str, ...] = ()
        """The paths of the loaded skills. A call omits those absent or unusable by then."""
        self._active: Active = {}
        """The loaded skills as last read."""
        self._unused: set[str] = set()
        """Paths of loaded skills of which the model requested only the instructions."""
        self.change_count = 0
        """The number of loads and unloads so far."""
        self._given: dict[Skill, None] = {}
        """Each version of a skill that the conversation was given in this process."""
        self.versions: dict[str, str] = {}
        """The paths of these versions, also of those given by other processes, by the digests of
        the SKILL.md and of all files."""
        self.reported: set[str] = set()
        """The digests of the advisories that had a notice."""
        self._changing = Lock()
        """Serializes reading and changes, which wait for files."""

    @property
    def names(self) -> list[str]:
        """The names of the loaded skills, the latest last."""
        return [loaded.name for loaded in loaded_list(self._active)]

    async def load(
        self, offering: Offering, names: Sequence[str], *, add: bool
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
            kept: Active = {}
            if add:
                kept = await self._read(offering)
            fresh = await retry_when_stale(
                offering.skill_set, lambda view: self._fresh(offering, view, names, kept)
            )
            self._replace({**kept, **fresh})  # RT-10: one that is loaded again keeps its position
            return loaded_list(fresh), self._active

    async def unload(self, offering: Offering, names: Collection[str]) -> Active:
        """Unload skills by name, path or location, ignoring others, and return the rest."""
        async with self._changing:
            active = await self._read(offering)
            gone = {_path_of(offering, active, name) for name in names}
            self._replace({path: entry for path, entry in active.items() if path not in gone})
            return self._active

    async def unload_all(self) -> Active:
        """Unload every skill, after any load in progress, and return the empty mapping."""
        async with self._changing:
            self._replace({})
            return self._active

    def mark_used(self, path: str) -> None:
        """Record that the model used more of this skill than its instructions."""
        self._unused.discard(path)

    def _replace(self, active: Active) -> None:
        """Replace the loaded skills, and emit "dropped" for each one unloaded without any use."""
        for path, before in self._active.items():
            if path in self._unused and path not in active:
                events.record_use(events.Use("dropped", path, SKILL_MD, before.loaded.digest))
        self._unused = {path for path in active if path not in self._active or path in self._unused}
        self._active, self.paths = active, tuple(active)
        self.change_count += 1
        self._remember(active)

    def clear(self) -> None:
        """Discard the loaded skills without locking, at the session's end."""
        self._active, self.paths = {}, ()

    async def refresh(self, offering: Offering) -> Active:
        """Return the loaded skills from this offering, rereading edited ones.

        If a file stays unreadable, the result is what was read before for this offering.
        """
        async with self._changing:
            try:
                return await self._read(offering)
            except UnreadableError:
                advisory_on = offering.skill_set.advisory_on
                return {
                    path: entry
                    for path, entry in self._active.items()
                    if entry.offering is offering and advisory_on(entry.skill) is None
                }

    async def _read(self, offering: Offering) -> Active:
        """Implement `refresh` for a caller that holds `_changing`."""

        async def read(view: View) -> Active:
            active: dict[str, ActiveSkill] = {}
            for path in self.paths:
                skill, known = view.snapshot.skills.get(path), self._active.get(path)
                if known is not None and known.skill is skill and known.offering is offering:
                    active[path] = known
                elif skill is not None and dialect.is_usable(skill):
                    active[path] = ActiveSkill(
                        skill, await _prepare(offering, skill, view), offering
                    )
            return active

        self._active = await retry_when_stale(offering.skill_set, read)
        self._remember(self._active)
        return self._active

    def _remember(self, active: Active) -> None:
        for skill in [entry.skill for entry in active.values()]:
            self._given[skill] = None
            digests = skill.files[SKILL_MD].digest, whole_digest(skill)
            self.versions |= dict.fromkeys(filter(None, digests), skill.path)
        self._given = dict([*self._given.items()][-_MAX_GIVEN:])
        self.versions = dict([*self.versions.items()][-_MAX_GIVEN:])

    def take_recalled(self, offering: Offering) -> list[str]:
        """Return a notice for each recalled skill that had none so far.

        A ticket of another process has only the paths of its skills, so a refused path counts.
        """
        advisory_on, snapshot = offering.skill_set.advisory_on, offering.skill_set.snapshot
        subjects: list[tuple[str, Advisory | None]] = [
            *((path, advisory_on(path)) for path in self.paths if path not in snapshot.skills),
            *((path, advisory_on(path, digest)) for digest, path in self.versions.items()),
            *((skill.path, advisory_on(skill)) for skill in self._given),
        ]
        notices, reported = dict[str, str](), set[str]()
        for path, advisory in subjects:
            if advisory is not None and advisory.digest not in self.reported:
                notices[path] = _notice(path, advisory, snapshot)
                reported.add(advisory.digest)
        if reported:
            self.reported |= reported
            self.change_count += 1
        return [*notices.values()]

    async def _fresh(
        self, offering: Offering, view: View, names: Sequence[str], kept: Active
    ) -> Active:
        """Return the named skills and their dependencies, with all SKILL.md bodies read."""
        most = offering.settings.max_loaded
        wanted = {skill.path: skill for skill in _find_all(offering, view.snapshot, names)}
        # Dependencies first: requested skills stay the latest.
        if offering.settings.load_dependencies:
            needed, _ = dependencies_of(view.snapshot, wanted.values())
            wanted = {
                dependency.path: dependency
                for dependency in needed
                if dependency.path not in wanted
            } | wanted
        count = len(kept.keys() | wanted.keys())
        if count > most:
            loaded = ""
            if kept:
                loaded = f" Loaded now: {', '.join(entry.name for entry in loaded_list(kept))}."
            raise RequestError(
                f"At most {most} skills can be loaded at once, and this would make {count}. Load "
                f"fewer, or unload some with {dialect.UNLOAD} first.{loaded}"
            )
        size = sum(skill.files[SKILL_MD].size for skill in wanted.values())
        if len(wanted) > 1 and size > MAX_BYTES:
            raise RequestError(
                f"These skills have {size:,} bytes of instructions, and one call loads at most "
                f'{MAX_BYTES:,} of several. Load them one by one, with mode "add"'
            )
        return {  # all of them, or none: a body that cannot be read raises
            path: ActiveSkill(skill, await _prepare(offering, skill, view), offering)
            for path, skill in wanted.items()
        }


def _notice(path: str, advisory: Advisory, snapshot: Snapshot) -> str:
    """Return the notice of a recalled skill, with its replacement only if the snapshot has that."""
    other = identity.lookup(snapshot, advisory.replacement, Standing.LENIENT)
    replacement = None if other is None else name_of(other, snapshot)
    return dialect.recall_notice(path, advisory.severity, advisory.reason, replacement)


def loaded_list(active: Active) -> list[Loaded]:
    """Return the loaded skills, the latest last."""
    return [entry.loaded for entry in active.values()]


def find_active(
    offering: Offering, active: Active, snapshot: Snapshot, name: str | None, *, reminder: str = ""
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
        path = _path_of(offering, active, name) or offering.find(snapshot, name).path
    skill = snapshot.skills.get(path)
    if path not in active or skill is None:
        names = ", ".join(loaded.name for loaded in loaded_list(active))
        raise RequestError(
            f"The skill {(name or path)[:200]!r} is not loaded; call {dialect.LOAD} with it first. "
            f"Loaded now: {names}"
        )
    return skill


def _path_of(offering: Offering, active: Active, wanted: str) -> str | None:
    """Return the path of the loaded skill of this name, skill path or location, or None."""
    for path, entry in active.items():
        if wanted in {path, entry.loaded.name, entry.loaded.location}:
            return path
    located = offering.locate(offering.skill_set.snapshot, wanted)
    if located is None or located.path not in active:
        return None
    return located.path


def _find_all(offering: Offering, snapshot: Snapshot, names: Sequence[str]) -> list[Skill]:
    skills: list[Skill] = []
    errors: list[str] = []
    for name in names:
        try:
            skills.append(offering.find(snapshot, name))
        except RequestError as error:
            errors.append(str(error))
        if len(errors) == _MAX_ERRORS:
            break
    if errors:
        raise RequestError("Nothing was loaded. " + ". ".join(errors))
    return skills


def dependencies_of(snapshot: Snapshot, skills: Iterable[Skill]) -> tuple[list[Skill], list[str]]:
    """Return the skills named in `dependencies.skills` of these, and the unknown names."""
    dependencies: dict[str, Skill] = {}
    missing: dict[str, None] = {}
    for skill in skills:
        names = references(mapping(skill.frontmatter.get(FIELD)).get("skills"), "name")
        for name in names[:_MAX_NEEDED]:
            other = identity.lookup(snapshot, name, Standing.LENIENT)
            if other is None:
                missing[name] = None
            else:
                dependencies[other.path] = other
    return list(dependencies.values()), list(missing)


async def _prepare(offering: Offering, skill: Skill, view: View) -> Loaded:
    text = await view.body(skill)
    rest = (path for path in skill.files if path != SKILL_MD and path not in text.linked)
    location = offering.briefing.location
    return Loaded(
        name=name_of(skill, view.snapshot),
        location=location(skill),
        root_dir=offering.briefing.root_dir(skill),
        digest=skill.files[SKILL_MD].digest,
        properties=skill.frontmatter,
        instructions=text.text,
        files=(*text.linked, *rest),
        problems=(*dialect.problems(skill), *dialect.hidden_remarks(skill.frontmatter, text.text)),
        origin=identity.origin(skill),
        line=text.line,
    )
