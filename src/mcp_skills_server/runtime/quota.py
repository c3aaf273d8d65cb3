"""Per-owner quotas that evict only the owner's own least recently used keys. No I/O.

When the whole quota is used, an owner without keys to evict is refused, and other owners keep
their keys.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from mcp_skills_server.access.principal import Owner
from mcp_skills_server.access.quotas import limit_of
from mcp_skills_server.errors import REPEATS, RequestError

logger = logging.getLogger(__name__)

_SHARES: Final = 4
"""The divisor of the total that gives one owner's default share: a quarter."""
_Key = TypeVar("_Key", bound=Hashable)


class QuotaError(RequestError):
    """An error for an exhausted quota; `quota` is its configuration key, or else its name."""

    def __init__(self, message: str, quota: str) -> None:
        super().__init__(f"{message} (quota {quota})")
        self.quota = quota


class Quota(Generic[_Key]):
    """An account of the keys that owners hold. Callers of `claim` close the keys it evicts.

    Args:
        unit: the unit in messages, such as "sessions".
        total: the limit of all owners together.
        name: the key of an owner's limit, and the name in errors; by default `unit`.
    """

    def __init__(self, unit: str, total: int, *, name: str | None = None) -> None:
        self.total = total
        self._unit = unit
        self._name = name or unit
        self._used = 0
        self._owners: dict[_Key, Owner] = {}
        self._held: dict[Owner, OrderedDict[_Key, int]] = {}
        self._used_by: dict[Owner, int] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def used(self, owner: Owner) -> int:
        """Return the amount that an owner holds."""
        return self._used_by.get(owner, 0)

    def limit(self, owner: Owner) -> int:
        """Return the amount that an owner may hold."""
        if owner is None:
            return self.total
        return min(self.total, limit_of(owner, self._name) or max(1, self.total // _SHARES))

    def claim(
        self,
        key: _Key,
        owner: Owner,
        amount: int = 1,
        *,
        is_busy: Callable[[_Key], bool] | None = None,
    ) -> list[_Key]:
        """Add a new key as its owner's latest, and return the owner's evicted keys, oldest first.

        The key uses `amount` of the quota. A key for which `is_busy` returns True is not evicted.

        Raises:
            QuotaError: eviction would not free enough. Nothing has changed.
            ValueError: the key is counted already.
        """
        if key in self._owners:
            raise ValueError("the key is counted already")
        limit = self.limit(owner)
        own = self.used(owner) + amount - limit
        over = max(own, self._used + amount - self.total)
        going: list[_Key] = []
        held = self._held.get(owner, OrderedDict[_Key, int]())
        for item, size in held.items():
            if over <= 0:
                break
            if is_busy is None or not is_busy(item):
                going.append(item)
                over -= size
                own -= size
        if over > 0:
            reason = f"the server's limit of {self.total:,} is reached; try again later"
            if own > 0:
                reason = f"one client may have at most {limit:,}"
            raise QuotaError(f"Too many {self._unit}: {reason}", self._name)
        for item in going:
            self.release(item)
        self._owners[key] = owner
        self._held.setdefault(owner, OrderedDict())[key] = amount
        self._used_by[owner] = self.used(owner) + amount
        self._used += amount
        return going

    def renew(self, key: _Key) -> None:
        """Mark a key as its owner's most recently used."""
        self._held[self._owners[key]].move_to_end(key)

    def release(self, key: _Key) -> None:
        """Stop counting a key; do nothing for one that is not counted."""
        if key not in self._owners:
            return
        owner = self._owners.pop(key)
        held = self._held[owner]
        amount = held.pop(key)
        self._used -= amount
        self._used_by[owner] -= amount
        if not held:
            del self._held[owner], self._used_by[owner]


class Streams(Quota[object]):
    """The open event streams of clients: none is evicted, as its client would reopen it at once."""

    def __init__(self, connections: int = 1000) -> None:
        super().__init__("streams", 0)
        self.fit(connections)

    def fit(self, connections: int) -> None:
        """Leave an eighth of so many connections to requests."""
        self.total = connections - connections // 8

    def open(self, stream: object, owner: Owner) -> None:
        """Count a new stream until it is released.

        Raises:
            QuotaError: the owner or the server has too many.
        """
        try:
            self.claim(stream, owner, is_busy=lambda _: True)
        except QuotaError as error:
            logger.warning("refused a stream of %s: %s", owner, error, extra=REPEATS)
            raise
