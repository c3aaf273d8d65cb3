"""Places for connections: so many and no more, shared fairly, and a few beyond them for short requests.

A connection takes a place when it is accepted. It belongs to its address until a request shows a token, then to the
bearer. When all places are taken, one that waits gives way: first those that have shown nothing that lets them in,
then those between two requests. Where all are busy, a connection gets a spare place. There the probes are answered,
and whoever may come in can still have the place of an owner who holds more than half of all.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final

from starlette.types import Message, Send

from mcp_skills_server.web.counted import Counted
from mcp_skills_server.web.shares import giver

PLACE: Final = "mcp_skills_server.place"
"""Where a request's `state` has the place of its connection."""


class State(IntEnum):
    """What a connection does, in the order in which it gives way."""

    SILENT = 0
    """It owes a request, and none before let it in."""
    RESTING = 1
    """It was let in, and owes the next request."""
    BUSY = 2
    """It waits for an answer, or follows a stream."""


class Place:
    """What one connection holds.

    Attributes:
        owner: who holds it.
        state: what the connection does.
        spare: whether it is one of those beyond the limit.
        known: whether a request on it was let in.
    """

    __slots__ = ("_table", "close", "known", "owner", "places", "spare", "state")

    def __init__(self) -> None:
        self.places: Places | None = None
        self.owner = ""
        self.state = State.SILENT
        self.spare = False
        self.known = False
        self.close: Callable[[], None] = lambda: None
        self._table: _Table | None = None

    def is_(self, state: State) -> None:
        """Note what the connection does now."""
        if state is State.RESTING and not self.known:
            state = State.SILENT
        if state is not self.state:
            self._move(self.owner, state)

    def admitted(self, owner: str | None) -> bool:
        """Note that its request was let in, as this owner's if not as the address's; and whether it is served."""
        self.known = True
        if owner is not None and owner != self.owner:
            self._move(owner, self.state)
        return self.places is None or self.places.admits(self)

    def leave(self) -> None:
        """Give it up."""
        if self._table is not None:
            self._table.drop(self)

    def enter(self, table: _Table) -> None:
        """Move to this table."""
        self.leave()
        table.put(self)
        self._table = table

    def left(self) -> None:
        """Know that it holds nothing any more."""
        self._table = None

    def _move(self, owner: str, state: State) -> None:
        table = self._table
        self.leave()
        self.owner, self.state = owner, state
        if table is not None:
            self.enter(table)


class _Table:
    """Places by owner and state, the oldest first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.counts: dict[str, int] = {}
        self._held: dict[str, dict[State, dict[Place, None]]] = {}
        self._taken = 0

    @property
    def full(self) -> bool:
        return self._taken >= self.limit

    def put(self, place: Place) -> None:
        self._held.setdefault(place.owner, {state: {} for state in State})[place.state][place] = None
        self.counts[place.owner] = self.counts.get(place.owner, 0) + 1
        self._taken += 1

    def drop(self, place: Place) -> None:
        del self._held[place.owner][place.state][place]
        self.counts[place.owner] -= 1
        self._taken -= 1
        if not self.counts[place.owner]:
            del self._held[place.owner], self.counts[place.owner]
        place.left()

    def has(self, owner: str, state: State) -> bool:
        return bool(self._held[owner][state])

    def end(self, owner: str, state: State) -> None:
        """Close the connection that has been in this state longest of the owner's."""
        place = next(iter(self._held[owner][state]))
        self.drop(place)
        place.close()

    def end_one(self) -> None:
        """Close one, whoever's it is: one that is silent, if there is any, of the owner who has most."""
        for state in State:
            having = [owner for owner in self.counts if self.has(owner, state)]
            if having:
                self.end(max(having, key=self.counts.__getitem__), state)
                return


class Places:
    """All places of a server.

    Args:
        limit: connections at once.
        spare: places beyond the limit, at least one.
        lines: says that the limit was reached.
    """

    def __init__(self, limit: int, spare: int, lines: Counted) -> None:
        self._all: Final = _Table(limit)
        self._spare: Final = _Table(spare)
        self._lines = lines
        self._full = f"all {limit:,} places for connections are taken (--max-connections)"

    def enter(self, place: Place, owner: str, close: Callable[[], None]) -> None:
        """Give a new connection a place. Another may be closed for it; `close` must not call back at once."""
        place.owner, place.close, place.places = owner, close, self
        if self._free(owner):
            place.enter(self._all)
            return
        place.spare = True
        if self._spare.full:
            self._spare.end_one()
        place.enter(self._spare)

    def admits(self, place: Place) -> bool:
        """Whether a request that was let in is served: it has a place, or gets one now."""
        if not place.spare:
            return True
        if self._free(place.owner) or self._of_who_holds_half(place.owner):
            place.enter(self._all)
            place.spare = False
            return True
        self._lines.tell(f"{self._full} and busy; answered a request with 503")
        return False

    def _free(self, owner: str) -> bool:
        """Have one place free, for this owner, of those that wait."""
        if not self._all.full:
            return True
        for state in (State.SILENT, State.RESTING):
            gives = giver(self._all.counts, owner, lambda each, state=state: self._all.has(each, state))
            if gives is not None:
                self._lines.tell(f"{self._full}; closed a connection that waited")
                self._all.end(gives, state)
                return True
        return False

    def _of_who_holds_half(self, owner: str) -> bool:
        """Have a busy place free, of another owner who holds more than half of all and more than this one then will."""
        counts, least = self._all.counts, max(self._all.limit // 2, self._all.counts.get(owner, 0) + 1)
        gives = giver(counts, owner, lambda each: each != owner and counts[each] > least)
        if gives is None:
            return False
        self._lines.tell(f"{self._full} and busy; closed one of an owner who had more than half")
        self._all.end(gives, State.BUSY)
        return True


def closing(place: Place, send: Send) -> Send:
    """What sends an answer after which the connection ends, unless it has got a place by then."""

    async def last(message: Message) -> None:
        if message["type"] == "http.response.start" and place.spare:
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await send(message)

    return last
