"""Token-bucket rate limits per client."""

from __future__ import annotations

from mcp_skills_server.access.quota import Rate


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
