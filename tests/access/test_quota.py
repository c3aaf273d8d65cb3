"""Quotas: eviction within an owner's share, refusal beyond the total, and owner keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.access.quota import LimitedOwner, Quota, QuotaError, owner_of
from tables import each_row


def test_busy_key_is_not_evicted_and_second_release_has_no_effect() -> None:
    quota = Quota[str]("things", 8)
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


def test_default_share_is_a_quarter() -> None:
    assert [Quota[int]("things", total).limit("ann") for total in (3, 4, 12)] == [1, 1, 3]


def test_limit_of_an_owner_applies_to_what_it_claims_next() -> None:
    quota = Quota[str]("things", 8, name="some-things")

    def claim(key: str, limit: int) -> list[str]:
        return quota.claim(key, LimitedOwner("ann", {"some-things": limit, "things": 1}))

    assert [claim(key, 9) for key in "abcdefgh"] == [[]] * 8  # never more than all
    assert claim("i", 2) == [*"abcdefg"]
    assert (claim("j", 3), quota.used("ann"), claim("k", 3)) == ([], 3, ["h"])


OWNERS = (None, "ann", "bob", "cy")


@given(st.lists(st.tuples(st.sampled_from(OWNERS), st.integers(1, 6), st.sampled_from(["", "release", "renew"]))))
def test_claim_never_evicts_keys_of_another_owner(claims: list[tuple[str | None, int, str]]) -> None:
    quota = Quota[int]("things", 20)
    held: dict[str | None, dict[int, int]] = {owner: {} for owner in OWNERS}
    """The amount of each key by owner, the least recently used first."""
    for key, (owner, amount, then) in enumerate(claims):
        own, limit = dict(held[owner]), 20 if owner is None else 5
        others = sum(sum(each.values()) for each in held.values()) - sum(own.values())
        expected: list[int] = []
        while own and (sum(own.values()) + amount > limit or others + sum(own.values()) + amount > 20):
            expected.append(next(iter(own)))
            del own[expected[-1]]
        if amount > limit or others + amount > 20:
            reason = "one client may have at most 5"
            if amount <= limit:
                reason = "the server's limit of 20 is reached; try again later"
            with pytest.raises(QuotaError, match=rf"^Too many things: {reason} \(quota things\)$"):
                quota.claim(key, owner, amount)
            continue
        assert quota.claim(key, owner, amount) == expected
        held[owner] = {**own, key: amount}
        oldest = next(iter(held[owner]))
        if then == "release":
            quota.release(oldest)
            del held[owner][oldest]
        elif then == "renew":
            quota.renew(oldest)
            held[owner][oldest] = held[owner].pop(oldest)
        for name in OWNERS:
            assert quota.used(name) == sum(held[name].values())
        assert len(quota) == sum(map(len, held.values()))


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
