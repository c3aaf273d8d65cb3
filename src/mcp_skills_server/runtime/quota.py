"""Who holds how much of something bounded, so that what one client opens is never at another's cost. Pure.

Whoever needs more than its share gives up its own oldest. When the whole is taken, an owner who can give up nothing is
refused: what others hold stays.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Any, Final, Generic, TypeAlias, TypeVar

from mcp_skills_server.errors import RequestError

_SHARES: Final = 4
"""One owner may have this part of the whole, unless another one is given."""
_IPV6_NETWORK: Final = 64
"""Bits of an IPv6 address that one client cannot choose: it has all the addresses below them."""

Owner: TypeAlias = str | None
"""Who is counted; None where clients cannot be distinguished, such as that of a pipe: it may have the whole."""

_Key = TypeVar("_Key", bound=Hashable)


class QuotaError(RequestError):
    """There is no place for what is asked for.

    Args:
        message: what is wrong.
        quota: which one it is, by its key in the configuration where it has one; the message ends with it.
    """

    def __init__(self, message: str, quota: str) -> None:
        super().__init__(f"{message} (quota {quota})")
        self.quota = quota


@lru_cache(maxsize=4096)  # asked several times of each request
def owner_of(principal: str | None, address: str | None) -> Owner:
    """Who is counted for a request: its principal, else the address that it comes from.

    Args:
        principal: the key of the principal that the client proved to be, None without one.
        address: the address of the client's end of the connection, None where it has none.
    """
    if principal is not None:
        return principal
    if not address:
        return None
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


def _never(_: Any) -> bool:
    return False


class Quota(Generic[_Key]):
    """Counts what owners hold. It holds nothing itself: who claims a place also ends what has to go for it.

    Args:
        what: what is counted, as people call it, such as "sessions".
        whole: how much there is for all.
        share: how much one owner may have; by default a quarter of the whole.
        name: which quota it is; by default `what`.
    """

    def __init__(self, what: str, whole: int, share: int | None = None, *, name: str | None = None) -> None:
        self.whole = whole
        self.share = min(whole, max(1, whole // _SHARES) if share is None else share)
        self._what = what
        self._name = name or what
        self._used = 0
        self._owners: dict[_Key, Owner] = {}
        self._held: dict[Owner, OrderedDict[_Key, int]] = {}
        self._used_by: dict[Owner, int] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, key: object) -> bool:
        return key in self._owners

    def used(self, owner: Owner) -> int:
        """Return how much this owner has."""
        return self._used_by.get(owner, 0)

    def limit(self, owner: Owner) -> int:
        """Return how much this owner may have."""
        return self.whole if owner is None else self.share

    def claim(self, key: _Key, owner: Owner, amount: int = 1, *, busy: Callable[[_Key], bool] = _never) -> list[_Key]:
        """Count a new key for an owner, as its youngest.

        Args:
            key: names what is counted; it must not be counted already.
            owner: whose it is.
            amount: how much of the whole it takes.
            busy: tells which of the owner's keys are in use and cannot go.

        Returns:
            The owner's keys that went for it, the oldest first. They are counted no more, and the caller ends what
            they name.

        Raises:
            QuotaError: there is no place even so. Nothing has changed.
        """
        if key in self._owners:
            raise ValueError("it is counted already")
        limit = self.limit(owner)
        own = self.used(owner) + amount - limit
        over = max(own, self._used + amount - self.whole)
        going: list[_Key] = []
        held = self._held.setdefault(owner, OrderedDict())
        for each, size in held.items():
            if over <= 0:
                break
            if not busy(each):
                going.append(each)
                over -= size
                own -= size
        if over > 0:
            if not held:
                del self._held[owner]
            raise QuotaError(
                f"Too many {self._what}: one client may have at most {limit:,}"
                if own > 0
                else f"Too many {self._what}: all {self.whole:,} that this server keeps are taken; try again later",
                self._name,
            )
        for each in going:
            self.release(each)
        self._owners[key] = owner
        self._held.setdefault(owner, OrderedDict())[key] = amount
        self._used_by[owner] = self.used(owner) + amount
        self._used += amount
        return going

    def renew(self, key: _Key) -> None:
        """It was used: it is its owner's youngest now."""
        self._held[self._owners[key]].move_to_end(key)

    def release(self, key: _Key) -> None:
        """Count a key no more. One that is not counted is passed over."""
        if key not in self._owners:
            return
        owner = self._owners.pop(key)
        held = self._held[owner]
        amount = held.pop(key)
        self._used -= amount
        self._used_by[owner] -= amount
        if not held:
            del self._held[owner], self._used_by[owner]
