"""The arguments of a handler, and the pages of lists: a cache of those that were asked for
lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast
from weakref import ref

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.views import View
from mcp_skills_server.dialects import jsonrpc, table
from mcp_skills_server.errors import RequestError
from mcp_skills_server.format.cursors import portion, weight
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.model import Json, Skill, Snapshot, Standing
from mcp_skills_server.runtime.quota import Owner

if TYPE_CHECKING:
    from mcp_skills_server.proposals.store import ProposalStore

Params: TypeAlias = Mapping[str, Any]
Result: TypeAlias = dict[str, Any]
PENDING: Final = "mcp-skills-server/pending"
"""Under which key of a list's `_meta` are the sources of which nothing was read yet."""
_MOST_PAGES: Final = 32
_pages: Final[OrderedDict[Hashable, Page]] = OrderedDict()


async def _nothing_else(_: View) -> Served:
    return Served()


@dataclass(frozen=True, slots=True)
class Settings:
    """The operator's choices for MCP.

    Attributes:
        dialect: the dialect that is spoken; "auto" for all of them, to each client what it can
            take.
        page_size: entries of one page.
        prompt_page_size: prompts of one page; some hosts show their user the first page alone.
        ttl_ms: how long a client may keep an answer; 0 because an edit shows at once.
        tools: offer the runtime tools, for hosts that show their model tools only.
        prompts: offer a prompt for each skill.
        prompt_choice: patterns of the names or paths of skills that appear as prompts; none for
            all.
        streams: `subscriptions/listen` streams of one client at once; None for a quarter of all.
        proposals: keeps what callers propose; None where nothing may be proposed.
        spoken: the dialects that `dialect` stands for.
        least: the standing that a skill needs to be shown.

    Raises:
        UsageError: there is no such dialect.
    """

    dialect: str = table.AUTO
    page_size: int = 50
    prompt_page_size: int = 1000
    ttl_ms: int = 0
    tools: bool = True
    prompts: bool = True
    prompt_choice: tuple[str, ...] = ()
    streams: int | None = None
    proposals: ProposalStore | None = None
    spoken: table.Spoken = field(init=False, repr=False, compare=False)
    least: Standing = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spoken", table.spoken(self.dialect))
        object.__setattr__(self, "least", self.spoken.least)


class Caller(NamedTuple):
    """The client of a request.

    Attributes:
        extensions: the extensions of MCP that the client declared, with its settings of each.
        served: returns what else the server serves to this caller.
        principal: the proved identity, None where none is required.
        counted: the owner whose quota counts what the caller opens, None where callers cannot be
            distinguished.
        connection: the connection of a legacy client, None where a request stands alone.
        progress: reports to the caller for how many seconds its request has been at work.
        audience: the connection whose client saw the first list of skills. None where requests
            stand alone.
        client: what the host calls itself.
    """

    extensions: Mapping[str, Any] = MappingProxyType({})
    served: Callable[[View], Awaitable[Served]] = _nothing_else
    principal: Principal | None = None
    counted: Owner = None
    connection: object | None = None
    progress: Callable[[float], Awaitable[None]] | None = None
    audience: object | None = None
    client: str | None = None

    @property
    def owner(self) -> str | None:
        """The key that the caller's sessions are bound to, None where no identity is required."""
        if self.principal is None:
            return None
        return self.principal.key


def with_pending(result: Result, view: View) -> Result:
    """Return a list with the names of the sources that are not in it yet; a notification follows
    when they are."""
    pending = view.skill_set.unread_sources()
    if pending:
        return {**result, "_meta": {PENDING: pending}}
    return result


Handler: TypeAlias = Callable[[View, Settings, Caller, Params], Coroutine[Any, Any, Result]]


def given_arguments(params: Params) -> Mapping[str, Any]:
    """Return what a request gives for the arguments of a skill.

    Raises:
        RequestError: it is no object.
    """
    given = params.get("arguments")
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise RequestError("Parameter 'arguments' must be an object")
    return cast("Mapping[str, Any]", given)


class Page(list[Json]):
    """The items of a page, and their JSON, which is written once. Do not change them.

    To write 50 skills takes longer than all else about the request that lists them.

    Attributes:
        more: the key to go on from, None at the end of the list.
    """

    __slots__ = ("_json", "more")

    def __init__(self, items: Iterable[Json], more: str | None) -> None:
        super().__init__(items)
        self.more = more
        self._json: bytes | None = None

    @property
    def json(self) -> bytes:
        """The page as it is sent."""
        if self._json is None:
            self._json = jsonrpc.dump(list(self))
        return self._json


def kept_page(snapshot: Snapshot, *key: Hashable) -> Page | None:
    """Return a page of this snapshot if it was asked for lately."""
    return _pages.get((ref(snapshot), *key))


def keep_page(page: Page, snapshot: Snapshot, *key: Hashable) -> Page:
    """Keep a page for as long as there is the snapshot, and no more than a few others; return
    it."""
    if len(_pages) >= _MOST_PAGES:
        _pages.popitem(last=False)
    _pages[ref(snapshot), *key] = page
    return page


def page_of(
    snapshot: Snapshot, settings: Settings, after: str | None
) -> tuple[list[Skill], str | None]:
    """Return the skills of a page, and the path to go on from: fewer than `page_size` where they
    are large."""
    page, more = snapshot.page(after, settings.page_size, settings.least)
    kept = portion(page, weight)
    if len(kept) == len(page):
        return page, more
    return kept, kept[-1].path
