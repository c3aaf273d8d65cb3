"""A conversation's skills: which are loaded, what the model is told of them, and the tools it calls.

The Agent Skills Runtime as a library. An orchestrator puts `Session.instructions()` at the top of every model call,
hands the model `Session.tools()`, and dispatches what it calls through `Session.call()`; the MCP tools of this server
go through the same sessions. What a model can mend is a result that says how, never an exception.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio

from mcp_skills_server.catalog.answer import answer, body, in_turn, read
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.dialects import runtime
from mcp_skills_server.dialects.runtime import Loaded, Result
from mcp_skills_server.errors import RequestError, StaleFileError
from mcp_skills_server.format import identity, media, uris
from mcp_skills_server.format.fields import tags_of
from mcp_skills_server.format.portions import MOST_BYTES, portion, weight
from mcp_skills_server.format.uris import SCHEME, uri
from mcp_skills_server.model import SKILL_MD, Json, Skill, Snapshot, Standing
from mcp_skills_server.runtime.asked import amiss, path_in
from mcp_skills_server.runtime.catalogue import Catalogue, name_of

if TYPE_CHECKING:
    from mcp_skills_server.runtime.scripts import Outcome, Scripts, ScriptSettings, Workspace
    from mcp_skills_server.runtime.search import Search

Progress: TypeAlias = Callable[[float], Awaitable[None]]
"""Told now and then, while a script runs, for how many seconds it has."""

_SUGGESTED: Final = 3
_MOST_MADE: Final = 16 << 20
"""Bytes of a file that a script left and that is read."""


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """What the operator chose.

    Attributes:
        max_loaded: skills that a session may have loaded at once (RT-8).
        catalogue_characters: how long the instructions, without what is loaded, and the description of the loading
            tool may each be.
        result_characters: characters of a text file, of instructions or of descriptions that one call returns.
        media_bytes: bytes up to which a picture or sound is returned as such.
        absolute_paths: tell locations as paths of this machine, for agents that work on its disk, not as URIs.
    """

    max_loaded: int = 8
    catalogue_characters: int = runtime.CATALOGUE_CHARACTERS
    result_characters: int = runtime.RESULT_CHARACTERS
    media_bytes: int = 1 << 20
    absolute_paths: bool = False


class Runtime:
    """What all sessions share: the registry, the search, and what runs scripts.

    Args:
        registry: the skills; it is loaded for the first session if nobody has.
        settings: what the operator chose.
        scripts: how scripts are run; None runs none.

    Raises:
        UsageError: scripts cannot be run the way that is asked for.
    """

    def __init__(
        self, registry: Registry, settings: RuntimeSettings | None = None, *, scripts: ScriptSettings | None = None
    ) -> None:
        self.registry = registry
        self.settings = settings or RuntimeSettings()
        self.scripts: Scripts | None = None
        if scripts is not None:
            from mcp_skills_server.runtime.scripts import Scripts

            self.scripts = Scripts(registry, scripts)
        self._located: tuple[Snapshot, dict[str, Skill]] | None = None
        self.catalogue = Catalogue(
            registry,
            self.settings.catalogue_characters,
            scripts=lambda: self.scripts is not None,
            absolute_paths=self.settings.absolute_paths,
        )

    def session(self) -> Session:
        """A new session, for an orchestrator that binds it to a conversation (RT-23)."""
        if not self.registry.loaded.is_set():
            self.registry.load()
        return Session(self, hosted=True)

    def entries(self, skills: Sequence[Skill], snapshot: Snapshot) -> list[dict[str, Json]]:
        """These skills as the listing and the search show them."""
        return [
            runtime.entry(
                name_of(skill, snapshot),
                skill,
                self.catalogue.location(skill),
                title=identity.title(skill),
                version=identity.version(skill.frontmatter),
                tags=tags_of(skill.frontmatter),
            )
            for skill in skills
        ]

    def find(self, snapshot: Snapshot, wanted: str) -> Skill:
        """The skill of this name, skill path or location (RT-11).

        Raises:
            RequestError: there is none, or several share the name. The message has the nearest ones.
        """
        located = self.locate(snapshot, wanted)
        if located is not None:
            return located
        try:
            return identity.find(snapshot, wanted, Standing.LENIENT)
        except RequestError as error:
            if snapshot.named(wanted, Standing.LENIENT):
                raise  # it names them all
            near = [name_of(skill, snapshot) for skill in self.search.find(wanted, _SUGGESTED, runtime.is_offered)]
            hint = f"nearest: {', '.join(near)}" if near else f"{runtime.LIST} shows what there is"
            raise RequestError(f"{error}; {hint}") from None

    @cached_property
    def search(self) -> Search:
        """The index, built when somebody first searches."""
        from mcp_skills_server.runtime.search import Search

        return Search(self.registry)

    def close(self) -> None:
        """Remove every work directory, and follow the registry no longer."""
        self.catalogue.close()
        if self.scripts is not None:
            self.scripts.close()

    def locate(self, snapshot: Snapshot, wanted: str) -> Skill | None:
        """The skill at this location, or None (RT-11)."""
        if wanted[: len(SCHEME)].lower() == SCHEME:
            target = wanted.rstrip("/").removesuffix(f"/{SKILL_MD}")
            found = uris.find(snapshot, f"{target}/{SKILL_MD}", Standing.LENIENT)
            return found[0] if found and found[1] == SKILL_MD else None
        if self.settings.absolute_paths and wanted.endswith(f"/{SKILL_MD}"):
            return self._places(snapshot).get(wanted)
        return None

    def _places(self, snapshot: Snapshot) -> dict[str, Skill]:
        """The skills by location, made once for a snapshot: a call may ask for many."""
        kept = self._located
        if kept is None or kept[0] is not snapshot:
            usable = (snapshot.skills[path] for path in snapshot.paths(Standing.LENIENT))
            kept = self._located = (snapshot, {self.catalogue.location(skill): skill for skill in usable})
        return kept[1]


class Session:
    """One conversation's state: the loaded skills in order, the latest last (RT-2).

    Made by `Runtime.session`.

    Args:
        runtime: what sessions share.
        hosted: an orchestrator binds the session and puts the instructions at the top of each call; else the handle is
            an argument and the instructions travel in results (RT-22).
        since: the moment of the catalogue that the model was told of; now unless given.
    """

    def __init__(self, runtime: Runtime, *, hosted: bool, since: int | None = None) -> None:
        self.session_id = secrets.token_urlsafe(18)
        self.calls = 0
        """Calls that are being answered now."""
        self._runtime = runtime
        self._registry = runtime.registry
        self._hosted = hosted
        self._since = runtime.catalogue.moment if since is None else since
        self._active: dict[str, tuple[Skill, Loaded]] = {}
        self._workspace: Workspace | None = None
        self._changing = anyio.Lock()
        """Held by whoever sets `_active` after waiting for a file."""

    @property
    def active_skills(self) -> list[str]:
        """Names of the loaded skills, the latest last."""
        return [loaded.name for _, loaded in self._active.values()]

    async def instructions(self) -> str:
        """What to put at the top of the next model call: the rule, `<available_skills>`, `<active_skills>` (RT-4...7).

        An edit of a loaded skill shows here as soon as the registry knows of it; what was unloaded is gone (RT-21).
        """
        await self._keep_current()
        return self._runtime.catalogue.instructions([loaded for _, loaded in self._active.values()])

    def tools(self) -> list[dict[str, Json]]:
        """The tools' definitions: `name`, `title`, `description`, `inputSchema`, `outputSchema`, `annotations`."""
        return self._runtime.catalogue.tools(handles=not self._hosted)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        progress: Progress | None = None,
        once: bool = False,
    ) -> Result:
        """Call a tool, under any of its names (X-16).

        `once` says that the host shows the structure beside the text: what is long stands in the structure alone.

        Returns the result as MCP shapes it: `content`, `structuredContent`, and `isError` where the model must do
        something else; the text says what.
        """
        self.calls += 1
        try:
            tool = runtime.canonical(name)
            if tool is None:
                there = [each for each in _CALLS if each != runtime.RUN or self._runtime.scripts is not None]
                return runtime.failure(f"Unknown tool {name[:100]!r}; the tools are {', '.join(there)}")
            given = arguments or {}
            wrong = amiss(tool, given)
            if wrong:
                return runtime.failure(wrong)
            await self._keep_current()
            return await _CALLS[tool](self, given, _Manner(progress, once))
        except RequestError as error:
            return runtime.failure(str(error))
        except StaleFileError:
            return runtime.failure("A file of the skill is being changed or cannot be read; try again in a moment")
        finally:
            self.calls -= 1

    def close(self) -> None:
        """End the session: nothing is loaded any more, and its work directory is removed."""
        self._active = {}
        if self._workspace is not None:
            self._workspace.close()
            self._workspace = None

    # The tools

    async def _list(self, given: Mapping[str, Any], _: _Manner) -> Result:
        snapshot, limit = self._registry.snapshot, int(given.get("limit", 50))
        after: str | None = given.get("after")
        offered: list[Skill] = []
        while len(offered) <= limit:
            page, after = snapshot.page(after, limit + 1, Standing.LENIENT)
            offered += [skill for skill in page if runtime.is_offered(skill)]
            if after is None:
                break
        shown = portion(offered[:limit], weight)
        after = shown[-1].path if len(offered) > len(shown) else None
        entries = self._runtime.entries(shown, snapshot)
        return runtime.listing(entries, after, characters=self._runtime.settings.result_characters)

    async def _search(self, given: Mapping[str, Any], _: _Manner) -> Result:
        from anyio import to_thread

        snapshot = self._registry.snapshot
        limit = int(given.get("limit", 5))
        found = await to_thread.run_sync(self._runtime.search.find, given["query"], limit, runtime.is_offered)
        entries = self._runtime.entries(portion(found, weight), snapshot)
        return runtime.listing(entries, None, characters=self._runtime.settings.result_characters, note=self._news())

    async def _load(self, given: Mapping[str, Any], manner: _Manner) -> Result:
        most = self._runtime.settings.max_loaded
        adds = given.get("mode") == "add"

        async def ask(snapshot: Snapshot, _: bool) -> dict[str, tuple[Skill, Loaded]]:
            wanted = {skill.path: skill for skill in self._find_all(snapshot, given["names"])}
            count = len(self._active.keys() | wanted.keys()) if adds else len(wanted)
            if count > most:
                loaded = f" Loaded now: {', '.join(self.active_skills)}." if self._active else ""
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
            # All or nothing: every body is there before anything changes.
            return {path: (skill, await self._prepare(skill, snapshot)) for path, skill in wanted.items()}

        async with self._changing:
            fresh = await answer(self._registry, ask)
            self._active = self._active | fresh if adds else fresh
        return self._receipt([loaded for _, loaded in fresh.values()], once=manner.once, note=self._news())

    async def _unload(self, given: Mapping[str, Any], _: _Manner) -> Result:
        names: list[str] = given.get("names", [])
        if not given.get("all") and not names:
            raise RequestError(f"Give {runtime.UNLOAD} the names of the skills to unload, or all=true")
        async with self._changing:
            gone = {self._meant(name) for name in names}
            self._active = {} if given.get("all") else {p: each for p, each in self._active.items() if p not in gone}
        return self._receipt()

    async def _read(self, given: Mapping[str, Any], _: _Manner) -> Result:
        made = runtime.in_workspace(given["path"])
        if made is not None:
            return await self._read_made(made, given)

        async def ask(snapshot: Snapshot, _: bool) -> Result:
            skill = self._chosen(snapshot, given)
            path = path_in(skill, given["path"], tuple(skill.files))
            async with in_turn(skill.files[path].size, self.session_id):
                raw = await read(self._registry, skill.files[path])
                text = media.as_text(raw, media.media_type(path))
                if text is None:
                    target = uri(skill.path, path) if skill.standing is Standing.VALID else None
                    return runtime.binary_file(path, target, raw, self._runtime.settings.media_bytes)
                return self._part(path, text, given)

        return await answer(self._registry, ask)

    async def _read_made(self, path: str, given: Mapping[str, Any]) -> Result:
        """A file that a script of this session left in the work directory."""
        from anyio import to_thread

        if self._workspace is None:
            raise RequestError(f"No script has run in this session, so there is nothing in {runtime.WORKSPACE}")
        raw = await to_thread.run_sync(self._workspace.read, path, _MOST_MADE)
        shown = runtime.WORKSPACE + path
        text = media.as_text(raw, media.media_type(path))
        if text is None:
            return runtime.made_file(shown, raw, self._runtime.settings.media_bytes)
        return self._part(shown, text, given)

    def _part(self, path: str, text: str, given: Mapping[str, Any]) -> Result:
        start, most = int(given.get("start_line", 1)), given.get("max_lines")
        most = None if most is None else int(most)
        within = int(given.get("start_character", 1))
        return runtime.text_file(
            path, text, start, most, self._runtime.settings.result_characters, start_character=within
        )

    async def _run(self, given: Mapping[str, Any], manner: _Manner) -> Result:
        scripts = self._runtime.scripts
        if scripts is None:
            raise RequestError(
                "Scripts are not run here: whoever runs this server has not allowed it (--allow-scripts). Read the "
                f"script with {runtime.READ} and reach its result another way, or ask the user to run it"
            )

        async def ask(snapshot: Snapshot, _: bool) -> Result:
            skill = self._chosen(snapshot, given)
            path = path_in(skill, given["path"], tuple(runtime.scripts_of(skill)), runtime.SCRIPTS)
            if self._workspace is None:
                self._workspace = scripts.workspace()
            outcome = await scripts.run(
                skill,
                path,
                self._workspace,
                args=given.get("args", ()),
                env=given.get("env"),
                workdir=given.get("workdir", "."),
                timeout_s=given.get("timeout_s"),
                progress=manner.progress,
            )
            return runtime.outcome(_told(outcome))

        return await answer(self._registry, ask)

    # What they share

    def _find_all(self, snapshot: Snapshot, names: Sequence[str]) -> list[Skill]:
        found: list[Skill] = []
        wrong: list[str] = []
        for name in names:
            try:
                found.append(self._runtime.find(snapshot, name))
            except RequestError as error:
                wrong.append(str(error))
            if len(wrong) == _SUGGESTED:  # enough to tell, and each is a search
                break
        if wrong:
            raise RequestError("Nothing was loaded. " + ". ".join(wrong))
        return found

    def _chosen(self, snapshot: Snapshot, given: Mapping[str, Any]) -> Skill:
        """The loaded skill that is meant: the named one, or the one loaded last (RT-15, RT-16, X-30)."""
        if not self._active:
            lost = "" if self._hosted else f', and give the "{runtime.SESSION}" that it returned'
            raise RequestError(f"No skill is loaded; call {runtime.LOAD} with the name of a skill first{lost}")
        name = given.get("skill")
        path = (
            next(reversed(self._active))
            if name is None
            else self._meant(name) or self._runtime.find(snapshot, name).path
        )
        skill = snapshot.skills.get(path)
        if path not in self._active or skill is None:
            raise RequestError(
                f"The skill {str(name)[:200]!r} is not loaded; call {runtime.LOAD} with it first. Loaded now: "
                f"{', '.join(self.active_skills)}"
            )
        return skill

    def _meant(self, wanted: str) -> str | None:
        """The path of the loaded skill of this name, skill path or location, or None."""
        for path, (_, loaded) in self._active.items():
            if wanted in {path, loaded.name, loaded.location}:
                return path
        snapshot = self._registry.snapshot
        located = self._runtime.locate(snapshot, wanted)
        return located.path if located is not None and located.path in self._active else None

    async def _prepare(self, skill: Skill, snapshot: Snapshot) -> Loaded:
        said = await body(self._registry, skill)
        rest = (path for path in skill.files if path != SKILL_MD and path not in said.linked)
        return Loaded(
            name=name_of(skill, snapshot),
            location=self._runtime.catalogue.location(skill),
            root_dir=self._runtime.catalogue.location(skill, ""),
            digest=self._registry.digest(skill.files[SKILL_MD]),
            properties=skill.frontmatter,
            instructions=said.text,
            files=(*said.linked, *rest),
            problems=(*runtime.problems(skill), *runtime.unseen(skill.frontmatter, said.text)),
            origin=skill.origin,
            line=said.line,
        )

    async def _keep_current(self) -> None:
        """Loaded skills as they are now: edited ones anew, removed ones no more. One that cannot be read stays."""

        def current() -> bool:
            skills = self._registry.snapshot.skills
            return all(skills.get(path) is skill for path, (skill, _) in self._active.items())

        async def ask(snapshot: Snapshot, _: bool) -> dict[str, tuple[Skill, Loaded]]:
            now: dict[str, tuple[Skill, Loaded]] = {}
            for path, (skill, loaded) in self._active.items():
                found = snapshot.skills.get(path)
                if found is skill:
                    now[path] = (skill, loaded)
                elif found is not None and runtime.is_usable(found):
                    now[path] = (found, await self._prepare(found, snapshot))
            return now

        if not current():
            async with self._changing:
                with suppress(StaleFileError):
                    self._active = await answer(self._registry, ask)

    def _receipt(self, fresh: Sequence[Loaded] = (), *, once: bool = False, note: str | None = None) -> Result:
        active = [loaded for _, loaded in self._active.values()]
        handle = None if self._hosted else self.session_id
        return runtime.receipt(
            active,
            handle,
            fresh,
            bodies=not self._hosted,
            characters=self._runtime.settings.result_characters,
            once=once,
            note=note,
        )

    def _news(self) -> str | None:
        # Where an orchestrator puts the instructions at the top of each call, they are never old.
        return None if self._hosted else self._runtime.catalogue.news(self._since)


@dataclass(frozen=True, slots=True)
class _Manner:
    """How a call wants its answer."""

    progress: Progress | None
    once: bool


_Call: TypeAlias = Callable[[Session, Mapping[str, Any], _Manner], Awaitable[Result]]
_CALLS: Final[dict[str, _Call]] = {
    runtime.LIST: Session._list,  # pyright: ignore[reportPrivateUsage]
    runtime.SEARCH: Session._search,  # pyright: ignore[reportPrivateUsage]
    runtime.LOAD: Session._load,  # pyright: ignore[reportPrivateUsage]
    runtime.UNLOAD: Session._unload,  # pyright: ignore[reportPrivateUsage]
    runtime.READ: Session._read,  # pyright: ignore[reportPrivateUsage]
    runtime.RUN: Session._run,  # pyright: ignore[reportPrivateUsage]
}


def _told(outcome: Outcome) -> dict[str, Json]:
    """What a script did, JSON-safe, with files as they are read again."""
    files: list[Json] = [{"path": runtime.WORKSPACE + each.path, "size": each.size} for each in outcome.files]
    return {**asdict(outcome), "sandbox_gaps": [*outcome.sandbox_gaps], "files": files}
