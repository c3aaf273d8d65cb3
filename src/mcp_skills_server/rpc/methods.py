"""The eight methods of the Skills Protocol, each a function of its params.

Skills are looked up by name and version, files by exact path in their skill: no text of a client becomes a path.
What is absent and what is forbidden get the same message. One call sees one view.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from anyio import to_thread

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.turns import in_turn, off_loop
from mcp_skills_server.catalog.view import View, retry_when_stale
from mcp_skills_server.catalog.views import BySkillSet, Views
from mcp_skills_server.dialects import skills_protocol as dialect
from mcp_skills_server.dialects.jsonrpc import METHOD_NOT_FOUND, QUOTA_EXCEEDED
from mcp_skills_server.dialects.skills_protocol import (
    CodeExecution,
    Description,
    Execution,
    FileRequest,
    Listing,
)
from mcp_skills_server.errors import RequestError, clipped
from mcp_skills_server.format import cursors, media, versions
from mcp_skills_server.format.nearest import nearest
from mcp_skills_server.format.portions import portion
from mcp_skills_server.model import SKILL_MD, Json, printable
from mcp_skills_server.rpc import guide
from mcp_skills_server.rpc.blobs import Blobs
from mcp_skills_server.rpc.catalogue import Catalogue, Catalogues, Key, SkillVersion
from mcp_skills_server.rpc.messages import CallError, failed
from mcp_skills_server.runtime.quota import Owner, QuotaError
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.telemetry import events

if TYPE_CHECKING:
    from mcp_skills_server.rpc.execution import Executor

Result: TypeAlias = "dict[str, Json]"
_R = TypeVar("_R")

_LOAD_PATIENCE_S: Final = 60.0
_VERSIONS_SHOWN: Final = 20
_MOST_SKILLS: Final = 100_000
"""Skills of the catalogues of all sets of grants together, about 300 bytes each."""
_NAMES_BYTES: Final = 400
"""Bytes of an entry of a list beside its description."""
_NO_SCRIPTS: Final = (
    "This server runs no code: whoever runs it has not allowed it (--allow-scripts). Do the work by the skill's "
    "instructions, or ask the user"
)
_NO_CODE: Final = (
    "This server runs no code that comes with a call: whoever runs it has not allowed it (--allow-code). Use the "
    "actions of its skills"
)


@dataclass(frozen=True, slots=True)
class ExecutionSettings:
    """What the operator allows where scripts are allowed.

    Attributes:
        code: `run_code` runs what comes with a call.
    """

    code: bool = False


class RpcClient(NamedTuple):
    """Who calls.

    Attributes:
        owner: among whose blobs count those that the call leaves.
        principal: whom the client proved to be, None where nobody has to.
    """

    owner: Owner
    principal: Principal | None


class Methods:
    """The method table over one runtime. It keeps no state of callers.

    Args:
        runtime: the skills, and what runs scripts if the operator allows it.
        settings: what of it is allowed.
        blobs: where blobs are kept.
        views: which skills each principal has; None where all have all.

    Attributes:
        catalogues: all skills by dotted name, and what is wrong with their manifests.
    """

    def __init__(
        self,
        runtime: Runtime,
        settings: ExecutionSettings | None = None,
        blobs: Blobs | None = None,
        views: Views | None = None,
    ) -> None:
        self._registry = runtime.registry
        self._views = views or Views(runtime.registry)
        self._blobs = Blobs() if blobs is None else blobs
        self._settings = settings or ExecutionSettings()
        self._executor: Executor | None = None
        self.catalogues = Catalogues(runtime.registry)
        self._restricted = BySkillSet(lambda each: Catalogues(each, self.catalogues.logged), _MOST_SKILLS)
        if runtime.scripts is not None:
            from mcp_skills_server.rpc.execution import Executor

            self._executor = Executor(runtime.scripts, self._blobs)

    async def call(
        self, method: str, params: Mapping[str, Any], owner: Owner = None, principal: Principal | None = None
    ) -> Result:
        """Answer one call.

        Args:
            method: which one.
            params: what it is given.
            owner: among whose blobs count those that it leaves.
            principal: whose skills it is answered from; None for who has proved nothing.

        Raises:
            CallError: there is no such method, or it cannot be answered for what it was given.
        """
        work = _TABLE.get(method)
        if work is None:
            message = f"Method not found: {printable(method[:100])!r}; there are {', '.join(dialect.METHODS)}"
            raise CallError(message, code=METHOD_NOT_FOUND)
        try:
            return await work(self, params, RpcClient(owner, principal))
        except CallError:
            raise
        except QuotaError as error:
            raise CallError(str(error), {"quota": error.quota}, QUOTA_EXCEEDED) from None
        except RequestError as error:
            raise CallError(str(error)) from None

    async def from_view(
        self, request: _R, handle: Callable[[Methods, View, _R, RpcClient], Awaitable[Result]], client: RpcClient
    ) -> Result:
        """Return what a method answers from the skills as they are, once they were read.

        Raises:
            CallError, RequestError: it cannot be answered.
            UnreadableError: a file does not hold still.
        """
        await self._loaded()
        skill_set = self._views.of(client.principal)
        return await retry_when_stale(skill_set, lambda view: handle(self, view, request, client))

    # Discovery

    async def _list(self, view: View, request: Listing, _client: RpcClient) -> Result:
        kind = f"{dialect.LIST} {request.namespace or ''}"
        after = _after(request.cursor, kind)
        catalogue = await self._catalogue(view)
        page, more = catalogue.page(request.namespace, after, request.limit)
        kept = portion(page, _weight)
        page, more = (page, more) if len(kept) == len(page) else (kept, kept[-1])
        cursor = None if more is None else cursors.encode(kind, f"{more.manifest.name} {more.manifest.version.text}")
        return dialect.skill_list((entry.manifest for entry in page), request.detail, cursor)

    async def _describe(self, view: View, request: Description, _client: RpcClient) -> Result:
        entry = await self._find(await self._catalogue(view), request.name, request.version)
        frontmatter = None if request.detail == "manifest" else entry.frontmatter
        raw = await self._bytes(view, entry, SKILL_MD) if request.detail == "full" else None
        content = None if raw is None else raw.decode("utf-8", "replace")
        return dialect.skill_description(entry.manifest, frontmatter, content)

    async def _read(self, view: View, request: FileRequest, client: RpcClient) -> Result:
        entry = await self._find(await self._catalogue(view), request.name, request.version)
        about = _about(request.name, request.version) | {"path": clipped(request.path)}
        file = None if entry.skill is None else entry.skill.files.get(request.path)
        async with in_turn(0 if file is None else file.size, client.owner):
            raw = await self._bytes(view, entry, request.path)
            if raw is None:
                message = f"{request.name[:100]} has no file {request.path[:200]!r}"
                near = nearest(request.path, _paths(entry))
                raise CallError(printable(f"{message}; nearest: {', '.join(near)}" if near else message), about)
            text = media.as_text(raw, media.media_type(request.path))
            if text is None:
                raise CallError(printable(f"{request.path[:200]!r} is no text, and content is a string"), about)
            return dialect.content(text)

    async def _guide(self, _params: Mapping[str, Any], _client: RpcClient) -> Result:
        return dialect.content(guide.files()[SKILL_MD].decode("utf-8"))

    # Execution

    async def _execute(self, view: View, request: Execution, client: RpcClient) -> Result:
        entry = await self._find(await self._catalogue(view), request.name, request.version)
        if self._executor is None:
            return dialect.run(failed(dialect.DISABLED, _NO_SCRIPTS))
        if entry.skill is None:
            return dialect.run(failed("not_executable", f"{request.name} is an instruction; read it"))
        events.concerns([entry.skill])
        permissions = view.skill_set.permissions
        return dialect.run(
            await self._executor.run(entry.manifest, entry.skill, request, client.owner, permissions=permissions)
        )

    async def _run_code(self, view: View, request: CodeExecution, client: RpcClient) -> Result:
        executor = self._executor
        if executor is None or not self._settings.code:
            return dialect.run(failed(dialect.DISABLED, _NO_CODE if executor is not None else _NO_SCRIPTS))
        catalogue = await self._catalogue(view)
        entries = [await self._find(catalogue, name, None) for name in request.mount_skills]
        skills = {entry.manifest.name: entry.skill for entry in entries if entry.skill is not None}
        permissions = view.skill_set.permissions
        return dialect.run(await executor.run_code(request, skills, client.owner, permissions=permissions))

    async def _create_blob(self, params: Mapping[str, Any], client: RpcClient) -> Result:
        content, kind = dialect.blob_content(params)
        if self._executor is None:
            return dialect.refusal(dialect.DISABLED, _NO_SCRIPTS)
        raw = content.encode("utf-8")
        return dialect.blob_made(self._blobs.add(raw, kind, client.owner), len(raw))

    async def _read_blob(self, params: Mapping[str, Any], _client: RpcClient) -> Result:
        request = dialect.blob_request(params)
        if self._executor is None:
            return dialect.refusal(dialect.DISABLED, _NO_SCRIPTS)
        try:
            return dialect.blob_part(self._blobs.get(request.blob_id).raw, request)
        except RequestError as error:
            raise CallError(str(error), {"blob_id": clipped(request.blob_id)}) from None

    # What they share

    async def _loaded(self) -> None:
        loaded = self._registry.loaded
        if not loaded.is_set():
            await to_thread.run_sync(loaded.wait, _LOAD_PATIENCE_S, abandon_on_cancel=True)

    async def _catalogue(self, view: View) -> Catalogue:
        catalogues = self.catalogues
        if view.skill_set is not self._registry:
            catalogues = self._restricted.of(view.skill_set)
        known = catalogues.known(view.snapshot)
        return known or await off_loop(False, lambda: catalogues.make(view.snapshot, last=view.last_try))

    async def _find(self, catalogue: Catalogue, name: str, version: str | None) -> SkillVersion:
        """Return the skill of this name, in this version or the latest.

        Raises:
            CallError: there is none. The message has what there is.
        """
        there = catalogue.versions(name)
        if not there:
            # Among thousands of names it takes a while.
            near = await to_thread.run_sync(nearest, name, catalogue.names())
            hint = f"nearest: {', '.join(near)}" if near else f"{dialect.LIST} shows what there is"
            raise CallError(f"Unknown skill {printable(name[:100])!r}; {hint}", _about(name, version))
        found = there[-1] if version is None else next((e for e in there if e.manifest.version.text == version), None)
        if found is None:
            shown = ", ".join(entry.manifest.version.text for entry in there[-_VERSIONS_SHOWN:])
            message = f"{name} has no version {str(version)[:100]!r}; there is {shown}"
            raise CallError(printable(message), _about(name, version))
        return found

    async def _bytes(self, view: View, entry: SkillVersion, path: str) -> bytes | None:
        """Return the bytes of a file, None if the skill has no such file."""
        if entry.skill is None:
            return guide.files().get(path)
        return await view.read(entry.skill, path) if path in entry.skill.files else None


@dataclass(frozen=True, slots=True)
class _OfSkills(Generic[_R]):
    """A method that is answered from the skills.

    Attributes:
        parse: makes the request of the params. Raises CallError for params that do not fit.
        handle: answers it from a view.
    """

    parse: Callable[[Mapping[str, Any]], _R]
    handle: Callable[[Methods, View, _R, RpcClient], Awaitable[Result]]

    async def __call__(self, methods: Methods, params: Mapping[str, Any], client: RpcClient) -> Result:
        """Answer a call, once the skills were read."""
        return await methods.from_view(self.parse(params), self.handle, client)


_Work: TypeAlias = Callable[[Methods, Mapping[str, Any], RpcClient], Awaitable[Result]]
_TABLE: Final[dict[str, _Work]] = {
    dialect.LIST: _OfSkills(dialect.listing, Methods._list),  # pyright: ignore[reportPrivateUsage]
    dialect.DESCRIBE: _OfSkills(dialect.description, Methods._describe),  # pyright: ignore[reportPrivateUsage]
    dialect.READ: _OfSkills(dialect.file_request, Methods._read),  # pyright: ignore[reportPrivateUsage]
    dialect.EXECUTE: _OfSkills(dialect.execution, Methods._execute),  # pyright: ignore[reportPrivateUsage]
    dialect.RUN_CODE: _OfSkills(dialect.code_execution, Methods._run_code),  # pyright: ignore[reportPrivateUsage]
    dialect.CREATE_BLOB: Methods._create_blob,  # pyright: ignore[reportPrivateUsage]
    dialect.READ_BLOB: Methods._read_blob,  # pyright: ignore[reportPrivateUsage]
    dialect.GUIDE: Methods._guide,  # pyright: ignore[reportPrivateUsage]
}


def _after(cursor: str | None, kind: str) -> Key | None:
    """Return the key to go on after.

    Raises:
        CallError: the cursor is none of ours, or one of another list.
    """
    if cursor is None:
        return None
    try:
        found, key = cursors.decode(cursor)
    except RequestError:
        found, key = "", ""
    name, _, text = key.partition(" ")
    version = versions.parse(text)
    if found != kind or version is None:
        message = f"Invalid cursor {printable(cursor[:100])!r}; use the next_cursor of an earlier page of the same list"
        raise CallError(message)
    return name, version.key


def _about(name: str, version: str | None) -> dict[str, Json]:
    """Return what an error is about."""
    return {"name": clipped(name)} if version is None else {"name": clipped(name), "version": clipped(version)}


def _weight(entry: SkillVersion) -> int:
    """About how many bytes it takes in a list."""
    return _NAMES_BYTES + 6 * len(str(entry.manifest.fields["description"]))


def _paths(entry: SkillVersion) -> list[str]:
    return list(guide.files() if entry.skill is None else entry.skill.files)
