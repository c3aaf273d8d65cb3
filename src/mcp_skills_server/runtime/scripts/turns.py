"""Whose turn it is to run a script: so many at once, of which one owner has a part, and who has least comes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import anyio

from mcp_skills_server.errors import RequestError
from mcp_skills_server.runtime.quota import Owner, QuotaError

_QUOTA: Final = "runs"


class _Waiting:
    """A run that waits for its turn."""

    def __init__(self, owner: Owner) -> None:
        self.owner: Final = owner
        self.begins = anyio.Event()


class Turns:
    """The turns of one server, on one event loop.

    Args:
        total: runs at once.
        share: runs of one owner at once; by default all but one, so that another's needs to wait for none of them.
    """

    def __init__(self, total: int, share: int | None = None) -> None:
        self.total: Final = total
        self.share: Final = min(total, max(1, total - 1) if share is None else share)
        self._held = Counter[Owner]()
        self._taken = 0
        self._waiting: list[_Waiting] = []

    @asynccontextmanager
    async def turn(self, owner: Owner, patience_s: float) -> AsyncGenerator[None]:
        """Wait for a turn, and have it while this is entered.

        Args:
            owner: whose run it is; None where clients cannot be distinguished, and then it may have all turns.
            patience_s: seconds that it waits.

        Raises:
            QuotaError: the owner's own runs took longer than that.
            RequestError: those of others did.
        """
        await self._begin(owner, patience_s)
        try:
            yield
        finally:
            self._end(owner)

    async def _begin(self, owner: Owner, patience_s: float) -> None:
        mine = _Waiting(owner)
        self._waiting.append(mine)
        self._give()
        try:
            with anyio.move_on_after(patience_s):
                await mine.begins.wait()
        except BaseException:  # the call is given up
            if mine.begins.is_set():
                self._end(owner)
            else:
                self._waiting.remove(mine)
            raise
        if mine.begins.is_set():
            return
        self._waiting.remove(mine)
        if not self._may(owner):
            message = f"{self.share} scripts of yours are running already, which is all that one client may run at once"
            raise QuotaError(f"{message}; try again in a moment", _QUOTA)
        raise RequestError(
            f"{self.total} scripts are running already, which is all that run at once; try again in a moment"
        )

    def _may(self, owner: Owner) -> bool:
        return owner is None or self._held[owner] < self.share

    def _give(self) -> None:
        """Give what is free: to an owner who has the fewest, and of those to who came first."""
        while self._taken < self.total:
            able = [each for each in self._waiting if self._may(each.owner)]
            if not able:
                return
            first = min(able, key=lambda each: self._held[each.owner])
            self._waiting.remove(first)
            self._held[first.owner] += 1
            self._taken += 1
            first.begins.set()

    def _end(self, owner: Owner) -> None:
        self._taken -= 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        self._give()
