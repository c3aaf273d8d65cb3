"""Rates: what one does is never at another's cost, and what is kept is bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.access.quotas import QuotaSettings, Rate, Rates


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_all_of_a_minute_at_once_and_then_one_each_part_of_it() -> None:
    clock = Clock()
    rate = Rate(6, now=clock)
    assert [rate.take("a") for _ in range(6)] == [0.0] * 6
    assert all(9.9 < rate.take("a") <= 10 for _ in range(100))  # who is refused is not counted
    assert rate.take("b") == 0  # nobody else is slower for it
    clock.now += 10
    assert rate.take("a") == 0 and rate.take("a") > 0
    clock.now += 3600
    assert [rate.take("a") for _ in range(6)] == [0.0] * 6 and rate.take("a") > 0
    for per_minute in range(1, 100):  # however the parts of a minute are rounded
        rate = Rate(per_minute, now=clock)
        assert [rate.take("a") > 0 for _ in range(per_minute + 1)] == [False] * per_minute + [True]


def test_what_is_kept_is_bounded() -> None:
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
    assert rate.take("a") > 0, "the least recent one goes, which is b"


@given(st.integers(1, 100), st.lists(st.floats(0, 30), max_size=200))
def test_in_no_minute_more_than_twice_the_rate(per_minute: int, pauses: list[float]) -> None:
    clock = Clock()
    rate = Rate(per_minute, now=clock)
    done: list[float] = []
    for pause in pauses:
        clock.now += pause / per_minute
        if rate.take("a") == 0:
            done.append(clock.now)
    for start in done:
        assert sum(start <= each < start + 60 for each in done) <= 2 * per_minute


def test_a_rate_begins_anew_when_its_quota_changes_and_there_is_none_without_one() -> None:
    quotas = Rates(QuotaSettings())
    failed = quotas.failed_authentications
    assert quotas.requests is None and failed is not None and failed.per_minute == 60
    quotas.replace(QuotaSettings(requests_per_minute=6))
    assert quotas.failed_authentications is failed
    assert quotas.requests is not None and quotas.requests.per_minute == 6
    quotas.replace(QuotaSettings(failed_authentications_per_minute=None))
    assert quotas.requests is None and quotas.failed_authentications is None
