"""The skills that one conversation has loaded: how many, in which order, and as they are on the disk now."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio

from mcp_skills_server.catalog.view import View, retry_when_stale
from mcp_skills_server.dialects import runtime
from mcp_skills_server.dialects.runtime import Loaded
from mcp_skills_server.errors import RequestError, StaleFileError
from mcp_skills_server.format.portions import MOST_BYTES
from mcp_skills_server.model import SKILL_MD, Skill, Snapshot
from mcp_skills_server.runtime.briefing import name_of
from mcp_skills_server.telemetry import events

if TYPE_CHECKING:
    from mcp_skills_server.runtime.runtime import Runtime

_MOST_ERRORS: Final = 3
"""Unknown names that are answered to: each is a search."""


_Active: TypeAlias = dict[str, tuple[Skill, Loaded]]
"""By skill path, the latest last."""


class ActiveSkills:
    """The loaded skills of a session, the latest last.

    Args:
        runtime: what sessions share.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._loaded: _Active = {}
        """By skill path. Replaced as a whole, never changed."""
        self._unused: set[str] = set()
        """Paths of those of which nothing but the instructions was asked for."""
        self._awaited: tuple[tuple[str, str], ...] | None = None
        """Path and digest of what is to be loaded instead, once files can be read; None where there is nothing."""
        self.changed = 0
        """How often something was loaded or unloaded."""
        self._changing = anyio.Lock()
        """Held by whoever sets `_loaded` after waiting for a file."""

    def use(self, runtime: Runtime) -> None:
        """Go on with the skills of this runtime; `keep_current` drops those that it has not."""
        self._runtime = runtime

    @property
    def all(self) -> list[Loaded]:
        """The loaded skills, the latest last."""
        return [loaded for _, loaded in self._loaded.values()]

    @property
    def names(self) -> list[str]:
        """What they are called here, likewise."""
        return [loaded.name for loaded in self.all]

    @property
    def digests(self) -> tuple[tuple[str, str], ...]:
        """Path and digest of the SKILL.md of each loaded skill, likewise."""
        if self._awaited is not None:
            return self._awaited
        return tuple((path, loaded.digest) for path, (_, loaded) in self._loaded.items())

    async def restore(self, digests: tuple[tuple[str, str], ...], changed: int) -> bool:
        """Have these skills loaded, and no others, from the next call on, unless something has changed here meanwhile.

        One that is not there or cannot be used by then is not loaded, like one that was removed since.

        Args:
            digests: paths, and the digests that they had.
            changed: what `changed` must be.

        Returns:
            whether that is done.
        """
        async with self._changing:
            if self.changed != changed:
                return False
            self._awaited = digests
            return True

    async def load(self, names: Sequence[str], *, add: bool) -> list[Loaded]:
        """Load these skills, all of them or none.

        Args:
            names: names, skill paths or locations.
            add: keep what is loaded; else these take its place.

        Returns:
            those that were asked for.

        Raises:
            RequestError: one is unknown, or they are too many or too long. Nothing has changed.
            StaleFileError: a file does not hold still.
        """
        async with self._changing:
            await self._settle()
            fresh = await retry_when_stale(self._runtime.skill_set, lambda view: self._fresh(view, names, add=add))
            self._replace({**self._loaded, **fresh} if add else fresh)
        return [loaded for _, loaded in fresh.values()]

    async def unload(self, names: Collection[str]) -> None:
        """Unload the skills of these names, skill paths or locations; one that is not loaded is no error."""
        async with self._changing:
            await self._settle()
            gone = {self._path_of(name) for name in names}
            self._replace({path: each for path, each in self._loaded.items() if path not in gone})

    async def unload_all(self) -> None:
        """Unload every skill, also one that is being loaded now."""
        async with self._changing:
            self._awaited = None
            self._replace({})

    def was_used(self, path: str) -> None:
        """Something of this skill was asked for beside its instructions."""
        self._unused.discard(path)

    def _replace(self, loaded: _Active) -> None:
        """Have these loaded, as a model wants it. Which of the others it made no use of is said in the event."""
        for path, (_, before) in self._loaded.items():
            if path in self._unused and path not in loaded:
                events.dropped(path, before.digest)
        self._unused = {path for path in loaded if path not in self._loaded or path in self._unused}
        self._loaded = loaded
        self.changed += 1

    def clear(self) -> None:
        """Forget all at once: nobody is going to ask any more."""
        self._loaded, self._awaited = {}, None

    async def keep_current(self) -> None:
        """Loaded skills as they are now: edited ones anew, removed ones no more. One that cannot be read stays."""

        def is_current() -> bool:
            skills = self._runtime.skill_set.snapshot.skills
            same = all(skills.get(path) is skill for path, (skill, _) in self._loaded.items())
            return same and self._awaited is None

        if not is_current():
            async with self._changing:
                with suppress(StaleFileError):
                    self._loaded = await retry_when_stale(self._runtime.skill_set, self._current)
                    self._awaited = None

    async def _settle(self) -> None:
        """Have that loaded which is awaited. For who holds `_changing`."""
        if self._awaited is not None:
            self._loaded, self._awaited = await retry_when_stale(self._runtime.skill_set, self._current), None

    async def _fresh(self, view: View, names: Sequence[str], *, add: bool) -> _Active:
        """The skills of these names, made ready; every body is there before anything changes."""
        most = self._runtime.settings.max_loaded
        wanted = {skill.path: skill for skill in self._find_all(view.snapshot, names)}
        count = len(self._loaded.keys() | wanted.keys()) if add else len(wanted)
        if count > most:
            loaded = f" Loaded now: {', '.join(self.names)}." if self._loaded else ""
            raise RequestError(
                f"At most {most} skills can be loaded at once, and this would make {count}. Load fewer, or unload "
                f"some with {runtime.UNLOAD} first.{loaded}"
            )
        size = sum(skill.files[SKILL_MD].size for skill in wanted.values())
        if len(wanted) > 1 and size > MOST_BYTES:
            raise RequestError(
                f"These skills have {size:,} bytes of instructions, and one call loads at most {MOST_BYTES:,} of "
                'several. Load them one by one, with mode "add"'
            )
        return {path: (skill, await self._prepare(skill, view)) for path, skill in wanted.items()}

    async def _current(self, view: View) -> _Active:
        """What is loaded, as it is now."""
        now: _Active = {}
        for path in self._loaded if self._awaited is None else (path for path, _ in self._awaited):
            found = view.snapshot.skills.get(path)
            known = self._loaded.get(path)
            if known is not None and found is known[0]:
                now[path] = known
            elif found is not None and runtime.is_usable(found):
                now[path] = (found, await self._prepare(found, view))
        return now

    def chosen(self, snapshot: Snapshot, name: str | None, *, reminder: str = "") -> Skill:
        """The loaded skill of this name, or for None the one that was loaded last.

        Args:
            snapshot: where its files are looked up.
            name: a name, skill path or location.
            reminder: what else to do where nothing is loaded.

        Raises:
            RequestError: it is not loaded.
        """
        if not self._loaded:
            raise RequestError(f"No skill is loaded; call {runtime.LOAD} with the name of a skill first{reminder}")
        if name is None:
            path = next(reversed(self._loaded))
        else:
            path = self._path_of(name) or self._runtime.find(snapshot, name).path
        skill = snapshot.skills.get(path)
        if path not in self._loaded or skill is None:
            raise RequestError(
                f"The skill {str(name)[:200]!r} is not loaded; call {runtime.LOAD} with it first. Loaded now: "
                f"{', '.join(self.names)}"
            )
        return skill

    def _path_of(self, wanted: str) -> str | None:
        """The path of the loaded skill of this name, skill path or location, or None."""
        for path, (_, loaded) in self._loaded.items():
            if wanted in {path, loaded.name, loaded.location}:
                return path
        located = self._runtime.locate(self._runtime.skill_set.snapshot, wanted)
        return located.path if located is not None and located.path in self._loaded else None

    def _find_all(self, snapshot: Snapshot, names: Sequence[str]) -> list[Skill]:
        found: list[Skill] = []
        errors: list[str] = []
        for name in names:
            try:
                found.append(self._runtime.find(snapshot, name))
            except RequestError as error:
                errors.append(str(error))
            if len(errors) == _MOST_ERRORS:
                break
        if errors:
            raise RequestError("Nothing was loaded. " + ". ".join(errors))
        return found

    async def _prepare(self, skill: Skill, view: View) -> Loaded:
        text = await view.body(skill)
        rest = (path for path in skill.files if path != SKILL_MD and path not in text.linked)
        location = self._runtime.briefing.location
        return Loaded(
            name=name_of(skill, view.snapshot),
            location=location(skill),
            root_dir=location(skill, ""),
            digest=self._runtime.skill_set.digest(skill.files[SKILL_MD]),
            properties=skill.frontmatter,
            instructions=text.text,
            files=(*text.linked, *rest),
            problems=(*runtime.problems(skill), *runtime.unseen(skill.frontmatter, text.text)),
            origin=skill.origin,
            line=text.line,
        )
