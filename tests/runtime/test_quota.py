"""Nobody pays for what another opens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.runtime.quota import Quota, QuotaError, owner_of
from tables import each_row


def test_beyond_its_share_an_owner_gives_up_its_own_oldest() -> None:
    quota = Quota[str]("things", 8, 3)
    assert [quota.claim(key, "ann") for key in ("a", "b", "c")] == [[], [], []]
    assert quota.claim("mine", "bob") == []
    quota.renew("a")
    assert quota.claim("d", "ann") == ["b"]
    assert (quota.used("ann"), quota.used("bob"), len(quota), "b" in quota) == (3, 1, 4, False)


def test_when_the_whole_is_taken_a_newcomer_is_refused_and_who_holds_something_gives_that_up() -> None:
    quota = Quota[str]("things", 3, 2)
    for key, owner in (("a1", "ann"), ("a2", "ann"), ("b1", "bob")):
        quota.claim(key, owner)
    words = r"^Too many things: the server's limit of 3 is reached; try again later \(quota things\)$"
    with pytest.raises(QuotaError, match=words):
        quota.claim("c1", "cy")
    assert quota.claim("b2", "bob") == ["b1"]
    quota.release("a1")
    assert quota.claim("c1", "cy") == []


def test_what_is_in_use_does_not_go_and_a_key_is_counted_once_and_released_once() -> None:
    quota = Quota[str]("things", 8, 2)
    quota.claim("a", "ann")
    quota.claim("b", "ann")
    assert quota.claim("c", "ann", is_busy=lambda key: key == "a") == ["b"]
    with pytest.raises(QuotaError, match=r"^Too many things: one client may have at most 2 \(quota things\)$"):
        quota.claim("d", "ann", is_busy=lambda _: True)
    assert [key for key in "abcd" if key in quota] == ["a", "c"]
    with pytest.raises(ValueError, match="already"):
        quota.claim("a", "ann")
    for _ in range(2):
        quota.release("a")
    assert (len(quota), quota.used("ann")) == (1, 1)


def test_amounts_differ_and_what_the_oldest_gives_back_counts_before_it_is_said_whose_limit_it_was() -> None:
    quota = Quota[str]("bytes", 10, 5)
    for key, owner, amount in (("a", "ann", 1), ("b", "bob", 2), ("b2", "bob", 3), ("c", "cy", 4)):
        quota.claim(key, owner, amount)
    with pytest.raises(QuotaError, match="the server's limit of 10 is reached"):
        quota.claim("d", "ann", 5)
    assert "a" in quota and quota.used("ann") == 1
    assert quota.claim("b3", "bob", 5) == ["b", "b2"] and quota.used("bob") == 5
    with pytest.raises(QuotaError, match="at most 5"):
        quota.claim("b4", "bob", 6)


def test_where_clients_are_not_told_apart_they_may_have_the_whole() -> None:
    quota = Quota[int]("things", 4)
    assert [Quota[int]("things", total).share for total in (3, 4, 12)] == [1, 1, 3]
    assert [quota.claim(key, None) for key in range(5)] == [[], [], [], [], [0]]


@given(st.lists(st.tuples(st.sampled_from([None, "ann", "bob", "cy"]), st.integers(1, 6), st.booleans())))
def test_no_claim_costs_another_owner_anything(claims: list[tuple[str | None, int, bool]]) -> None:
    quota = Quota[int]("things", 12, 5)
    held: dict[int, tuple[str | None, int]] = {}
    for key, (owner, amount, release) in enumerate(claims):
        try:
            gone = quota.claim(key, owner, amount)
        except QuotaError:
            continue
        assert all(held.pop(each)[0] == owner for each in gone)
        held[key] = owner, amount
        if release:
            quota.release(key)
            del held[key]
        assert sum(size for _, size in held.values()) <= 12
        for name in (None, "ann", "bob", "cy"):
            assert quota.used(name) == sum(size for whose, size in held.values() if whose == name)
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
def test_an_owner_is_a_token_else_an_address_of_which_a_client_cannot_choose_many(
    token: str | None, address: str | None, owner: str | None
) -> None:
    assert owner_of(token, address) == owner
