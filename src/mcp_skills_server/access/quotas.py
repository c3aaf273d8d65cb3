"""Quotas and rate limits of each owner: a principal, or an address without authentication."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from mcp_skills_server.access.grants import EVERYBODY, WHO, names_of, read_who
from mcp_skills_server.access.principal import Owner, Principal, Requester, owner_of
from mcp_skills_server.model import keys
from mcp_skills_server.model.keys import ContradictionError, Key, Table

MAX_OWNERS: Final = 100_000
_RATE: Final = keys.number(1, 1_000_000, is_whole=True)
_FAILURES: Final = "failed-authentications-per-minute"
DEFAULTS: Final[Mapping[str, int]] = {_FAILURES: 60}
"""Limits without configuration. Another quota is unlimited, or a default share of all."""
_ROUNDING_S: Final = 1e-6
"""Seconds by which sums of floats may be wrong: seven sevenths of a minute are more than one."""


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


class LimitedOwner(str):
    """An owner with its limits by key. It is equal to the plain key, by which it is counted."""

    __slots__ = ("limits",)
    limits: Mapping[str, int]

    def __new__(cls, key: str, limits: Mapping[str, int]) -> LimitedOwner:
        """Return the owner with this key."""
        owner = super().__new__(cls, key)
        owner.limits = limits
        return owner


def limit_of(owner: Owner, quota: str) -> int | None:
    """Return the limit of an owner in the quota of this key; None if none is configured."""
    limits = owner.limits if isinstance(owner, LimitedOwner) else DEFAULTS
    return limits.get(quota)


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
            owner = LimitedOwner(owner, limits)
        return Requester(principal, address, owner)
