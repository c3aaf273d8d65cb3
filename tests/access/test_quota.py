"""Quotas and rates: eviction within an owner's share, refusal beyond the total, owners, limits, token buckets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.access.quota import Owner, Quota, QuotaError, Quotas, QuotaTable, Rate, limit_of, owner_of
from tables import each_row

ANN = Owner("ann")


def test_busy_key_is_not_evicted_and_second_release_has_no_effect() -> None:
    quota = Quota[str]("things", 8)
    quota.claim("a", ANN)
    quota.claim("b", ANN)
    assert quota.claim("c", ANN, is_busy=lambda key: key == "a") == ["b"]
    with pytest.raises(QuotaError, match=r"^Too many things: one client may have at most 2 \(quota things\)$"):
        quota.claim("d", ANN, is_busy=lambda _: True)
    assert quota.claim("e", ANN) == ["a"]
    assert quota.claim("a", ANN) == ["c"]
    with pytest.raises(ValueError, match="already"):
        quota.claim("a", ANN)
    for _ in range(2):
        quota.release("a")
    assert (len(quota), quota.used(ANN)) == (1, 1)


def test_limit_of_an_owner_applies_to_what_it_claims_next() -> None:
    quota = Quota[str]("things", 8, name="some-things")

    def claim(key: str, limit: int) -> list[str]:
        return quota.claim(key, Owner("ann", {"some-things": limit, "things": 1}))

    assert [claim(key, 9) for key in "abcdefgh"] == [[]] * 8  # never more than all
    assert claim("i", 2) == [*"abcdefg"]
    assert (claim("j", 3), quota.used(ANN), claim("k", 3)) == ([], 3, ["h"])


OWNERS = (None, ANN, Owner("bob"), Owner("cy"))


@given(st.lists(st.tuples(st.sampled_from(OWNERS), st.integers(1, 6), st.sampled_from(["", "release", "renew"]))))
def test_claim_never_evicts_keys_of_another_owner(claims: list[tuple[Owner | None, int, str]]) -> None:
    quota = Quota[int]("things", 20)
    held: dict[Owner | None, dict[int, int]] = {owner: {} for owner in OWNERS}
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


@each_row(("token", "address", "owner"), [
    (ANN, "192.0.2.1", ANN), (None, "192.0.2.1", "address 192.0.2.1"), (None, "::1", "address ::1"),
    (None, "::ffff:192.0.2.1", "address 192.0.2.1"), (None, "fe80::1%eth0", "address fe80::/64"),
    (None, "2001:db8:1:2:3:4:5:6", "address 2001:db8:1:2::/64"), (None, "testclient", "address testclient"),
    (None, "2001:db8:1:2:ffff::", "address 2001:db8:1:2::/64"), (None, "", None), (None, None, None),
])  # fmt: skip
def test_owner_is_token_or_else_address_prefix(token: str | None, address: str | None, owner: str | None) -> None:
    assert owner_of(token, address) == (owner and Owner(owner))


FIRST = QuotaTable(("group:ci", "token:bot"), {"streams": 3, "runs": 5})
SECOND = QuotaTable(("user:ann", "token:bot"), {"streams": 4})
DEFAULT = QuotaTable((), {"streams": 1, "sessions": 2, "failed-authentications-per-minute": 7})
STAR = QuotaTable(("*",), {"sessions": 9})
BOT, USER = Principal("token", "bot"), Principal("user", "ann", "https://issuer.example")
BUILDER = Principal("user", "builder", "https://issuer.example", frozenset({"ci", "dev"}))


@each_row(("principal", "tables", "streams", "sessions", "runs"), [
    (None, [], None, None, None), (BOT, [], None, None, None),
    (None, [FIRST, DEFAULT], 1, 2, None), (BOT, [FIRST, SECOND, DEFAULT], 3, 2, 5),
    (BOT, [SECOND, FIRST, DEFAULT], 4, 2, None), (USER, [FIRST, SECOND, DEFAULT], 4, 2, None),
    (BUILDER, [DEFAULT, FIRST, SECOND], 3, 2, 5), (BUILDER, [FIRST], 3, None, 5),
    (BUILDER, [STAR, FIRST, DEFAULT], 1, 9, None), (None, [FIRST, STAR], None, 9, None),
    (Principal("user", "bot"), [FIRST], None, None, None), (Principal("token", "ci"), [FIRST], None, None, None),
])  # fmt: skip
def test_first_matching_table_overrides_the_default(
    principal: Principal | None, tables: list[QuotaTable], **limits: int | None
) -> None:
    client = Quotas(tables).requester(principal, "192.0.2.1")
    assert {key: limit_of(client.owner, key) for key in limits} == limits
    failures = 7 if DEFAULT in tables else 60
    assert limit_of(client.owner, "failed-authentications-per-minute") == failures


def test_owner_is_counted_by_its_key_whatever_its_limits() -> None:
    quotas = Quotas([FIRST])
    before = quotas.requester(BOT, "192.0.2.1").owner
    quotas.replace([])
    after = quotas.requester(BOT, "192.0.2.2").owner
    assert before is not after
    assert {before: "counted"}[after] == "counted"
    assert (limit_of(before, "streams"), limit_of(after, "streams")) == (3, None)
    assert str(after) == "token:bot"
    assert quotas.requester(None, None).owner is None
    assert quotas.requester(None, "2001:db8::1").owner == Owner("address 2001:db8::/64")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_bucket_allows_burst_of_one_minute_then_refills_evenly() -> None:
    clock = Clock()
    rate = Rate(now=clock)
    assert [rate.take("a", 6) for _ in range(6)] == [0.0] * 6
    assert all(9.9 < rate.take("a", 6) <= 10 for _ in range(100))  # refused attempts do not count
    assert rate.take("b", 6) == 0  # other clients have their own bucket
    clock.now += 10
    assert rate.take("a", 6) == 0 and rate.take("a", 6) > 0
    clock.now += 3600
    assert [rate.take("a", 6) for _ in range(6)] == [0.0] * 6 and rate.take("a", 6) > 0
    for per_minute in range(1, 100):  # rounding must not lose a token
        rate = Rate(now=clock)
        assert [rate.take("a", per_minute) > 0 for _ in range(per_minute + 1)] == [False] * per_minute + [True]


def test_changed_limit_keeps_the_used_part_of_a_bucket() -> None:
    rate = Rate(now=Clock())
    assert rate.take("a", 6, 3) == 0  # half of it
    assert [rate.take("a", 100) > 0 for _ in range(51)] == [False] * 50 + [True]
    assert 29.9 < rate.take("a", 2) <= 30


def test_buckets_are_bounded_and_full_ones_dropped() -> None:
    clock = Clock()
    rate = Rate(now=clock, most=50)
    for number in range(1000):
        rate.take(number, 10)
    assert len(rate) == 50
    clock.now += 61
    rate.take("last", 10)
    assert len(rate) == 1
    rate = Rate(now=clock, most=2)
    assert [rate.take(each, 2) for each in "abac"] == [0.0] * 4
    assert rate.take("a", 2) > 0, "b was evicted, the least recently used"
