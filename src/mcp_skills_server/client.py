"""A client for the skills of any MCP server, over the SDK's client, in both eras and over any
transport.

A server that declares the extension `io.modelcontextprotocol/skills` is asked by `skills/list` and
`skills/get`, and every byte is proved by the digest of its listing. Of another server the resources
named SKILL.md are its skills, or, where it has none, what its tools `skills_list` and `skills_read`
say. Nothing of these can be proved, so reading them must be allowed with `unproved`.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

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

from mcp_skills_server.dialects.listed import (
    LONGEST_URI,
    MOST_BYTES,
    MOST_FILES,
    EntryRefusedError,
    ListedFile,
    ListedSkill,
    path_below,
    read_entry,
)
from mcp_skills_server.dialects.sep2640 import EXTENSION
from mcp_skills_server.durable import write_folder
from mcp_skills_server.errors import SkillsServerError, UsageError, quoted
from mcp_skills_server.format import frontmatter
from mcp_skills_server.format.archive import ArchiveRefusedError, check_paths
from mcp_skills_server.model import DEEPEST_PATH, SKILL_MD

__all__ = [
    "EntryRefusedError", "ListedFile", "ListedSkill", "SkillChanges", "SkillsClient",
    "SkillsExtension", "UnprovedError",
]  # fmt: skip

logger = logging.getLogger(__name__)

Way: TypeAlias = Literal["skills", "resources", "tools"]

_MOST_PAGES: Final = 1_000
_MOST_SKILLS: Final = 50_000
_RELISTEN_S: Final = 1.0
_REST: Final = 4
"""A server that announces without end is listed for a quarter of the time at most."""
_SKILLS_CHANGED: Final = "notifications/skills/list_changed"


class UnprovedError(SkillsServerError, ValueError):
    """The bytes of a server differ from its listing, or it lists nothing to prove them by. They
    must not be used."""


@dataclass(frozen=True, slots=True)
class SkillChanges:
    """The difference between two listings of a server.

    Attributes:
        added: skills that were not listed before.
        changed: skills of which the frontmatter, a file or a digest is another, as they are now.
        removed: skills that are listed no more, as they were.
    """

    added: tuple[ListedSkill, ...]
    changed: tuple[ListedSkill, ...]
    removed: tuple[ListedSkill, ...]


class _RawRequest(types.Request[dict[str, Any], str]):
    """A request for a method that the SDK does not know."""

    method: str
    params: dict[str, Any]


class _Answer(types.Result):
    """The result of such a request, as it came."""

    model_config = ConfigDict(extra="allow")


class SkillsExtension(ClientExtension):
    """Declares the skills extension, and hears that a server's skills changed.

    Pass it to the SDK's `Client` as one of its `extensions`, and its `on_message` as
    `message_handler`.
    """

    identifier = EXTENSION

    def __init__(self) -> None:
        self._changed = anyio.Event()
        self.listening = anyio.Event()
        """Set once a server has acknowledged a subscription, or has none."""

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        """Bind the one notification that the SDK does not know."""

        async def changed(_params: types.NotificationParams) -> None:
            self.notify()

        return [
            NotificationBinding(
                method=_SKILLS_CHANGED, params_type=types.NotificationParams, handler=changed
            )
        ]

    async def on_message(self, message: object) -> None:
        """Take a message of the server that the SDK hands to its `message_handler`."""
        if isinstance(message, types.SubscriptionsAcknowledgedNotification):
            self.listening.set()
        elif isinstance(
            message, types.ResourceListChangedNotification | types.ToolListChangedNotification
        ):
            self.notify()

    def notify(self) -> None:
        """Have the skills listed anew."""
        self._changed.set()

    async def wait_changed(self, seconds: float) -> None:
        """Wait for a notification since the last call, at most so long."""
        with anyio.move_on_after(seconds):
            await self._changed.wait()
        self._changed = anyio.Event()


class SkillsClient:
    """The skills of one server.

    Args:
        session: a session of the SDK that has been negotiated.
        extension: the one that the session was made with; only `changes` needs it.
        unproved: read files that the server gives no digest for, too.
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
        """Why entries of the last listing were not taken, one line each."""

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, server: Any, *, unproved: bool = False, **options: Any
    ) -> AsyncGenerator[SkillsClient]:
        """Connect to a server, and to `changes` of its skills.

        Args:
            server: what the SDK's `Client` takes: a URL, the parameters of a command, a transport
                or a server object.
            unproved: read files that the server gives no digest for, too.
            options: further ones of the SDK's `Client`, such as `mode`.
        """
        extension = SkillsExtension()
        async with Client(
            server, extensions=[extension], message_handler=extension.on_message, **options
        ) as client:
            yield cls(client.session, extension, unproved=unproved)

    @property
    def way(self) -> Way:
        """Return the interface to ask: the server's skills methods, else its resources, else its
        tools."""
        capabilities = self._session.server_capabilities
        if capabilities is not None and EXTENSION in (capabilities.extensions or {}):  # S40-34
            return "skills"
        return "tools" if capabilities is None or capabilities.resources is None else "resources"

    async def list(self) -> list[ListedSkill]:
        """Return every skill that the server lists, all pages. One bad entry costs itself: see
        `refused`.

        Raises:
            MCPError: the server refuses, or the connection is lost.
            UnprovedError: its pages do not end.
        """
        found, self.refused = await getattr(self, f"_list_by_{self.way}")()
        self._known = {skill.uri: skill for skill in found}
        return list(self._known.values())

    async def get(self, uri: str) -> ListedSkill:
        """Return the skill whose SKILL.md has this URI, listed or not.

        Raises:
            EntryRefusedError: its entry breaks the specification.
            MCPError: the server has none.
        """
        if self.way == "skills":
            answer = await self._ask("skills/get", uri=uri)
            skill = read_entry(answer.get("skill"))
            if skill.uri != uri:
                raise EntryRefusedError(
                    f"asked for {quoted(uri)}, the server answers with {quoted(skill.uri)}"
                )
            return skill
        found = next((skill for skill in await self.list() if skill.uri == uri), None)
        if found is None:
            raise EntryRefusedError(f"the server has no skill {quoted(uri)}")
        return found

    async def read(self, skill: ListedSkill, path: str = SKILL_MD) -> bytes:
        """Return a file of a skill, proved by its digest; of SKILL.md the frontmatter is compared,
        too.

        Raises:
            UnprovedError: it is not what was listed, is not listed, or has no digest and `unproved`
                is not set. After a change at the server, `get` the skill again.
            MCPError: the server does not have it.
        """
        if skill.files is not None and path not in skill.files:  # S40-44
            raise UnprovedError(f"{quoted(path)} is no file of the skill {quoted(skill.name)}")
        if skill.files is None:
            file = ListedFile(skill.uri.removesuffix(SKILL_MD) + path)
        else:
            file = skill.files[path]
        if not file.digest and not self._unproved:
            raise UnprovedError(
                f"{quoted(file.uri)} has no digest; allow such files with unproved=True"
            )
        if self.way == "tools":
            raw = await self._read_by_tools(skill, path)
        else:
            raw = await self._read_resource(file.uri)
        if file.digest:
            # S40-43
            if "sha256:" + hashlib.sha256(raw).hexdigest() != file.digest or len(raw) != file.size:
                words = "what the server sent is not what it listed; get the skill again"
                raise UnprovedError(f"{quoted(file.uri)}: {words}")
            # S40-45
            if path == SKILL_MD and frontmatter.parse(raw).frontmatter != skill.frontmatter:
                raise UnprovedError(
                    f"{quoted(file.uri)}: its frontmatter is not what the server announces"
                )
        return raw

    async def download(self, skill: ListedSkill, folder: str | os.PathLike[str]) -> Path:
        """Write a skill to a new directory of its name in `folder`, whole or not at all, and return
        the directory.

        Raises:
            UsageError: there is one of that name, or it cannot be written.
            UnprovedError: a file is not what was listed, or the server does not list its files.
            MCPError: the server does not have a file.
        """
        if skill.files is None:
            raise UnprovedError(
                f"{quoted(skill.name)}: its files are not listed, so a whole copy cannot be made"
            )
        try:
            check_paths([f"{skill.name}/{path}" for path in skill.files])
        except ArchiveRefusedError as error:
            raise UnprovedError(f"{quoted(skill.name)}: {error}") from None
        target = Path(folder) / skill.name
        files: dict[str, tuple[bytes, bool]] = {}
        for path in skill.files:
            files[path] = await self.read(skill, path), False
            if sum(len(raw) for raw, _ in files.values()) > MOST_BYTES:
                raise UnprovedError(
                    f"{quoted(skill.name)}: it has more than {MOST_BYTES >> 20} MiB"
                )
        if await to_thread.run_sync(os.path.lexists, target):
            raise UsageError(f"{target}: is there already; remove it, or give another folder")
        try:
            await to_thread.run_sync(write_folder, target, files)
        except OSError as error:
            raise UsageError(f"{target}: cannot be written: {error.strerror or error}") from None
        return target

    def changes(
        self, *, poll_s: float = 60.0
    ) -> AbstractAsyncContextManager[AsyncIterator[SkillChanges]]:
        """Follow the server: `async with client.changes() as changes: async for change in changes`.

        The first change is against the last listing, so none between `list` and this is lost.

        Args:
            poll_s: list anew after so many seconds without a notification.

        Raises:
            UsageError: the client was made without its extension.
            MCPError: a later listing fails.
        """
        if self._extension is None:
            raise UsageError("changes need the extension of this client: use SkillsClient.connect")
        return self._followed(self._extension, poll_s)

    @asynccontextmanager
    async def _followed(
        self, extension: SkillsExtension, poll_s: float
    ) -> AsyncGenerator[AsyncIterator[SkillChanges]]:
        async with anyio.create_task_group() as tasks:
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
            soonest = begun + max(min(poll_s, _RELISTEN_S), _REST * (anyio.current_time() - begun))
            if after != before:
                yield SkillChanges(
                    added=tuple(after[uri] for uri in after.keys() - before.keys()),
                    changed=tuple(
                        after[uri]
                        for uri in after.keys() & before.keys()
                        if after[uri] != before[uri]
                    ),
                    removed=tuple(before[uri] for uri in before.keys() - after.keys()),
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
        """Hold a `subscriptions/listen` stream open. The SDK's own cannot ask for
        `skillsListChanged`."""
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
                    if error.error.code == types.METHOD_NOT_FOUND:  # polling is left
                        extension.listening.set()
                        return
                    logger.info("the stream of changes ended: %s", error)
                await anyio.sleep(_RELISTEN_S)
                extension.notify()  # what changed meanwhile was not heard

    async def _ask(self, method: str, **params: Any) -> Mapping[str, Any]:
        result = await self._session.send_request(
            _RawRequest(method=method, params=params), _Answer
        )
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def _pages(self, method: str, key: str) -> list[Any]:
        """Return the items of every page of a list, or raise an UnprovedError where the pages do
        not end."""
        items: list[Any] = []
        page = await self._ask(method)
        for _ in range(_MOST_PAGES):
            items += page.get(key) or ()
            cursor = page.get("nextCursor")
            if cursor is None:
                return items
            if len(items) > _MOST_SKILLS:
                break
            page = await self._ask(method, cursor=cursor)
        raise UnprovedError(f"{method} does not end: {len(items):,} entries so far")

    async def _list_by_skills(self) -> tuple[list[ListedSkill], tuple[str, ...]]:
        skills: list[ListedSkill] = []
        refused: list[str] = []
        for raw in await self._pages("skills/list", "skills"):
            try:
                skills.append(read_entry(raw))
            except EntryRefusedError as error:
                refused.append(str(error))
        return skills, tuple(refused)

    async def _list_by_resources(self) -> tuple[list[ListedSkill], tuple[str, ...]]:
        """Take each resource named SKILL.md for a skill, and the resources below its folder for the
        skill's files."""
        resources = {
            str(each["uri"]): each
            for each in await self._pages("resources/list", "resources")
            if "uri" in each
        }
        manifests = [
            uri for uri in resources if uri.endswith(f"/{SKILL_MD}") and len(uri) <= LONGEST_URI
        ]
        found = {uri.removesuffix(SKILL_MD): dict[str, ListedFile]() for uri in manifests}
        refused: dict[str, str] = {}
        for uri in resources:
            base = uri
            for _ in range(DEEPEST_PATH):  # it is a file of each skill that is around it
                base = base.rstrip("/").rpartition("/")[0] + "/"
                if len(base) < 2:
                    break
                if base in found and len(found[base]) < MOST_FILES:
                    try:
                        found[base][path_below(base, uri)] = ListedFile(uri)
                    except EntryRefusedError as error:
                        refused[base] = str(error)
        skills: list[ListedSkill] = []
        for base, files in found.items():
            if base not in refused:
                described = str(resources[base + SKILL_MD].get("description") or "")
                skills.append(ListedSkill(base.split("/")[-2], described, base + SKILL_MD, files))
        return skills, tuple(refused.values())

    async def _list_by_tools(self) -> tuple[list[ListedSkill], tuple[str, ...]]:
        skills: list[ListedSkill] = []
        given: dict[str, Any] = {}
        for _ in range(_MOST_PAGES):
            page = await self._call("skills_list", given)
            for each in page.get("skills") or ():
                if "name" not in each:
                    raise UnprovedError("the server's tool skills_list does not say what it should")
                uri = str(each.get("location") or f"{each['name']}/{SKILL_MD}")
                skills.append(
                    ListedSkill(str(each["name"]), str(each.get("description") or ""), uri, None)
                )
            if not page.get("next_after"):
                break
            given = {"after": page["next_after"]}
        return skills, ()

    async def _read_resource(self, uri: str) -> bytes:
        contents = (await self._session.read_resource(uri)).contents
        if len(contents) != 1:
            raise UnprovedError(f"{quoted(uri)}: the server answers with {len(contents)} contents")
        content = contents[0]
        if isinstance(content, types.TextResourceContents):
            return content.text.encode()
        try:
            return base64.b64decode(content.blob, validate=True)
        except ValueError:
            raise UnprovedError(f"{quoted(uri)}: what the server sent is not Base64") from None

    async def _read_by_tools(self, skill: ListedSkill, path: str) -> bytes:
        loaded = await self._call("skills_load", {"names": [skill.name], "mode": "add"})
        given = {"path": path, "skill": skill.name}
        if "session" in loaded:
            given["session"] = loaded["session"]
        result = await self._session.call_tool("skills_read", given)
        texts = [block.text for block in result.content if isinstance(block, types.TextContent)]
        if result.is_error or len(texts) != 1:
            raise UnprovedError(
                f"{quoted(path)} of {quoted(skill.name)}: the server's tools do not read it"
            )
        return texts[0].encode()

    async def _call(self, tool: str, given: dict[str, Any]) -> dict[str, Any]:
        result = await self._session.call_tool(tool, given)
        said: object = result.structured_content
        if result.is_error or not isinstance(said, dict):
            raise UnprovedError(f"the server's tool {tool} does not say what it should")
        return cast("dict[str, Any]", said)
