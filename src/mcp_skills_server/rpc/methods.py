"""The eight methods of the Skills Protocol, over a catalogue of skills by dotted name and version.

Only this package knows dotted names. Skills without a valid manifest have none, and a Problem.

Skills are looked up by name and version, files by exact path in their skill, so client text never
becomes a path. Absent and forbidden skills get the same message. Each call uses one view.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from anyio import to_thread

from mcp_skills_server.access.quota import QuotaError, Requester
from mcp_skills_server.catalog.path_map import join
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.threads import in_thread
from mcp_skills_server.catalog.views import View, Views, permissions_of, retry_when_stale
from mcp_skills_server.codes import problem
from mcp_skills_server.dialects import skills_protocol as dialect
from mcp_skills_server.dialects.jsonrpc import METHOD_NOT_FOUND, QUOTA_EXCEEDED
from mcp_skills_server.dialects.skills_protocol import GUIDE_SKILL, CodeExecution, Execution
from mcp_skills_server.errors import RequestError, clipped
from mcp_skills_server.format import cursors, media
from mcp_skills_server.format import manifest as manifests
from mcp_skills_server.format.cursors import first_page
from mcp_skills_server.format.manifest import SKILL_TOML, Findings, Manifest
from mcp_skills_server.format.nearest import nearest
from mcp_skills_server.model import SKILL_MD, Json, Problem, Skill, Snapshot, Standing, printable
from mcp_skills_server.rpc import guide
from mcp_skills_server.rpc.blobs import BlobStore
from mcp_skills_server.rpc.messages import CallError, failed
from mcp_skills_server.runtime.large_answers import limit_large_answers
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.telemetry import events

if TYPE_CHECKING:
    from mcp_skills_server.rpc.execution import Executor

logger = logging.getLogger(__name__)

Result: TypeAlias = "dict[str, Json]"
_R = TypeVar("_R")
_Handler: TypeAlias = "Callable[[Mapping[str, Any], Requester], Awaitable[Result]]"
_LOGGED_AT_ONCE: Final = 20
_MAX_LOGGED: Final = 10_000
_findings: Final[WeakKeyDictionary[Skill, Findings]] = WeakKeyDictionary()
"""Cached parse results of manifests."""

Key: TypeAlias = tuple[str, manifests.Key]
"""The sort key of a list: name, then ascending version."""

_LOAD_PATIENCE_S: Final = 60.0
_VERSIONS_SHOWN: Final = 20
_ENTRY_BYTES: Final = 400
"""The estimated bytes of a list entry without its description."""
_NO_SCRIPTS: Final = (
    "This server runs no code: its operator has not allowed it (--allow-scripts). Do the work by "
    "the skill's instructions, or ask the user"
)
_NO_CODE: Final = (
    "This server runs no code that comes with a call: its operator has not allowed it "
    "(--allow-code). Use the actions of its skills"
)


@dataclass(frozen=True, slots=True, eq=False)
class SkillVersion:
    """A version of a skill; `skill` has the files, and is None for the built-in one."""

    manifest: Manifest
    frontmatter: Mapping[str, Json]
    skill: Skill | None

    @property
    def key(self) -> Key:
        """The sort key."""
        return self.manifest.name, self.manifest.version.key


class Catalogue:
    """The skills of a snapshot by name and version, each of which has one entry."""

    def __init__(self, entries: Iterable[SkillVersion]) -> None:
        self._ordered = sorted(entries, key=lambda entry: entry.key)
        self._by_name: dict[str, list[SkillVersion]] = {}
        self._by_namespace: dict[str, list[SkillVersion]] = {}
        for entry in self._ordered:
            self._by_name.setdefault(entry.manifest.name, []).append(entry)
            self._by_namespace.setdefault(entry.manifest.namespace, []).append(entry)

    def page(
        self, namespace: str | None, after: Key | None, size: int
    ) -> tuple[list[SkillVersion], SkillVersion | None]:
        """Return at most `size` entries after a key, and the last of them if there are more."""
        entries, start = self._ordered, 0
        if namespace is not None:
            entries = self._by_namespace.get(namespace, [])
        if after is not None:
            start = bisect_right(entries, after, key=lambda entry: entry.key)
        chosen = entries[start : start + size]
        if start + size < len(entries):
            return chosen, chosen[-1]
        return chosen, None

    def versions(self, name: str) -> Sequence[SkillVersion]:
        """Return all versions of a skill, the latest last."""
        return self._by_name.get(name, ())

    def names(self) -> Iterable[str]:
        """Return the names of all skills."""
        return self._by_name


class CatalogueCache:
    """Cache of the catalogue of each snapshot in use, those of restricted views included."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._made: WeakKeyDictionary[Snapshot, Catalogue] = WeakKeyDictionary()
        self._logged: set[Problem] = set()

    def known(self, snapshot: Snapshot) -> Catalogue | None:
        """Return the cached catalogue of this snapshot, or None."""
        return self._made.get(snapshot)

    def make(self, view: View) -> Catalogue:
        """Return the catalogue of a view, reading each `skill.toml` that is not cached.

        Raises:
            OSError: a `skill.toml` changed.
        """
        snapshot = view.snapshot
        with self._lock:
            known = self.known(snapshot)
            if known is not None:
                return known
            problems: list[Problem] = []
            skills = [snapshot.skills[path] for path in snapshot.paths(Standing.LENIENT)]
            entries: dict[tuple[str, str], SkillVersion] = {}
            for skill in sorted(skills, key=lambda skill: (skill.root, skill.path)):
                reading = self._read(skill)
                problems += [self._placed(problem, skill) for problem in reading.problems]
                if reading.manifest is None:
                    continue
                name, version = reading.manifest.name, reading.manifest.version.text
                # a later version would replace the built-in one
                if name == GUIDE_SKILL:
                    taken = f"{GUIDE_SKILL} is the name of the built-in skill"
                    problems.append(self._hidden(skill, taken))
                elif (name, version) in entries:
                    taken = f"{name} {version} is also that of another skill"
                    problems.append(self._hidden(skill, taken))
                else:
                    entry = SkillVersion(reading.manifest, skill.frontmatter, skill)
                    entries[name, version] = entry
            described, fields = guide.described()
            catalogue = Catalogue([SkillVersion(described, fields, None), *entries.values()])
            self._log(problems, is_whole=permissions_of(view.skill_set) is None)
            self._made[snapshot] = catalogue
            return catalogue

    def _read(self, skill: Skill) -> Findings:
        if skill in _findings:
            return _findings[skill]
        file, raw = skill.files.get(SKILL_TOML), None
        if file is not None:
            try:
                raw = self._registry.read(file)
            except OSError as error:
                if file.digest:
                    raise
                message = f"the file cannot be read ({error.strerror})"
                return Findings(None, (problem("unreadable", message),))
        reading = _findings[skill] = manifests.read(raw, skill.frontmatter, skill.path, skill.files)
        return reading

    def _hidden(self, skill: Skill, message: str) -> Problem:
        hint = "give it another name or version; until then the Skills Protocol does not serve it"
        return self._placed(problem("shadowed", message, hint=hint), skill)

    def _placed(self, reported: Problem, skill: Skill) -> Problem:
        file = SKILL_TOML if SKILL_TOML in skill.files else SKILL_MD
        root = self._registry.roots[skill.root]
        return reported.at(root.show(join(skill.directory, file)), skill.path)

    def _log(self, problems: list[Problem], *, is_whole: bool) -> None:
        problems.sort(key=lambda problem: (problem.path, problem.line or 0, problem.code))
        fresh = [problem for problem in problems if problem not in self._logged]
        if is_whole or len(self._logged) > _MAX_LOGGED:
            self._logged.clear()  # a problem that comes back is logged again
        self._logged.update(problems)
        for reported in fresh[:_LOGGED_AT_ONCE]:
            logger.warning("%s", reported)
        if len(fresh) > _LOGGED_AT_ONCE:
            logger.warning("and %d more problems with manifests", len(fresh) - _LOGGED_AT_ONCE)


class Methods:
    """The stateless method table over one runtime.

    Args:
        allow_code: allow code in `run_code`, if scripts are allowed.
        views: the skills of each principal; None if all have all.
    """

    def __init__(
        self,
        runtime: Runtime,
        allow_code: bool = False,
        blobs: BlobStore | None = None,
        views: Views | None = None,
    ) -> None:
        self._registry = runtime.registry
        self._views = views or Views(runtime.registry)
        self._blobs = BlobStore() if blobs is None else blobs
        self._allow_code = allow_code
        self._executor: Executor | None = None
        self._table: dict[str, _Handler] = {
            dialect.LIST: partial(self._from_view, dialect.listing, self._list),
            dialect.DESCRIBE: partial(self._from_view, dialect.description, self._describe),
            dialect.READ: partial(self._from_view, dialect.file_request, self._read),
            dialect.EXECUTE: partial(self._from_view, dialect.execution, self._execute),
            dialect.RUN_CODE: partial(self._from_view, dialect.code_execution, self._run_code),
            dialect.CREATE_BLOB: self._create_blob,
            dialect.READ_BLOB: self._read_blob,
            dialect.GUIDE: self._guide,
        }
        self.catalogues = CatalogueCache(runtime.registry)
        if runtime.scripts is not None:
            from mcp_skills_server.rpc.execution import Executor

            self._executor = Executor(runtime.scripts, self._blobs)

    async def call(self, method: str, params: Mapping[str, Any], client: Requester) -> Result:
        """Handle one call.

        Raises:
            CallError: the method is unknown, or its params cannot be served.
        """
        work = self._table.get(method)
        if work is None:
            known = ", ".join(dialect.METHODS)
            message = f"Method not found: {printable(method[:100])!r}; known: {known}"
            raise CallError(message, code=METHOD_NOT_FOUND)
        try:
            return await work(params, client)
        except CallError:
            raise
        except QuotaError as error:
            raise CallError(str(error), {"quota": error.quota}, QUOTA_EXCEEDED) from None
        except RequestError as error:
            raise CallError(str(error)) from None

    async def _from_view(
        self,
        parse: Callable[[Mapping[str, Any]], _R],
        handle: Callable[[View, _R, Requester], Awaitable[Result]],
        params: Mapping[str, Any],
        client: Requester,
    ) -> Result:
        """Handle a call over the current view, after the first scan."""
        request = parse(params)
        loaded = self._registry.loaded
        if not loaded.is_set():
            await to_thread.run_sync(loaded.wait, _LOAD_PATIENCE_S, abandon_on_cancel=True)
        return await retry_when_stale(
            self._views.for_principal(client.principal), lambda view: handle(view, request, client)
        )

    # Discovery

    async def _list(self, view: View, request: dialect.Listing, _client: Requester) -> Result:
        kind = f"{dialect.LIST} {request.namespace or ''}"
        after = _after(request.cursor, kind)
        catalogue = await self._catalogue(view)
        page, more = catalogue.page(request.namespace, after, request.limit)
        kept = first_page(page, _weight)
        if len(kept) < len(page):
            more = kept[-1]
        cursor = None
        if more is not None:
            cursor = cursors.encode(kind, f"{more.manifest.name} {more.manifest.version.text}")
        return dialect.skill_list((entry.manifest for entry in kept), request.detail, cursor)

    async def _describe(
        self, view: View, request: dialect.Description, _client: Requester
    ) -> Result:
        entry = await self._find(await self._catalogue(view), request.name, request.version)
        frontmatter = content = None
        if request.detail != "manifest":
            frontmatter = entry.frontmatter
        if request.detail == "full":
            raw = await self._bytes(view, entry, SKILL_MD)
            content = (raw or b"").decode("utf-8", "replace")
        return dialect.skill_description(entry.manifest, frontmatter, content)

    async def _read(self, view: View, request: dialect.FileRequest, client: Requester) -> Result:
        entry = await self._find(await self._catalogue(view), request.name, request.version)
        about = _error_data(request.name, request.version) | {"path": clipped(request.path)}
        file = None if entry.skill is None else entry.skill.files.get(request.path)
        async with limit_large_answers(0 if file is None else file.size, client.owner):
            raw = await self._bytes(view, entry, request.path)
            if raw is None:
                message = f"{request.name[:100]} has no file {request.path[:200]!r}"
                files = guide.files() if entry.skill is None else entry.skill.files
                near = nearest(request.path, files)
                if near:
                    message += f"; nearest: {', '.join(near)}"
                raise CallError(printable(message), about)
            text = media.as_text(raw, media.media_type(request.path))
            if text is None:
                raise CallError(printable(f"{request.path[:200]!r} is not a text file"), about)
            return dialect.content(text)

    async def _guide(self, _params: Mapping[str, Any], _client: Requester) -> Result:
        return dialect.content(guide.files()[SKILL_MD].decode("utf-8"))

    # Execution

    async def _execute(self, view: View, request: Execution, client: Requester) -> Result:
        entry = await self._find(await self._catalogue(view), request.name, request.version)
        if self._executor is None:
            return dialect.run(failed(dialect.DISABLED, _NO_SCRIPTS))
        if entry.skill is None:
            message = f"{request.name} is an instruction; read it"
            return dialect.run(failed("not_executable", message))
        events.record_mentions([entry.skill])
        allowed = permissions_of(view.skill_set)
        done = await self._executor.run(
            entry.manifest, entry.skill, request, client.owner, permissions=allowed
        )
        return dialect.run(done)

    async def _run_code(self, view: View, request: CodeExecution, client: Requester) -> Result:
        executor = self._executor
        if executor is None:
            return dialect.run(failed(dialect.DISABLED, _NO_SCRIPTS))
        if not self._allow_code:
            return dialect.run(failed(dialect.DISABLED, _NO_CODE))
        catalogue = await self._catalogue(view)
        entries = [await self._find(catalogue, name, None) for name in request.mount_skills]
        skills = {entry.manifest.name: entry.skill for entry in entries if entry.skill is not None}
        allowed = permissions_of(view.skill_set)
        done = await executor.run_code(request, skills, client.owner, permissions=allowed)
        return dialect.run(done)

    async def _create_blob(self, params: Mapping[str, Any], client: Requester) -> Result:
        content = dialect.blob_content(params)
        if self._executor is None:
            return dialect.refusal(dialect.DISABLED, _NO_SCRIPTS)
        raw = content.encode("utf-8")
        return dialect.blob_made(self._blobs.add(raw, client.owner), len(raw))

    async def _read_blob(self, params: Mapping[str, Any], _client: Requester) -> Result:
        request = dialect.blob_request(params)
        if self._executor is None:
            return dialect.refusal(dialect.DISABLED, _NO_SCRIPTS)
        try:
            return dialect.blob_part(self._blobs.get(request.blob_id), request)
        except RequestError as error:
            raise CallError(str(error), {"blob_id": clipped(request.blob_id)}) from None

    # Helpers

    async def _catalogue(self, view: View) -> Catalogue:
        known = self.catalogues.known(view.snapshot)
        return known or await in_thread(self.catalogues.make, view)

    async def _find(self, catalogue: Catalogue, name: str, version: str | None) -> SkillVersion:
        """Return a skill in this or the latest version; CallError suggests others."""
        versions = catalogue.versions(name)
        if not versions:
            # In a thread, because thousands of names take a while.
            near = await to_thread.run_sync(nearest, name, catalogue.names())
            hint = f"{dialect.LIST} lists all skills"
            if near:
                hint = f"nearest: {', '.join(near)}"
            message = f"Unknown skill {printable(name[:100])!r}; {hint}"
            raise CallError(message, _error_data(name, version))
        if version is None:
            return versions[-1]
        chosen = next((entry for entry in versions if entry.manifest.version.text == version), None)
        if chosen is None:
            latest = versions[-_VERSIONS_SHOWN:]
            shown = ", ".join(entry.manifest.version.text for entry in latest)
            message = f"{name} has no version {version[:100]!r}; known: {shown}"
            raise CallError(printable(message), _error_data(name, version))
        return chosen

    async def _bytes(self, view: View, entry: SkillVersion, path: str) -> bytes | None:
        """Return the bytes of a file, or None if the skill has no such file."""
        if entry.skill is None:
            return guide.files().get(path)
        if path not in entry.skill.files:
            return None
        return await view.read(entry.skill, path)


def _after(cursor: str | None, kind: str) -> Key | None:
    """Decode a cursor of the list `kind`; CallError for any other cursor."""
    if cursor is None:
        return None
    try:
        fields, key = cursors.decode(cursor)
    except RequestError:
        fields, key = "", ""
    name, _, text = key.partition(" ")
    version = manifests.parse_version(text)
    if fields != kind or version is None:
        hint = "use the next_cursor of an earlier page of the same list"
        raise CallError(f"Invalid cursor {printable(cursor[:100])!r}; {hint}")
    return name, version.key


def _error_data(name: str, version: str | None) -> dict[str, Json]:
    """Return error data with the skill's name and version."""
    about: dict[str, Json] = {"name": clipped(name)}
    if version is not None:
        about["version"] = clipped(version)
    return about


def _weight(entry: SkillVersion) -> int:
    """Estimate the bytes of a list entry."""
    return _ENTRY_BYTES + 6 * len(str(entry.manifest.fields["description"]))
