"""The concurrency limit for large answers."""

from __future__ import annotations

from collections import Counter

import anyio

from mcp_skills_server.runtime.large_answers import limit_large_answers
from tables import each_row

LARGE = (1 << 20) + 1


def answer_all(size: int, owners: list[str | None]) -> list[Counter[str | None]]:
    """Make concurrent answers, and return the number of unfinished ones by owner at each start."""
    running: Counter[str | None] = Counter()
    started: list[Counter[str | None]] = []

    async def answer(owner: str | None) -> None:
        async with limit_large_answers(size, owner):
            running[owner] += 1
            started.append(Counter(running))
            await anyio.lowlevel.checkpoint()
            running[owner] -= 1

    async def answer_concurrently() -> None:
        async with anyio.create_task_group() as tasks:
            for owner in owners:
                tasks.start_soon(answer, owner)

    anyio.run(answer_concurrently)
    assert len(started) == len(owners)
    return started


# Sixty large answers at once stopped the event loop for 6.8 s.
@each_row(("size", "owners", "most", "most_of_owner"), [
    (LARGE, ["a"] * 20, 1, 1),
    (LARGE, [None] * 20, 1, 1),
    (LARGE, [*["a"] * 20, *["b"] * 20, *["c"] * 20], 2, 1),
    (LARGE - 1, ["a"] * 20, 20, 20),
])  # fmt: skip
def test_large_answers_run_one_per_owner_and_two_in_all(
    size: int, owners: list[str | None], most: int, most_of_owner: int
) -> None:
    started = answer_all(size, owners)
    assert max(each.total() for each in started) == most
    assert max(max(each.values()) for each in started) == most_of_owner


def test_large_answer_does_not_wait_for_all_of_another_owner() -> None:
    started = answer_all(LARGE, [*["greedy"] * 50, "modest"])
    assert any(each["modest"] for each in started[:3])
