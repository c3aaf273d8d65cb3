"""Quotas: eviction within an owner's share, refusal beyond the total, and owner keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.runtime.quota import Quota, QuotaError, owner_of
from tables import each_row


def test_claim_beyond_share_evicts_oldest_of_same_owner() -> None:
    quota = Quota[str]("things", 8, 3)
    assert [quota.claim(key, "ann") for key in ("a", "b", "c")] == [[], [], []]
    assert quota.claim("mine", "bob") == []
    quota.renew("a")
    assert quota.claim("d", "ann") == ["b"]
    assert (quota.used("ann"), quota.used("bob"), len(quota)) == (3, 1, 4)


def test_full_quota_refuses_new_owner_and_evicts_for_known_owner() -> None:
    quota = Quota[str]("things", 3, 2)
    for key, owner in (("a1", "ann"), ("a2", "ann"), ("b1", "bob")):
        quota.claim(key, owner)
    message = r"^Too many things: the server's limit of 3 is reached; try again later \(quota things\)$"
    with pytest.raises(QuotaError, match=message):
        quota.claim("c1", "cy")
    assert quota.claim("b2", "bob") == ["b1"]
    quota.release("a1")
    assert quota.claim("c1", "cy") == []


def test_busy_key_is_not_evicted_and_second_release_has_no_effect() -> None:
    quota = Quota[str]("things", 8, 2)
    quota.claim("a", "ann")
    quota.claim("b", "ann")
    assert quota.claim("c", "ann", is_busy=lambda key: key == "a") == ["b"]
    with pytest.raises(QuotaError, match=r"^Too many things: one client may have at most 2 \(quota things\)$"):
        quota.claim("d", "ann", is_busy=lambda _: True)
    assert quota.claim("e", "ann") == ["a"]
    assert quota.claim("a", "ann") == ["c"]
    with pytest.raises(ValueError, match="already"):
        quota.claim("a", "ann")
    for _ in range(2):
        quota.release("a")
    assert (len(quota), quota.used("ann")) == (1, 1)


def test_claims_of_different_amounts_evict_as_many_keys_as_needed() -> None:
    quota = Quota[str]("bytes", 10, 5)
    for key, owner, amount in (("a", "ann", 1), ("b", "bob", 2), ("b2", "bob", 3), ("c", "cy", 4)):
        quota.claim(key, owner, amount)
    with pytest.raises(QuotaError, match="the server's limit of 10 is reached"):
        quota.claim("d", "ann", 5)
    assert quota.used("ann") == 1, "a refused claim evicts nothing"
    assert quota.claim("b3", "bob", 5) == ["b", "b2"]
    assert quota.used("bob") == 5
    with pytest.raises(QuotaError, match="at most 5"):
        quota.claim("b4", "bob", 6)


def test_anonymous_owner_may_use_the_whole_quota() -> None:
    quota = Quota[int]("things", 4)
    assert [Quota[int]("things", total).share for total in (3, 4, 12)] == [1, 1, 3]
    assert [quota.claim(key, None) for key in range(5)] == [[], [], [], [], [0]]


@given(st.lists(st.tuples(st.sampled_from([None, "ann", "bob", "cy"]), st.integers(1, 6), st.booleans())))
def test_claim_never_evicts_keys_of_another_owner(claims: list[tuple[str | None, int, bool]]) -> None:
    quota = Quota[int]("things", 12, 5)
    held: dict[int, tuple[str | None, int]] = {}
    for key, (owner, amount, is_released) in enumerate(claims):
        try:
            evicted = quota.claim(key, owner, amount)
        except QuotaError:
            continue
        assert all(held.pop(each)[0] == owner for each in evicted)
        held[key] = owner, amount
        if is_released:
            quota.release(key)
            del held[key]
        assert sum(size for _, size in held.values()) <= 12
        for name in (None, "ann", "bob", "cy"):
            assert quota.used(name) == sum(size for holder, size in held.values() if holder == name)
            assert quota.used(name) <= quota.limit(name)


@each_row(
    ("token", "address", "owner"),
    [
        ("ann", "192.0.2.1", "ann"), (None, "192.0.2.1", "address 192.0.2.1"), (None, "::1", "address ::1"),
        (None, "::ffff:192.0.2.1", "address 192.0.2.1"), (None, "fe80::1%eth0", "address fe80::/64"),
        (None, "2001:db8:1:2:3:4:5:6", "address 2001:db8:1:2::/64"), (None, "testclient", "address testclient"),
        (None, "2001:db8:1:2:ffff::", "address 2001:db8:1:2::/64"), (None, "", None), (None, None, None),
    ],
)  # fmt: skip
def test_owner_is_token_or_else_address_prefix(token: str | None, address: str | None, owner: str | None) -> None:
    assert owner_of(token, address) == owner
