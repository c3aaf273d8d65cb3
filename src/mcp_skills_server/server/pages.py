"""Cache of the pages of lists."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Final
from weakref import ref

from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.format.cursors import portion, weight
from mcp_skills_server.model import Json, Skill, Snapshot
from mcp_skills_server.server.requests import Settings

_MOST_PAGES: Final = 32
_pages: Final[OrderedDict[Hashable, Page]] = OrderedDict()


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
    """Keep a page for as long as there is the snapshot, and no more than a few others; return it."""
    if len(_pages) >= _MOST_PAGES:
        _pages.popitem(last=False)
    _pages[ref(snapshot), *key] = page
    return page


def page_of(snapshot: Snapshot, settings: Settings, after: str | None) -> tuple[list[Skill], str | None]:
    """Return the skills of a page, and the path to go on from: fewer than `page_size` where they are large."""
    page, more = snapshot.page(after, settings.page_size, settings.least)
    kept = portion(page, weight)
    if len(kept) == len(page):
        return page, more
    return kept, kept[-1].path
