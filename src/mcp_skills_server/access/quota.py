"""Limits of each owner: a principal, or a network without authentication.

A `Quota` counts what owners hold, such as sessions. It evicts only the owner's own least recently
used keys; when the total is used up, an owner without keys to evict is refused, and other owners
keep theirs. A `Rate` counts what owners do in a minute. `Quotas` has the configured limits. No I/O.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from mcp_skills_server.access.grants import EVERYBODY, WHO, names_of, read_who
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.errors import REPEATS, RequestError
from mcp_skills_server.model import keys
from mcp_skills_server.model.keys import ContradictionError, Key, Table

logger = logging.getLogger(__name__)

MAX_OWNERS: Final = 100_000
_RATE: Final = keys.number(1, 1_000_000, is_whole=True)
_FAILURES: Final = "failed-authentications-per-minute"
DEFAULTS: Final[Mapping[str, int]] = {_FAILURES: 60}
"""Limits without configuration. Another quota is unlimited, or a default share of all."""
_IPV6_NETWORK: Final = 64
"""The prefix length of an IPv6 network that one client controls."""
_ROUNDING_S: Final = 1e-6
"""Seconds by which sums of floats may be wrong: seven sevenths of a minute are more than one."""
_SHARES: Final = 4
"""The divisor of the total that gives one owner's default share: a quarter."""
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a request, whose quotas count it, with its limits by quota.

    Owners with one key are equal: new limits do not change what is counted already. None in place
    of an owner stands for indistinguishable clients, as on stdio, which may use the total.
    """

    key: str
    limits: Mapping[str, int] = field(default_factory=lambda: DEFAULTS, compare=False)

    def __str__(self) -> str:
        return self.key


UNKNOWN_OWNER: Final = Owner("")
"""The owner of a connection or session whose client has no address."""


class Requester(NamedTuple):
    """The sender of a request.

    Attributes:
        principal: None without authentication.
        address: its network address; None for a pipe.
        owner: the owner whose quotas count the request; None for indistinguishable ones.
    """

    principal: Principal | None = None
    address: str | None = None
    owner: Owner | None = None


LOCAL_REQUESTER: Final = Requester()
"""The requester of all requests on a pipe."""


def limit_of(owner: Owner | None, quota: str) -> int | None:
    """Return the limit of an owner in the quota of this key; None if none is configured."""
    limits = DEFAULTS if owner is None else owner.limits
    return limits.get(quota)


def owner_of(principal: str | None, address: str | None) -> Owner | None:
    """Return a request's owner: its authenticated principal, else its network, else None."""
    if principal is not None:
        return Owner(principal)
    if not address:
        return None
    return Owner(_network_of(address))


@lru_cache(maxsize=4096)
def _network_of(address: str) -> str:
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return f"address {address}"
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return f"address {parsed.ipv4_mapped}"
        if not parsed.is_loopback:
            network = int(parsed) >> (128 - _IPV6_NETWORK) << (128 - _IPV6_NETWORK)
            return f"address {IPv6Address(network)}/{_IPV6_NETWORK}"
    return f"address {parsed}"


def owner_to_evict(
    held: Mapping[Owner, int], newcomer: Owner, able: Collection[Owner]
) -> Owner | None:
    """Return the owner of `able` that gives way to `newcomer` by max-min fairness, or None.

    Only `newcomer` itself and owners that hold more than it are considered.
    """
    mine = held.get(newcomer, 0)
    candidates = [owner for owner in able if owner == newcomer or held[owner] > mine]
    return max(candidates, key=held.__getitem__, default=None)


class Rate:
    """Token buckets by owner; a full one holds the tokens of one minute.

    At most `most` owners have a bucket. The least recently counted one is evicted, and so gets a
    full bucket again.
    """

    def __init__(
        self, *, now: Callable[[], float] = time.monotonic, most: int = MAX_OWNERS
    ) -> None:
        self._now = now
        self._most = most
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()
        """The time at which the bucket of each owner will be full."""

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, owner: Hashable, per_minute: int, count: int = 1) -> float:
        """Take `count` tokens and return 0, or none and return the seconds until there are enough.

        More tokens than a bucket holds are never enough.
        """
        now = self._now()
        full_at = max(now, self._full_at.get(owner, now)) + count * 60 / per_minute
        wait = full_at - now - 60
        if wait > _ROUNDING_S:
            return wait
        self._full_at[owner] = full_at
        self._full_at.move_to_end(owner)
        while self._full_at and (
            len(self._full_at) > self._most or next(iter(self._full_at.values())) <= now
        ):
            self._full_at.popitem(last=False)
        return 0.0


@dataclass(frozen=True, slots=True)
class QuotaTable:
    """A table `[[quota]]`: limits by key, of the principals in `who` or, without it, of all."""

    who: tuple[str, ...]  # as in a grant
    limits: Mapping[str, int]
    TABLE: ClassVar = Table(
        {
            "who": Key(WHO, read_who),
            "requests-per-minute": _RATE,
            _FAILURES: _RATE,
            **dict.fromkeys(
                ("sessions", "streams", "unread-bytes", "runtime-sessions", "blob-bytes", "runs"),
                keys.number(1, 1 << 40, is_whole=True),
            ),
        },
        "write a table [quota] with keys such as requests-per-minute = 600",
    )

    @classmethod
    def from_table(cls, values: Mapping[str, Any]) -> QuotaTable:
        """Return the limits of a table with these values, or raise ContradictionError."""
        limits = dict(values)
        table = cls(limits.pop("who", ()), limits)
        if table.who and _FAILURES in limits:
            what = "this counts clients that did not prove who they are"
            hint = "put it into a table [[quota]] without who"
            raise ContradictionError(_FAILURES, what, hint)
        return table


class Quotas:
    """The quotas in force, which any thread may replace, and the counts of the two rates."""

    def __init__(self, tables: Sequence[QuotaTable] = ()) -> None:
        self.requests = Rate()
        self.failed_authentications = Rate()
        self.replace(tables)

    def replace(self, tables: Sequence[QuotaTable]) -> None:
        """Apply new tables; what is counted stays."""
        default = dict(DEFAULTS)
        for table in tables:
            if not table.who:
                default.update(table.limits)
        limits = [(table.who, {**default, **table.limits}) for table in tables if table.who]
        self._limits = [*limits, ((EVERYBODY,), default)]

    def requester(self, principal: Principal | None, address: str | None) -> Requester:
        """Return the requester with this principal and network address, and its limits."""
        owner = owner_of(principal and principal.key, address)
        if owner is not None:
            names = names_of(principal)
            limits = next(limits for who, limits in self._limits if not names.isdisjoint(who))
            owner = Owner(owner.key, limits)
        return Requester(principal, address, owner)


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
        self._owners: dict[_Key, Owner | None] = {}
        self._held: dict[Owner | None, OrderedDict[_Key, int]] = {}
        self._used_by: dict[Owner | None, int] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def used(self, owner: Owner | None) -> int:
        """Return the amount that an owner holds."""
        return self._used_by.get(owner, 0)

    def limit(self, owner: Owner | None) -> int:
        """Return the amount that an owner may hold."""
        if owner is None:
            return self.total
        return min(self.total, limit_of(owner, self._name) or max(1, self.total // _SHARES))

    def claim(
        self,
        key: _Key,
        owner: Owner | None,
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
        own_excess = self.used(owner) + amount - limit
        excess = max(own_excess, self._used + amount - self.total)
        evicted: list[_Key] = []
        held = self._held.get(owner, OrderedDict[_Key, int]())
        for old, size in held.items():
            if excess <= 0:
                break
            if is_busy is None or not is_busy(old):
                evicted.append(old)
                excess -= size
                own_excess -= size
        if excess > 0:
            reason = f"the server's limit of {self.total:,} is reached; try again later"
            if own_excess > 0:
                reason = f"one client may have at most {limit:,}"
            raise QuotaError(f"Too many {self._unit}: {reason}", self._name)
        for old in evicted:
            self.release(old)
        self._owners[key] = owner
        self._held.setdefault(owner, OrderedDict())[key] = amount
        self._used_by[owner] = self.used(owner) + amount
        self._used += amount
        return evicted

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

    def open(self, stream: object, owner: Owner | None) -> None:
        """Count a new stream until it is released.

        Raises:
            QuotaError: the owner or the server has too many.
        """
        try:
            self.claim(stream, owner, is_busy=lambda _: True)
        except QuotaError as error:
            logger.warning("refused a stream of %s: %s", owner, error, extra=REPEATS)
            raise
