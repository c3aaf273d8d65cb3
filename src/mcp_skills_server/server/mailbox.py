"""What one client has yet to receive of notifications: each once, however slowly it reads."""

from __future__ import annotations

from asyncio import Event
from collections.abc import Callable, Iterable

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.server.notices import Notice


class Mailbox:
    """What one client has yet to receive, each notification once, in order.

    Args:
        wants: whether the client asked for a notification.
        principal: whom the client proved to be, None where nobody has to.

    Attributes:
        principal: as given.
    """

    def __init__(self, wants: Callable[[Notice], bool], principal: Principal | None = None) -> None:
        self.principal = principal
        self._wants = wants
        self._pending: dict[Notice, None] = {}
        self._changed = Event()
        self._closed = False

    def put(self, notices: Iterable[Notice]) -> None:
        """Owe the client those of the notices that it wants."""
        if not self._closed:
            self._pending |= dict.fromkeys(notice for notice in notices if self._wants(notice))
            self._changed.set()

    def close(self) -> None:
        """Take no more. What is owed can still be taken."""
        self._closed = True
        self._changed.set()

    async def take(self) -> Notice | None:
        """The next notice, or None when there will be no more."""
        while not self._pending:
            if self._closed:
                return None
            self._changed = Event()
            await self._changed.wait()
        # Out of the box before it is sent: what changes during a slow send is news again.
        notice = next(iter(self._pending))
        del self._pending[notice]
        return notice
