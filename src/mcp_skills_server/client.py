"""Client for the skills of any MCP server, over the SDK's client, any transport and both eras.

If the server declares the extension `io.modelcontextprotocol/skills` in the initial revision, use
`skills/list` and `skills/get`, and verify all bytes by their listed digests. Else use resources
named SKILL.md, or, without resources, the tools `skills_list` and `skills_read`. Neither has
digests, so the caller must allow unverified reads with `unproved`.
"""

from __future__ import annotations

import base64
import json
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

import anyio
import mcp_types as types
from anyio import to_thread
from anyio.abc import TaskStatus
from mcp.client.client import Client
from mcp.client.extension import ClientExtension, NotificationBinding
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ConfigDict

from mcp_skills_server.dialects.dialect import is_initial
from mcp_skills_server.dialects.remote_entries import (
    MAX_BYTES,
    MAX_FILES,
    MAX_URI,
    EntryRefusedError,
    ListedFile,
    ListedSkill,
    is_same,
    parse_entry,
    path_below,
)
from mcp_skills_server.dialects.sep2640 import EXTENSION
from mcp_skills_server.durable import write_folder
from mcp_skills_server.errors import SkillsServerError, UsageError, clipped, innermost, quoted
from mcp_skills_server.format import frontmatter
from mcp_skills_server.format.archive import ArchiveRefusedError, check_paths
from mcp_skills_server.model import DEEPEST_PATH, SKILL_MD
from mcp_skills_server.model.digests import digest_of

__all__ = [
    "ConnectionFailedError", "EntryRefusedError", "ListedFile", "ListedSkill", "SkillChanges",
    "SkillsClient", "SkillsExtension", "UnprovedError",
]  # fmt: skip

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
Way: TypeAlias = Literal["skills", "resources", "tools"]

_MAX_PAGES: Final = 1_000
_MAX_SKILLS: Final = 50_000
_RELISTEN_S: Final = 1.0
_MIN_INTERVAL: Final = 4
"""The minimum listing interval relative to a listing's duration: a quarter of the time at most."""
_SKILLS_CHANGED: Final = "notifications/skills/list_changed"
_LIST_CHANGED: Final = (types.ResourceListChangedNotification, types.ToolListChangedNotification)


class UnprovedError(SkillsServerError, ValueError):
    """The content differs from its listing, or has no digest to verify it; do not use it."""


class ConnectionFailedError(SkillsServerError, ConnectionError):
    """There is no connection to the server, or it was lost; the message has the reason."""


@dataclass(frozen=True, slots=True)
class SkillChanges:
    """The difference between two listings of a server.

    Attributes:
        added: newly listed skills.
        changed: skills with another entry (frontmatter, file or digest), in their new state.
        removed: skills no longer listed, in their old state.
    """

    added: tuple[ListedSkill, ...]
    changed: tuple[ListedSkill, ...]
    removed: tuple[ListedSkill, ...]


class _RawRequest(types.Request[dict[str, Any], str]):
    """A request for a method unknown to the SDK."""

    method: str
    params: dict[str, Any]


class _Answer(types.Result):
    """The unvalidated result of a `_RawRequest`."""

    model_config = ConfigDict(extra="allow")


class SkillsExtension(ClientExtension):
    """The skills extension for the SDK's `Client`, with notifications of changed skills.

    Pass it to `Client` in `extensions`, and its `on_message` as `message_handler`.
    """

    identifier = EXTENSION

    def __init__(self) -> None:
        self._changed = anyio.Event()
        self.listening = anyio.Event()
        """Set once the server acknowledged a subscription, or does not support any."""

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        """Bind the notification of changed skills, which the SDK does not know."""

        async def changed(_params: types.NotificationParams) -> None:
            self.notify()

        params = types.NotificationParams
        return [NotificationBinding(method=_SKILLS_CHANGED, params_type=params, handler=changed)]

    async def on_message(self, message: object) -> None:
        """Handle a server message, as the SDK's `message_handler`."""
        if isinstance(message, types.SubscriptionsAcknowledgedNotification):
            self.listening.set()
        elif isinstance(message, _LIST_CHANGED):
            self.notify()

    def notify(self) -> None:
        """Trigger a new listing of the skills."""
        self._changed.set()

    async def wait_changed(self, seconds: float) -> None:
        """Wait at most `seconds` for a notification since the last call."""
        with anyio.move_on_after(seconds):
            await self._changed.wait()
        self._changed = anyio.Event()


@asynccontextmanager
async def _ungrouped(manager: AbstractAsyncContextManager[_T]) -> AsyncGenerator[_T]:
    """Enter a context manager that has task groups, and raise errors outside of their groups.

    An error of the caller's own block passes as it is. Any other came from a task of the
    connection: the SDK has many types for one, so it becomes a `ConnectionFailedError`.
    """
    raised: Exception | None = None
    try:
        async with manager as entered:
            try:
                yield entered
            except Exception as error:
                raised = error
                raise
    except Exception as error:
        cause = raised or innermost(error)
        if raised is not None or isinstance(cause, SkillsServerError | MCPError):
            raise cause from cause.__cause__
        reason = clipped(str(cause)) or type(cause).__name__
        raise ConnectionFailedError(f"the connection failed: {reason}") from cause


class SkillsClient:
    """The skills of one server.

    Args:
        session: a negotiated session of the SDK.
        extension: the extension of that session; only `changes` needs it.
        unproved: also read files without a digest.
    """

    def __init__(
        self,
        session: ClientSession,
        extension: SkillsExtension | None = None,
        *,
        unproved: bool = False,
    ) -> None:
        self._session = session
        self._extension = extension
        self._unproved = unproved
        self._known: dict[str, ListedSkill] | None = None
        self.refused: tuple[str, ...] = ()
        """The reasons for refused entries of the last listing, or for a refused extension."""

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, server: Any, *, unproved: bool = False, **options: Any
    ) -> AsyncGenerator[SkillsClient]:
        """Connect to a server, with support for `changes`.

        Args:
            server: an argument of the SDK's `Client`: a URL, the parameters of a command, a
                transport or a server object.
            unproved: also read files without a digest.
            options: more options of the SDK's `Client`, such as `mode`.

        Raises:
            ConnectionFailedError: the server cannot be reached or started, or the connection broke.
            MCPError: the server refused the handshake, or ended.
        """
        extension = SkillsExtension()
        options |= {"extensions": [extension], "message_handler": extension.on_message}
        async with _ungrouped(Client(server, **options)) as client:
            yield cls(client.session, extension, unproved=unproved)

    @property
    def way(self) -> Way:
        """The interface in use: the server's skills methods, else its resources, else its tools."""
        capabilities = self._session.server_capabilities
        if self._settings is not None and is_initial(self._settings):  # S40-34, S40-55
            return "skills"
        return "tools" if capabilities is None or capabilities.resources is None else "resources"

    @property
    def revision_fault(self) -> str:
        """The reason why the server's skills extension is not used, or ""."""
        if self._settings is None or is_initial(self._settings):
            return ""
        revision = quoted(str(self._settings["revision"]))
        return (
            f"the server's skills extension has the unknown revision {revision}, so its {self.way} "
            "are used, without digests; update mcp-skills-server"
        )

    @property
    def _settings(self) -> Mapping[str, Any] | None:
        """The server's settings of the skills extension; None if it does not declare it."""
        capabilities = self._session.server_capabilities
        return None if capabilities is None else (capabilities.extensions or {}).get(EXTENSION)

    async def list(self) -> list[ListedSkill]:
        """Return all listed skills of the server; invalid entries are skipped, see `refused`.

        Raises:
            MCPError: the server returned an error, or the connection is lost.
            UnprovedError: the list has too many pages or entries.
        """
        listings = {
            "skills": self._list_by_skills,
            "resources": self._list_by_resources,
            "tools": self._list_by_tools,
        }
        skills, self.refused = await listings[self.way]()
        if self.revision_fault:
            self.refused = (self.revision_fault, *self.refused)
        self._known = {skill.uri: skill for skill in skills}
        return list(self._known.values())

    async def get(self, uri: str) -> ListedSkill:
        """Return the skill whose SKILL.md has this URI, listed or not.

        Raises:
            EntryRefusedError: the entry breaks the specification.
            MCPError: the server has no such skill.
        """
        if self.way == "skills":
            answer = await self._request("skills/get", uri=uri)
            skill = parse_entry(answer.get("skill"))
            if skill.uri != uri:
                fault = f"asked for {quoted(uri)}, but the server returned {quoted(skill.uri)}"
                raise EntryRefusedError(fault)
            return skill
        listed = next((skill for skill in await self.list() if skill.uri == uri), None)
        if listed is None:
            raise EntryRefusedError(f"the server has no skill {quoted(uri)}")
        return listed

    async def read(self, skill: ListedSkill, path: str = SKILL_MD) -> bytes:
        """Return a file of a skill, verified by digest, and for SKILL.md also by frontmatter.

        Raises:
            UnprovedError: it differs from the listing, is not listed, or has no digest and
                `unproved` is not set. After a change at the server, `get` the skill again.
            MCPError: the server does not have it.
        """
        if skill.files is not None and path not in skill.files:  # S40-44
            raise UnprovedError(f"{quoted(path)} is not a file of the skill {quoted(skill.name)}")
        file = ListedFile(skill.uri.removesuffix(SKILL_MD) + path)
        if skill.files is not None:
            file = skill.files[path]
        if not file.digest and not self._unproved:
            fault = "has no digest; allow such files with unproved=True"
            raise UnprovedError(f"{quoted(file.uri)} {fault}")
        if self.way == "tools":
            raw = await self._read_by_tools(skill, path)
        else:
            raw = await self._read_resource(file.uri)
        if file.digest:
            fault = ""
            if digest_of(raw) != file.digest or len(raw) != file.size:  # S40-43
                fault = "the server's copy differs from its listing; get the skill again"
            elif path == SKILL_MD:
                read = dict(frontmatter.parse(raw).frontmatter or {})
                if not is_same(read, dict(skill.frontmatter)):  # S40-45
                    fault = "its frontmatter differs from the server's listing"
            if fault:
                raise UnprovedError(f"{quoted(file.uri)}: {fault}")
        return raw

    async def tool_digests(self) -> dict[str, str]:
        """Return one digest of the input and output schemas of each tool of the server, by name.

        Raises:
            MCPError: the server has no tools, or returned an error.
        """
        digests: dict[str, str] = {}
        for tool in await self._pages("tools/list", "tools"):
            schemas = [tool.get("inputSchema"), tool.get("outputSchema")]
            digests[str(tool.get("name"))] = digest_of(json.dumps(schemas, sort_keys=True).encode())
        return digests

    async def download(self, skill: ListedSkill, folder: str | os.PathLike[str]) -> Path:
        """Write a skill atomically to a new directory of its name in `folder`, and return that.

        Raises:
            UsageError: the directory exists, or cannot be written.
            UnprovedError: a file differs from the listing, or the files are not listed.
            MCPError: the server does not have a file.
        """
        name, target = quoted(skill.name), Path(folder) / skill.name
        if skill.files is None:
            raise UnprovedError(f"{name}: its files are not listed, so it cannot be downloaded")
        try:
            check_paths([f"{skill.name}/{path}" for path in skill.files])
        except ArchiveRefusedError as error:
            raise UnprovedError(f"{name}: {error}") from None
        files: dict[str, tuple[bytes, bool]] = {}
        for path in skill.files:
            files[path] = await self.read(skill, path), False
            if sum(len(raw) for raw, _ in files.values()) > MAX_BYTES:
                raise UnprovedError(f"{name}: it has more than {MAX_BYTES >> 20} MiB")
        if await to_thread.run_sync(os.path.lexists, target):
            raise UsageError(f"{target}: already exists; remove it, or give another folder")
        try:
            await to_thread.run_sync(write_folder, target, files)
        except OSError as error:
            reason = f"cannot be written ({error.strerror or error})"
            raise UsageError(f"{target}: {reason}; give another folder") from None
        return target

    @asynccontextmanager
    async def changes(self, *, poll_s: float = 60.0) -> AsyncGenerator[AsyncIterator[SkillChanges]]:
        """Watch changes: `async with client.changes() as changes: async for change in changes`.

        The first change is relative to the last listing, so that none after `list` is lost.

        Args:
            poll_s: seconds without a notification after which to poll.

        Raises:
            UsageError: the client has no extension.
            MCPError: a later listing fails.
        """
        extension = self._extension
        if extension is None:
            raise UsageError("changes need the extension of this client: use SkillsClient.connect")
        async with _ungrouped(anyio.create_task_group()) as tasks:
            if self._session.protocol_version in MODERN_PROTOCOL_VERSIONS:
                await tasks.start(self._listen, extension)
            before = await self._listed() if self._known is None else self._known
            extension.notify()
            yield self._differences(extension, before, poll_s)
            tasks.cancel_scope.cancel()

    async def _differences(
        self, extension: SkillsExtension, before: dict[str, ListedSkill], poll_s: float
    ) -> AsyncIterator[SkillChanges]:
        soonest = -inf
        while True:
            await extension.wait_changed(poll_s)
            await anyio.sleep_until(soonest)
            begun = anyio.current_time()
            after = await self._listed()
            duration = anyio.current_time() - begun
            soonest = begun + max(min(poll_s, _RELISTEN_S), _MIN_INTERVAL * duration)
            if after != before:
                both = after.keys() & before.keys()
                yield SkillChanges(
                    added=tuple(after[uri] for uri in after.keys() - both),
                    changed=tuple(after[uri] for uri in both if after[uri] != before[uri]),
                    removed=tuple(before[uri] for uri in before.keys() - both),
                )
            before = after

    async def _listed(self) -> dict[str, ListedSkill]:
        return {skill.uri: skill for skill in await self.list()}

    async def _listen(
        self,
        extension: SkillsExtension,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Keep a `subscriptions/listen` stream open, since the SDK's lacks `skillsListChanged`."""
        wanted = {"resourcesListChanged": True, "toolsListChanged": True, "skillsListChanged": True}
        request = _RawRequest(method="subscriptions/listen", params={"notifications": wanted})

        async def tell_started() -> None:
            await extension.listening.wait()
            task_status.started()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tell_started)
            while True:
                try:
                    await self._session.send_request(
                        request, _Answer, request_read_timeout_seconds=inf
                    )
                except MCPError as error:
                    if error.error.code == types.METHOD_NOT_FOUND:  # fall back to polling
                        extension.listening.set()
                        return
                    logger.info("the stream of changes ended: %s", error)
                await anyio.sleep(_RELISTEN_S)
                extension.notify()  # catch up on missed changes

    async def _request(self, method: str, **params: Any) -> Mapping[str, Any]:
        request = _RawRequest(method=method, params=params)
        result = await self._session.send_request(request, _Answer)
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def _pages(self, method: str, key: str) -> list[Any]:
        """Return the items of all pages; UnprovedError if there are too many pages or items."""
        items: list[Any] = []
        page = await self._request(method)
        for _ in range(_MAX_PAGES):
            items += page.get(key) or ()
            cursor = page.get("nextCursor")
            if cursor is None:
                return items
            if len(items) > _MAX_SKILLS:
                break
            page = await self._request(method, cursor=cursor)
        raise UnprovedError(f"{method} does not end: {len(items):,} entries so far")

    async def _list_by_skills(self) -> tuple[list[ListedSkill], tuple[str, ...]]:
        skills: list[ListedSkill] = []
        refused: list[str] = []
        for raw in await self._pages("skills/list", "skills"):
            try:
                skills.append(parse_entry(raw))
            except EntryRefusedError as error:
                refused.append(str(error))
        return skills, tuple(refused)

    async def _list_by_resources(self) -> tuple[list[ListedSkill], tuple[str, ...]]:
        """Return a skill for each resource named SKILL.md, with files from below its folder."""
        listed = await self._pages("resources/list", "resources")
        resources = {str(resource["uri"]): resource for resource in listed if "uri" in resource}
        skill_files = {
            uri.removesuffix(SKILL_MD): dict[str, ListedFile]()
            for uri in resources
            if uri.endswith(f"/{SKILL_MD}") and len(uri) <= MAX_URI
        }
        refused: dict[str, str] = {}
        for uri in resources:
            base = uri
            for _ in range(DEEPEST_PATH):  # a file belongs to all enclosing skills
                base = base.rstrip("/").rpartition("/")[0] + "/"
                if len(base) < 2:  # "/", above the URI
                    break
                if base in skill_files and len(skill_files[base]) < MAX_FILES:
                    try:
                        skill_files[base][path_below(base, uri)] = ListedFile(uri)
                    except EntryRefusedError as error:
                        refused[base] = str(error)
        skills: list[ListedSkill] = []
        for base, files in skill_files.items():
            if base not in refused:
                described = str(resources[base + SKILL_MD].get("description") or "")
                skills.append(ListedSkill(base.split("/")[-2], described, base + SKILL_MD, files))
        return skills, tuple(refused.values())

    async def _list_by_tools(self) -> tuple[list[ListedSkill], tuple[str, ...]]:
        skills: list[ListedSkill] = []
        given: dict[str, Any] = {}
        for _ in range(_MAX_PAGES):
            page = await self._call("skills_list", given)
            for entry in page.get("skills") or ():
                if "name" not in entry:
                    raise UnprovedError("the server's tool skills_list returned an invalid result")
                name, described = str(entry["name"]), str(entry.get("description") or "")
                uri = str(entry.get("location") or f"{name}/{SKILL_MD}")
                skills.append(ListedSkill(name, described, uri, None))
            if not page.get("next_after"):
                break
            given = {"after": page["next_after"]}
        return skills, ()

    async def _read_resource(self, uri: str) -> bytes:
        contents = (await self._session.read_resource(uri)).contents
        if len(contents) != 1:
            raise UnprovedError(f"{quoted(uri)}: the server returned {len(contents)} contents")
        content = contents[0]
        if isinstance(content, types.TextResourceContents):
            return content.text.encode()
        try:
            return base64.b64decode(content.blob, validate=True)
        except ValueError:
            raise UnprovedError(f"{quoted(uri)}: the server's content is not Base64") from None

    async def _read_by_tools(self, skill: ListedSkill, path: str) -> bytes:
        loaded = await self._call("skills_load", {"names": [skill.name], "mode": "add"})
        given = {"path": path, "skill": skill.name}
        if "session" in loaded:
            given["session"] = loaded["session"]
        result = await self._session.call_tool("skills_read", given)
        texts = [block.text for block in result.content if isinstance(block, types.TextContent)]
        if result.is_error or len(texts) != 1:
            what = f"{quoted(path)} of {quoted(skill.name)}"
            raise UnprovedError(f"{what}: the server's tools cannot read it")
        return texts[0].encode()

    async def _call(self, tool: str, given: dict[str, Any]) -> dict[str, Any]:
        result = await self._session.call_tool(tool, given)
        content: object = result.structured_content
        if result.is_error or not isinstance(content, dict):
            raise UnprovedError(f"the server's tool {tool} returned an invalid result")
        return cast("dict[str, Any]", content)
