"""The session of one conversation: instructions, tool definitions and tool calls.

An orchestrator puts `Session.instructions()` at the top of every model call, gives the model
`Session.tools()`, and dispatches the model's tool calls to `Session.call()`. The MCP tools of this
server use the same sessions. An error that a model can correct is a result, never an exception.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias

from mcp_skills_server.access.quota import Owner
from mcp_skills_server.catalog.threads import in_thread
from mcp_skills_server.catalog.views import View, permissions_of, retry_when_stale
from mcp_skills_server.dialects import runtime as dialect
from mcp_skills_server.dialects.runtime import Loaded, ToolResult
from mcp_skills_server.errors import RequestError
from mcp_skills_server.format import media
from mcp_skills_server.format.cursors import entry_bytes, first_page
from mcp_skills_server.format.fields import tags_of
from mcp_skills_server.format.uris import uri
from mcp_skills_server.model import SKILL_MD, Json, Skill, Snapshot, Standing
from mcp_skills_server.model.clients import UNKNOWN, Client, client_of
from mcp_skills_server.runtime.active_skills import (
    Active,
    ActiveSkills,
    dependencies_of,
    find_active,
    loaded_list,
)
from mcp_skills_server.runtime.briefing import name_of
from mcp_skills_server.runtime.large_answers import limit_large_answers
from mcp_skills_server.runtime.offering import Offering
from mcp_skills_server.runtime.settings import RuntimeSettings
from mcp_skills_server.runtime.tool_arguments import invalid_arguments, path_in
from mcp_skills_server.telemetry import events

if TYPE_CHECKING:
    from mcp_skills_server.runtime.scripts.processes import Progress
    from mcp_skills_server.runtime.scripts.runner import Scripts
    from mcp_skills_server.runtime.scripts.workspace import Workspace

THIS_PROCESS: Final = "here"
_NEAREST: Final = 3
_MAX_COMMON: Final = 12
"""The maximum number of tags, and of groups, suggested by a search without hits."""
_MAX_OUTPUT: Final = 16 << 20
"""The maximum number of bytes of an output file that are read."""


class ClosingMixin:
    """A mixin for `with` and `async with`, which call `close` on exit."""

    def close(self) -> None:
        """Release the resources. Safe to call twice."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close in a thread, which does not block the event loop."""
        from anyio import CancelScope  # late: a server over stdio starts without it

        with CancelScope(shield=True):
            await in_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Session(ClosingMixin):
    """The state of one conversation: its loaded skills, and its scripts' work directory.

    Made by `Runtime.session`. Use it in a `with` or `async with` statement, which closes it.

    Args:
        hosted: whether an orchestrator puts the instructions at the top of each model call. Else
            the session's handle is a tool argument, and results carry the instructions.
        since: the `time.monotonic` at which the model was shown the list of skills; by default now.
        handle: the identifier of a session that began in another process; a new one unless given.
        handle_of: returns what the model gives in its next calls.
    """

    def __init__(
        self,
        offering: Offering,
        *,
        hosted: bool,
        since: float | None = None,
        handle: str | None = None,
        handle_of: Callable[[Session], str] = attrgetter("session_id"),
    ) -> None:
        if handle is None:
            from secrets import token_urlsafe  # late: a handshake needs no session

            handle = token_urlsafe(18)
        self.session_id = handle
        """The unguessable identifier."""
        self.calls = 0  # in progress
        self.scripts_at = ""
        """The process of the latest script: "" for none, "here" for this one, else its name."""
        self._offering = offering
        self._hosted = hosted
        self._handle_of = handle_of
        self.since = time.monotonic() if since is None else since
        """The `time.monotonic` at which the model was shown the list of skills."""
        self.loaded = ActiveSkills()
        """The loaded skills."""
        self._workspace: Workspace | None = None

    @property
    def active_skills(self) -> list[str]:
        """The names of the loaded skills, the latest last."""
        return self.loaded.names

    async def instructions(self) -> str:
        """Return the text for the top of the next model call; "" if there are no skills.

        It has the rule, `<available_skills>`, and `<active_skills>` with the current text of each
        loaded skill.
        """
        active = await self.loaded.refresh(self._offering)
        return self._offering.briefing.instructions(loaded_list(active))

    def tools(self) -> list[dict[str, Json]]:
        """Return the cached MCP tool definitions, which the caller must not change.

        Each has `name`, `title`, `description`, `inputSchema` and `annotations`, and most have
        `outputSchema`. The list is empty if there are no skills.
        """
        return self._offering.briefing.tools(handles=not self._hosted)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        progress: Progress | None = None,
        client: str | None = None,
        owner: Owner | None = None,
        offering: Offering | None = None,
    ) -> ToolResult:
        """Call a tool, and return its result or its error as an MCP tool result.

        Args:
            name: the tool's name, in which dots and hyphens may replace underscores.
            arguments: the model's arguments, which are validated against the tool's schema.
            progress: awaited regularly with the seconds that a script has been running.
            client: the client's name from its handshake, which selects the result's length and
                form.
            owner: the owner whose concurrency limit a script counts toward.
            offering: the skills that the caller may see; the session's own unless given.

        Returns:
            `content`, `structuredContent`, and `isError` if the model must act differently. The
            text then says how. No request of a model raises an exception.
        """
        self.calls += 1
        offering = offering or self._offering
        try:
            request = _Request(offering, {}, progress, client_of(client), owner)
            result = await self._answer(name, arguments or {}, request)
            for notice in self.loaded.take_recalled(offering):
                result = dialect.with_note(result, notice)
            return result
        finally:
            self.calls -= 1

    async def _answer(
        self, name: str, arguments: Mapping[str, Any], request: _Request
    ) -> ToolResult:
        offering = request.offering
        try:
            tool = dialect.canonical(name)
            if tool not in _CALLS:
                there = [tool for tool in _CALLS if tool != dialect.RUN or offering.runs_scripts]
                words = f"Unknown tool {name[:100]!r}; the tools are {', '.join(there)}"
                return dialect.failure(words)
            # Some clients send null for an optional argument without a value.
            given = {key: value for key, value in arguments.items() if value is not None}
            invalid = invalid_arguments(tool, given)
            if invalid:
                return dialect.failure(invalid)
            request = request._replace(active=await self.loaded.refresh(offering))
            return await _CALLS[tool](self, given, request)
        except RequestError as error:
            return dialect.failure(str(error))

    def close(self) -> None:
        """End the session, and remove its work directory. Safe to call twice."""
        self.loaded.clear()
        if self._workspace is not None:
            self._workspace.close()
            self._workspace = None

    # The tools

    async def _list(self, given: Mapping[str, Any], call: _Request) -> ToolResult:
        snapshot, limit = (
            call.offering.skill_set.snapshot,
            int(given.get("limit", dialect.DEFAULT_LISTED)),
        )
        after: str | None = given.get("after")
        offered: list[Skill] = []
        while len(offered) <= limit:
            page, after = snapshot.page(after, limit + 1, Standing.LENIENT)
            offered += [skill for skill in page if dialect.is_offered(skill)]
            if after is None:
                break
        shown = first_page(offered[:limit], entry_bytes)
        after = None
        if len(offered) > len(shown):
            after = shown[-1].path
        entries = call.offering.entries(shown, snapshot)
        return dialect.listing(entries, after, characters=call.settings.result_characters)

    async def _search(self, given: Mapping[str, Any], call: _Request) -> ToolResult:
        snapshot = call.offering.skill_set.snapshot
        limit = int(given.get("limit", dialect.DEFAULT_HITS))
        search, query = call.offering.search, given["query"]
        find = partial(search.find_scored, query, limit, dialect.is_offered, by_meaning=True)
        hits = await in_thread(find)
        events.record_search(query, len(hits))
        note = self._news(call)
        if not hits and snapshot.skills:
            near = await in_thread(search.nearest, query, _NEAREST, dialect.is_offered)
            offered = [skill for skill in snapshot.skills.values() if dialect.is_offered(skill)]
            tags = Counter(str(tag) for skill in offered for tag in tags_of(skill.frontmatter))
            groups = Counter(skill.path.partition("/")[0] for skill in offered if "/" in skill.path)
            names = [name_of(skill, snapshot) for skill in near]
            advice = dialect.nothing_fits(names, _common(tags), _common(groups))
            note = "\n".join(filter(None, (advice, note)))
        page = first_page([hit.skill for hit in hits], entry_bytes)
        entries = call.offering.entries(page, snapshot)
        for entry, hit in zip(entries, hits, strict=False):
            if hit.copies:
                entry["also_at"] = [call.offering.briefing.location(copy) for copy in hit.copies]
        return dialect.listing(entries, None, characters=call.settings.result_characters, note=note)

    async def _load(self, given: Mapping[str, Any], call: _Request) -> ToolResult:
        is_added = given.get("mode") == "add"
        fresh, active = await self.loaded.load(call.offering, given["names"], add=is_added)
        notes = [self._news(call)]
        if call.settings.load_dependencies:
            snapshot = call.offering.skill_set.snapshot
            skills = [entry.skill for entry in active.values() if entry.loaded in fresh]
            needed, missing = dependencies_of(snapshot, skills)
            more = [name_of(skill, snapshot) for skill in needed if skill.path not in active]
            notes.append(dialect.depends_on(more, missing))
        note = "\n".join(filter(None, notes)) or None
        return self._receipt(active, fresh, client=call.client, note=note)

    async def _unload(self, given: Mapping[str, Any], call: _Request) -> ToolResult:
        names: list[str] = given.get("names", [])
        if given.get("all"):
            active = await self.loaded.unload_all()
        elif names:
            active = await self.loaded.unload(call.offering, names)
        else:
            words = "the names of the skills to unload, or all=true"
            raise RequestError(f"Give {dialect.UNLOAD} {words}")
        return self._receipt(active)

    async def _read(self, given: Mapping[str, Any], call: _Request) -> ToolResult:
        output = dialect.in_workspace(given["path"])
        if output is not None:
            return await self._read_output(output, given, call)
        return await retry_when_stale(
            call.offering.skill_set, lambda view: self._read_file(view, given, call)
        )

    async def _read_file(self, view: View, given: Mapping[str, Any], call: _Request) -> ToolResult:
        skill = self._find_active(view.snapshot, given, call)
        path = path_in(skill, given["path"], tuple(skill.files))
        async with limit_large_answers(skill.files[path].size, self.session_id):
            raw = await view.read(skill, path)
            if path != SKILL_MD:
                self.loaded.mark_used(skill.path)
            text = media.as_text(raw, media.media_type(path))
            if text is not None:
                return _part_of(path, text, given, call.settings)
            target = None
            if skill.standing is Standing.VALID:
                target = uri(skill.path, path)
            return dialect.binary_file(path, target, raw, call.settings.media_bytes)

    async def _read_output(self, path: str, given: Mapping[str, Any], call: _Request) -> ToolResult:
        """Return an output file from the session's work directory in this process."""
        try:
            if self._workspace is None:
                raise RequestError(
                    f"{dialect.WORKSPACE} is empty: no script of this session has run in this "
                    "process, and its files end with the process"
                )
            raw = await in_thread(self._workspace.read, path, _MAX_OUTPUT)
        except RequestError:
            if self.scripts_at in {"", THIS_PROCESS}:
                raise
            raise RequestError(
                "A script of this session ran on another replica of this server, and its files "
                f"in {dialect.WORKSPACE} are on that machine's disk only; run the script again to "
                "have them here"
            ) from None
        shown = dialect.WORKSPACE + path
        text = media.as_text(raw, media.media_type(path))
        if text is None:
            return dialect.output_file(shown, raw, call.settings.media_bytes)
        return _part_of(shown, text, given, call.settings)

    async def _run(self, given: Mapping[str, Any], call: _Request) -> ToolResult:
        scripts = call.offering.scripts
        if scripts is None or not call.offering.runs_scripts:
            raise RequestError(
                "Scripts are not run here: the operator of this server has not allowed it "
                f"(--allow-scripts). Read the script with {dialect.READ} and reach its result "
                "another way, or ask the user to run it"
            )
        return await retry_when_stale(
            call.offering.skill_set, lambda view: self._run_script(view, scripts, given, call)
        )

    async def _run_script(
        self, view: View, scripts: Scripts, given: Mapping[str, Any], call: _Request
    ) -> ToolResult:
        skill = self._find_active(view.snapshot, given, call)
        path = path_in(skill, given["path"], tuple(dialect.scripts_of(skill)), dialect.SCRIPTS)
        from mcp_skills_server.runtime.scripts.runner import RunRequest  # loaded with `scripts`

        await scripts.ready()
        if self._workspace is None:
            self._workspace = scripts.workspace()
        self.scripts_at = THIS_PROCESS
        events.record_mentions([skill])
        self.loaded.mark_used(skill.path)
        request = RunRequest(
            skill=skill,
            path=path,
            args=given.get("args", ()),
            env=given.get("env", {}),
            workdir=given.get("workdir", "."),
            timeout_s=given.get("timeout_s"),
            owner=call.owner,
            permissions=permissions_of(view.skill_set),
        )
        outcome = await scripts.run(request, self._workspace, call.progress)
        return dialect.script_result(outcome.as_json())

    # Helpers of the tools

    def _find_active(self, snapshot: Snapshot, given: Mapping[str, Any], call: _Request) -> Skill:
        reminder = ""
        if not self._hosted:
            reminder = f', and give the "{dialect.SESSION}" that it returned'
        name = given.get("skill")
        return find_active(call.offering, call.active, snapshot, name, reminder=reminder)

    def _receipt(
        self,
        active: Active,
        fresh: Sequence[Loaded] = (),
        *,
        client: Client = UNKNOWN,
        note: str | None = None,
    ) -> ToolResult:
        return dialect.load_result(
            loaded_list(active),
            None if self._hosted else self._handle_of(self),
            fresh,
            bodies=not self._hosted,
            characters=min(self._offering.settings.result_characters, client.result_characters),
            shows=client.shows,
            note=note,
        )

    def _news(self, call: _Request) -> str | None:
        if self._hosted:  # each model call has current instructions
            return None
        return call.offering.briefing.news(self.since)


class _Request(NamedTuple):
    """The context of a call; `offering` and `active` have the skills that the caller may see."""

    offering: Offering
    active: Active
    progress: Progress | None
    client: Client
    owner: Owner | None

    @property
    def settings(self) -> RuntimeSettings:
        """Return the operator's settings, with the client's limit of results if it is lower."""
        settings = self.offering.settings
        most = min(settings.result_characters, self.client.result_characters)
        return settings._replace(result_characters=most)


_Call: TypeAlias = Callable[[Session, Mapping[str, Any], _Request], Awaitable[ToolResult]]
_CALLS: Final[dict[str, _Call]] = {
    dialect.LIST: Session._list,  # pyright: ignore[reportPrivateUsage]
    dialect.SEARCH: Session._search,  # pyright: ignore[reportPrivateUsage]
    dialect.LOAD: Session._load,  # pyright: ignore[reportPrivateUsage]
    dialect.UNLOAD: Session._unload,  # pyright: ignore[reportPrivateUsage]
    dialect.READ: Session._read,  # pyright: ignore[reportPrivateUsage]
    dialect.RUN: Session._run,  # pyright: ignore[reportPrivateUsage]
}


def _common(counts: Counter[str]) -> list[str]:
    """Return the most common names; ties are in alphabetical order."""
    return sorted(counts, key=lambda name: (-counts[name], name))[:_MAX_COMMON]


def _part_of(
    path: str, text: str, given: Mapping[str, Any], settings: RuntimeSettings
) -> ToolResult:
    start, character = int(given.get("start_line", 1)), int(given.get("start_character", 1))
    lines = given.get("max_lines")
    if lines is not None:
        lines = int(lines)
    most = settings.result_characters
    return dialect.text_file(path, text, start, lines, most, start_character=character)
