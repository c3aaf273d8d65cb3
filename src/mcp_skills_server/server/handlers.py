"""One function per method: (registry, caller, params) -> dict.

Each binds the snapshot once, looks things up in it and has a dialect write the answer. No SDK here, so that another
front calls the same functions.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

from anyio import to_thread

from mcp_skills_server.catalog.answer import answer, in_turn, off_loop, read
from mcp_skills_server.catalog.answer import body as read_body
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.dialects import resources, sep2076, sep2640
from mcp_skills_server.errors import REPEATS, NotServedError, RequestError, StaleFileError, clipped
from mcp_skills_server.format import arguments, cursors, identity, uris
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.format.portions import portion, weight
from mcp_skills_server.format.uris import LONGEST, SCHEME, TEMPLATE, segments, uri
from mcp_skills_server.model import Changes, Json, Skill, Snapshot, Standing
from mcp_skills_server.runtime.quota import Owner

logger = logging.getLogger(__name__)

Dialect: TypeAlias = Literal["auto", "sep-2076", "sep-2640"]
Params: TypeAlias = Mapping[str, Any]
Result: TypeAlias = dict[str, Any]
_DEPENDENCIES: Final = "dependencies"
_UNION: Final = "union"
_DIRECTORY: Final = "directory"


async def _nothing_else() -> Served:
    return Served()


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator chose.

    Attributes:
        dialect: "auto" tells both dialects, to each client what it can take; the others pin one.
        page_size: entries of one page.
        prompt_page_size: prompts of one page; some hosts show their user the first page alone.
        ttl_ms: how long a client may keep an answer; 0 because an edit shows at once.
        tools: offer the runtime tools, for hosts that show their model tools only.
        prompts: offer a prompt for each skill.
        prompt_choice: patterns of the names or paths of skills that appear as prompts; none for all.
    """

    dialect: Dialect = "auto"
    page_size: int = 50
    prompt_page_size: int = 1000
    ttl_ms: int = 0
    tools: bool = True
    prompts: bool = True
    prompt_choice: tuple[str, ...] = ()

    @property
    def least(self) -> Standing:
        """The standing a skill needs to be shown (S40-5, X-2)."""
        return Standing.LENIENT if self.dialect == sep2076.NAME else Standing.VALID


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks.

    Attributes:
        modern: speaks 2026-07-28 or later.
        declares_skills: declared the extension `io.modelcontextprotocol/skills`.
        served: what else the server serves to this caller.
        owner: whom the caller proved to be, None where nobody has to.
        counted: among whose things counts what the caller opens, None where callers are not told apart.
        connection: what its requests have in common, None where a request stands alone (MCP-10).
        progress: tells the caller for how many seconds its request has been at work.
        audience: who was told of the skills in one place: the connection, or the one client of a pipe. None where
            requests stand alone.
        client: what the host calls itself.
    """

    modern: bool
    declares_skills: bool
    served: Callable[[], Awaitable[Served]] = _nothing_else
    owner: str | None = None
    counted: Owner = None
    connection: object | None = None
    progress: Callable[[float], Awaitable[None]] | None = None
    audience: object | None = None
    client: str | None = None


async def list_skills(registry: Registry, settings: Settings, caller: Caller, params: Params) -> Result:
    """`skills/list` (S76-4, S76-5, S40-12, S40-20, X-9)."""
    entry = _entry_maker(registry, settings, caller)

    async def ask(snapshot: Snapshot, last_try: bool) -> Result:
        after = cursors.key_of(params, "skills")
        page, more = _page(snapshot, settings, after)
        unproved = [skill for skill in page if sep2640.NAME not in skill.memo and not _is_proved(skill)]
        if unproved and settings.dialect != sep2076.NAME:
            await to_thread.run_sync(_prove, registry, unproved)
        entries: list[Json] = []
        for skill in page:
            try:
                entries.append(await _whole(registry, entry, snapshot, skill, last=last_try))
            except StaleFileError as stale:
                if not last_try:
                    raise
                logger.warning("%s is left out of the listing: %s", skill.path, stale, extra=REPEATS)
        return _framed(settings, sep2076.listing(entries, cursors.encode("skills", more)))

    return await answer(registry, ask)


def _page(snapshot: Snapshot, settings: Settings, after: str | None) -> tuple[list[Skill], str | None]:
    """The skills of a page, and the path to go on from: fewer than `page_size` where they are large."""
    page, more = snapshot.page(after, settings.page_size, settings.least)
    kept = portion(page, weight)
    return (page, more) if len(kept) == len(page) else (kept, kept[-1].path)


async def get_skill(registry: Registry, settings: Settings, caller: Caller, params: Params) -> Result:
    """`skills/get`: by `uri` SEP-2640's answer, by `name` SEP-2076's; with both, `uri` counts (X-8, S40-23, S76-6)."""
    pinned = settings.dialect
    by_uri = pinned != sep2076.NAME and "uri" in params
    wanted = "uri" if by_uri or pinned == sep2640.NAME else "name"
    target = params.get(wanted)
    if not isinstance(target, str):
        also = " or 'uri'" if pinned == "auto" and "name" not in params else ""
        said = "must be a string" if wanted in params else "is missing"
        raise RequestError(f"Parameter {wanted!r}{also} {said}")
    if wanted == "uri":
        entry = _entry_maker(registry, settings, caller)

        async def by_its_uri(snapshot: Snapshot, last_try: bool) -> Result:
            skill = sep2640.find(snapshot, target)
            return _framed(settings, sep2640.one(await _whole(registry, entry, snapshot, skill, last=last_try)))

        return await _answer_or_refuse(registry, by_its_uri, target)
    given = given_arguments(params)

    async def by_name(snapshot: Snapshot, last_try: bool) -> Result:
        skill = identity.find(snapshot, target, settings.least)
        body = await read_body(registry, skill, last=last_try)
        text = arguments.fill_in(body.text, arguments.declared(skill.frontmatter), given, target)
        served = await _served(caller, skill)
        return sep2076.definition(skill, snapshot, served, settings.least, instructions=text, linked=body.linked)

    return await _answer_or_refuse(registry, by_name, target)


async def list_resources(registry: Registry, settings: Settings, _: Caller, params: Params) -> Result:
    """`resources/list`: every SKILL.md (S40-10, S40-11)."""
    after = cursors.key_of(params, "resources")
    page, more = _page(registry.snapshot, settings, after)
    return resources.listing([_descriptor(skill) for skill in page], cursors.encode("resources", more), settings.ttl_ms)


async def list_templates(_registry: Registry, settings: Settings, _: Caller, params: Params) -> Result:
    """`resources/templates/list`."""
    if cursors.key_of(params, "templates") is not None:
        raise RequestError("Invalid cursor: the list of templates has one page")
    return resources.template_listing(settings.ttl_ms)


async def read_resource(registry: Registry, settings: Settings, caller: Caller, params: Params) -> Result:
    """`resources/read`: the exact bytes of a file of a served skill (S76-12, S40-30, MCP-17, MCP-55).

    Raises:
        NotServedError: there is no such file, or it is not for everybody.
    """
    target = str(params["uri"])

    async def ask(snapshot: Snapshot, last_try: bool) -> Result:
        found = uris.find(snapshot, target, settings.least)
        if found is None:
            raise NotServedError(target)
        skill, path = found
        file = skill.files[path]
        async with in_turn(file.size, caller.counted):
            raw = await read(registry, file, last=last_try)
            return resources.contents(target, path, raw, settings.ttl_ms)

    try:
        return await answer(registry, ask)
    except StaleFileError as stale:
        logger.warning("cannot be read: %s", stale, extra=REPEATS)
        raise NotServedError(target) from None


async def read_directory(registry: Registry, settings: Settings, _: Caller, params: Params) -> Result:
    """`resources/directory/read`: the direct children of a directory of a skill, or of a prefix (S40-27...29)."""
    target = params.get("uri")
    if not isinstance(target, str):
        raise RequestError("Parameter 'uri' must be a string")
    parts = segments(target)
    snapshot = registry.snapshot
    children = snapshot.children(parts, settings.least) if parts else None
    if parts is None or children is None:
        raise RequestError(f"Not a directory: {clipped(target)}")
    kind = f"directory {'/'.join(parts)}"
    after = cursors.key_of(params, kind)
    names = [name for name in sorted(children) if after is None or name > after]
    page = names[: settings.page_size]
    more = page[-1] if len(names) > len(page) else None
    out: list[Json] = []
    for name in page:
        found = children[name]
        title = identity.title(found[0]) if found else None
        out.append(resources.child(name, uri(parts[0], "/".join((*parts[1:], name))), found, title))
    return resources.listing(out, cursors.encode(kind, more), settings.ttl_ms)


async def complete(registry: Registry, settings: Settings, _: Caller, params: Params) -> Result:
    """`completion/complete` for the path of the resource template: paths of files, as the template takes them."""
    reference, argument = params["ref"], params["argument"]
    if (reference.get("type"), reference.get("uri")) != ("ref/resource", TEMPLATE):
        raise RequestError(f"Nothing to complete for {json.dumps(reference)[:200]}; known: the template {TEMPLATE}")
    if argument["name"] != "path":
        raise RequestError(f"The template has no variable {argument['name'][:100]!r}; it has 'path'")
    return resources.completion(_completions(registry.snapshot, str(argument["value"]), settings.least))


def _completions(snapshot: Snapshot, begun: str, least: Standing) -> Iterator[str]:
    """Paths that begin so, and those of skills whose name does."""
    if len(begun) > LONGEST:
        return
    for path in snapshot.paths(least):
        skill = snapshot.skills[path]
        named = skill.name.startswith(begun)
        directory: str | None = skill.memo.get(_DIRECTORY)
        if directory is None:
            directory = skill.memo[_DIRECTORY] = uri(path).removeprefix(SCHEME)
        if named or directory.startswith(begun[: len(directory)]):
            for file_path in skill.files:
                each = uri(path, file_path).removeprefix(SCHEME)
                if named or each.startswith(begun):
                    yield each


def canonical(registry: Registry, settings: Settings, target: str) -> str | None:
    """This URI as notifications have it, or None if `resources/read` would not know it."""
    found = uris.find(registry.snapshot, target, settings.least)
    return None if found is None else uri(found[0].path, found[1])


def is_served(registry: Registry, settings: Settings, target: str) -> bool:
    """Whether `resources/read` would know this URI."""
    return canonical(registry, settings, target) is not None


def is_our_template(reference: Any) -> bool:
    """Whether `completion/complete` is about the template of skill files; takes the SDK's reference object."""
    return getattr(reference, "uri", None) == TEMPLATE


def notices(changes: Changes, settings: Settings) -> list[tuple[str, str | None]]:
    """What clients may be told of these changes: (notification method, URI or None). Never data, only "refetch"."""
    least = settings.least
    before = {path: skill for path, skill in changes.before.items() if skill.standing >= least}
    after = {path: skill for path, skill in changes.after.items() if skill.standing >= least}
    out: list[tuple[str, str | None]] = []
    changed = {path for path, _ in changes.files}
    told = settings.dialect != sep2640.NAME  # which has no such notification (S40-33)
    if told and (before.keys() != after.keys() or changed & before.keys()):
        out.append((sep2076.LIST_CHANGED, None))
    if {path: _descriptor(skill) for path, skill in before.items()} != {
        path: _descriptor(skill) for path, skill in after.items()
    }:
        out.append((resources.LIST_CHANGED, None))
    for path, file_path in sorted(changes.files):
        if path in before or path in after:
            out.append((resources.UPDATED, uri(path, file_path)))
    return out


def _descriptor(skill: Skill) -> dict[str, Json]:
    return resources.descriptor(skill, identity.title(skill))


async def _whole(
    registry: Registry,
    entry: Callable[[Snapshot, Skill], Awaitable[Json]],
    snapshot: Snapshot,
    skill: Skill,
    *,
    last: bool,
) -> Json:
    """The entry of a skill; on the last try that of its last whole state, where a file of it is being rewritten.

    Raises:
        StaleFileError: a file changed since its scan, or cannot be read.
    """
    try:
        return await entry(snapshot, skill)
    except StaleFileError as stale:
        before = registry.last_proved(skill) if last and stale.in_motion else None
        if before is None:
            raise
        return await entry(snapshot, before)


def _entry_maker(
    registry: Registry, settings: Settings, caller: Caller
) -> Callable[[Snapshot, Skill], Awaitable[Json]]:
    """How an entry looks to this caller (X-9): SEP-2076's, SEP-2640's, or the union of both."""
    pure = settings.dialect == sep2640.NAME or caller.declares_skills

    async def classic(snapshot: Snapshot, skill: Skill) -> dict[str, Json]:
        name = identity.name_of(skill, snapshot, settings.least)
        entry: dict[str, Json] | None = skill.memo.get(sep2076.NAME)
        if entry is None or entry["name"] != name or _DEPENDENCIES in skill.frontmatter:
            served = await _served(caller, skill)
            entry = skill.memo[sep2076.NAME] = sep2076.entry(skill, snapshot, served, settings.least)
        return entry

    async def released(skill: Skill) -> dict[str, Json]:
        entry: dict[str, Json] | None = skill.memo.get(sep2640.NAME)
        if entry is None:
            digests = await off_loop(_is_proved(skill), _digests, registry, skill)
            entry = skill.memo[sep2640.NAME] = sep2640.entry(skill, digests)
        return entry

    async def entry(snapshot: Snapshot, skill: Skill) -> Json:
        if settings.dialect == sep2076.NAME:
            return await classic(snapshot, skill)
        mine = await released(skill)
        if pure:
            return mine
        theirs = await classic(snapshot, skill)
        both: tuple[object, Json] = skill.memo.get(_UNION, (None, None))
        if both[0] is not theirs:
            both = skill.memo[_UNION] = (theirs, mine | theirs)
        return both[1]

    return entry


async def _served(caller: Caller, skill: Skill) -> Served:
    """What else is served, which only a skill with dependencies needs to know."""
    return await caller.served() if _DEPENDENCIES in skill.frontmatter else Served()


def _prove(registry: Registry, skills: list[Skill]) -> None:
    for skill in skills:
        registry.hash_files(skill)


def _is_proved(skill: Skill) -> bool:
    return all(file.digest is not None for file in skill.files.values())


def _digests(registry: Registry, skill: Skill) -> dict[str, str]:
    return {path: registry.digest(file) for path, file in skill.files.items()}


def _framed(settings: Settings, result: Result) -> Result:
    return result if settings.dialect == sep2076.NAME else sep2640.framed(result, settings.ttl_ms)


async def _answer_or_refuse(
    registry: Registry, ask: Callable[[Snapshot, bool], Awaitable[Result]], target: str
) -> Result:
    try:
        return await answer(registry, ask)
    except StaleFileError as stale:
        logger.warning("cannot be read: %s", stale, extra=REPEATS)
        raise RequestError(f"Unknown skill: {clipped(target)!r}; a file of it cannot be read") from None


def given_arguments(params: Params) -> Mapping[str, Any]:
    """What a request gives for the arguments of a skill.

    Raises:
        RequestError: it is no object.
    """
    given = params.get("arguments")
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise RequestError("Parameter 'arguments' must be an object")
    return cast("Mapping[str, Any]", given)
