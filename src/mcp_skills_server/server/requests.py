"""Types of a handler's arguments, and a cache of recent list pages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast
from weakref import ref

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.access.quota import Owner, Streams
from mcp_skills_server.catalog.views import View
from mcp_skills_server.dialects import jsonrpc, table
from mcp_skills_server.errors import RequestError
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.model import Json, Snapshot, Standing

if TYPE_CHECKING:
    from mcp_skills_server.proposals.store import ProposalStore

Params: TypeAlias = Mapping[str, Any]
Result: TypeAlias = dict[str, Any]
UNREAD_SOURCES: Final = "mcp-skills-server/pending"
"""The key in a list's `_meta` for the names of sources that are still unread."""
_MAX_PAGES: Final = 32
_pages: Final[OrderedDict[Hashable, Page]] = OrderedDict()


async def _nothing_else(_: View) -> Served:
    return Served()


@dataclass(frozen=True, slots=True)
class Settings:
    """The operator's settings for MCP.

    Attributes:
        dialect: the dialect to speak; "auto" for all, each client in those that it can use.
        page_size: entries per page.
        prompt_page_size: prompts per page; some hosts show only the first page to their user.
        ttl_ms: time to live of results in clients' caches; 0, because edits take effect at once.
        tools: whether to offer the runtime tools, for hosts that show only tools to their model.
        prompts: whether to offer a prompt for each skill.
        prompt_choice: shell patterns for names or paths of the skills that become prompts, or ().
        preferred_tags: tags of the skills that come first in lists.
        preferred_paths: paths of further skills that come first, where no grants apply.
        streams: the open streams of all clients, of `subscriptions/listen` and of the page.
        proposals: the store of proposals; None to disable them.
        spoken: the dialects selected by `dialect`.
        least: the lowest standing of a listed skill.

    Raises:
        UsageError: the dialect is unknown.
    """

    dialect: str = table.AUTO
    page_size: int = 50
    prompt_page_size: int = 1000
    ttl_ms: int = 0
    tools: bool = True
    prompts: bool = True
    prompt_choice: tuple[str, ...] = ()
    preferred_tags: tuple[str, ...] = ()
    preferred_paths: tuple[str, ...] = ()
    streams: Streams = field(default_factory=Streams, compare=False)
    proposals: ProposalStore | None = None
    spoken: table.DialectSet = field(init=False, repr=False, compare=False)
    least: Standing = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spoken", table.select_dialects(self.dialect))
        object.__setattr__(self, "least", self.spoken.least)


class Caller(NamedTuple):
    """The client of a request.

    Attributes:
        extensions: the MCP extensions that it declared, with its settings.
        served: returns the server's other features for this caller.
        quota_owner: the owner charged for the request; None if callers are indistinguishable.
        connection: the connection of a legacy client; None for a stateless request.
        progress: reports the seconds since its request started.
        list_connection: the same, also of a modern client that has a pipe for itself: it knows
            when this client first got a list of skills, and which ones.
        client: the name of the host.
    """

    extensions: Mapping[str, Any] = MappingProxyType({})
    served: Callable[[View], Awaitable[Served]] = _nothing_else
    principal: Principal | None = None
    quota_owner: Owner | None = None
    connection: object | None = None
    progress: Callable[[float], Awaitable[None]] | None = None
    list_connection: object | None = None
    client: str | None = None

    @property
    def owner(self) -> str | None:
        """The principal's key, to which its sessions are bound; None without authentication."""
        if self.principal is None:
            return None
        return self.principal.key


def with_unread(result: Result, view: View) -> Result:
    """Add the names of unread sources to a list; a notification follows once they are read."""
    pending = view.skill_set.unread_sources()
    if pending:
        return {**result, "_meta": {UNREAD_SOURCES: pending}}
    return result


Handler: TypeAlias = Callable[[View, Settings, Caller, Params], Coroutine[Any, Any, Result]]


def given_arguments(params: Params) -> dict[str, Any]:
    """Return a request's `arguments` without those that are null, by default {}.

    Some clients, such as CrewAI's adapter, send null for each optional argument without a value.

    Raises:
        RequestError: they are not an object.
    """
    given = params.get("arguments")
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise RequestError("Parameter 'arguments' must be an object")
    values = cast("Mapping[str, Any]", given)
    return {name: value for name, value in values.items() if value is not None}


class Page(list[Json]):
    """An immutable page of list items with its cached JSON.

    Encoding 50 skills takes longer than all other work on their list request. `more` is the key
    from which the next page starts, that of the page's last item; None on the last page.
    """

    def __init__(self, items: Iterable[Json], more: str | None) -> None:
        super().__init__(items)
        self.more = more

    @cached_property
    def json(self) -> bytes:
        """The encoded page."""
        return jsonrpc.dump(self)


def cached_page(snapshot: Snapshot, *key: Hashable) -> Page | None:
    """Return a cached page of this snapshot, or None."""
    return _pages.get((ref(snapshot), *key))


def cache_page(page: Page, snapshot: Snapshot, *key: Hashable) -> None:
    """Cache a page in a FIFO of 32, keyed by a weak reference to its snapshot."""
    if len(_pages) >= _MAX_PAGES:
        _pages.popitem(last=False)
    _pages[ref(snapshot), *key] = page
