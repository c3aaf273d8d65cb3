"""Per-owner quotas with eviction of the owner's own oldest keys, so that no client takes another's
place. Pure.

When the whole is taken, an owner that has nothing to evict is refused: the keys of other owners
stay.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from ipaddress import IPv6Address, ip_address
from typing import Final, Generic, TypeAlias, TypeVar

from mcp_skills_server.errors import RequestError

_SHARES: Final = 4
"""One owner may have this part of the whole, unless another one is given."""
_IPV6_NETWORK: Final = 64
"""Bits of an IPv6 address that one client cannot choose: it has all the addresses below them."""

Owner: TypeAlias = str | None
"""The key of a quota's owner; None where clients cannot be distinguished, as on a pipe: it may have
the whole."""

_Key = TypeVar("_Key", bound=Hashable)


class QuotaError(RequestError):
    """The quota of this name, its key in the configuration where it has one, is used up; the
    message ends with it."""

    def __init__(self, message: str, quota: str) -> None:
        super().__init__(f"{message} (quota {quota})")
        self.quota = quota


def owner_of(principal: str | None, address: str | None) -> Owner:
    """Return the owner of a request: its proved principal, else the network of its address, else
    None."""
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


class Quota(Generic[_Key]):
    """Count what owners hold, by key. The caller of `claim` ends what its evicted keys name.

    Args:
        what: what is counted, as people call it, such as "sessions".
        share: how much one owner may have; by default a quarter of the whole.
        name: which quota it is; by default `what`.
    """

    def __init__(
        self, what: str, whole: int, share: int | None = None, *, name: str | None = None
    ) -> None:
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
        """Return the amount that this owner has."""
        return self._used_by.get(owner, 0)

    def limit(self, owner: Owner) -> int:
        """Return the amount that this owner may have."""
        return self.whole if owner is None else self.share

    def claim(
        self,
        key: _Key,
        owner: Owner,
        amount: int = 1,
        *,
        busy: Callable[[_Key], bool] | None = None,
    ) -> list[_Key]:
        """Count a new key as its owner's youngest, and return the owner's evicted keys, the oldest
        first.

        Args:
            amount: how much of the whole it takes.
            busy: tells which of the owner's keys are in use and cannot go.

        Raises:
            QuotaError: eviction would not make enough space. Nothing has changed.
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
            if busy is None or not busy(each):
                going.append(each)
                over -= size
                own -= size
        if over > 0:
            if not held:
                del self._held[owner]
            reason = f"all {self.whole:,} that this server keeps are taken; try again later"
            if own > 0:
                reason = f"one client may have at most {limit:,}"
            raise QuotaError(f"Too many {self._what}: {reason}", self._name)
        for each in going:
            self.release(each)
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
