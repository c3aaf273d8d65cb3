"""Token-bucket rate limits per client."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.access.quotas import QuotaSettings, Rate, Rates


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_bucket_allows_burst_of_one_minute_then_refills_evenly() -> None:
    clock = Clock()
    rate = Rate(6, now=clock)
    assert [rate.take("a") for _ in range(6)] == [0.0] * 6
    assert all(9.9 < rate.take("a") <= 10 for _ in range(100))  # refused attempts do not count
    assert rate.take("b") == 0  # other clients have their own bucket
    clock.now += 10
    assert rate.take("a") == 0 and rate.take("a") > 0
    clock.now += 3600
    assert [rate.take("a") for _ in range(6)] == [0.0] * 6 and rate.take("a") > 0
    for per_minute in range(1, 100):  # rounding must not lose a token
        rate = Rate(per_minute, now=clock)
        assert [rate.take("a") > 0 for _ in range(per_minute + 1)] == [False] * per_minute + [True]


def test_buckets_are_bounded_and_full_ones_dropped() -> None:
    clock = Clock()
    rate = Rate(10, now=clock, most=50)
    for number in range(1000):
        rate.take(number)
    assert len(rate) == 50
    clock.now += 61
    rate.take("last")
    assert len(rate) == 1
    rate = Rate(2, now=clock, most=2)
    assert [rate.take(each) for each in "abac"] == [0.0] * 4
    assert rate.take("a") > 0, "b was evicted, the least recently used"


@given(st.integers(1, 100), st.lists(st.floats(0, 30), max_size=200))
def test_no_minute_exceeds_twice_the_rate(per_minute: int, pauses: list[float]) -> None:
    clock = Clock()
    rate = Rate(per_minute, now=clock)
    taken: list[float] = []
    for pause in pauses:
        clock.now += pause / per_minute
        if rate.take("a") == 0:
            taken.append(clock.now)
    for start in taken:
        assert sum(start <= moment < start + 60 for moment in taken) <= 2 * per_minute


def test_new_quotas_keep_unchanged_rates_and_none_removes_a_rate() -> None:
    quotas = Rates(QuotaSettings())
    failed = quotas.failed_authentications
    assert quotas.requests is None and failed is not None and failed.per_minute == 60
    quotas.replace(QuotaSettings(requests_per_minute=6))
    assert quotas.failed_authentications is failed
    assert quotas.requests is not None and quotas.requests.per_minute == 6
    quotas.replace(QuotaSettings(failed_authentications_per_minute=None))
    assert quotas.requests is None and quotas.failed_authentications is None
