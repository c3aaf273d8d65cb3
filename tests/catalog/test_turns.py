"""Large answers take turns."""

from __future__ import annotations

from collections import Counter

import anyio

from mcp_skills_server.catalog.turns import in_turn

LARGE = 4 << 20


def most_at_once(size: int, owners: list[str | None]) -> tuple[int, int]:
    """How many answers of this size were made at once at the most: of all owners, and of one."""
    now: Counter[str | None] = Counter()
    most = [0, 0]

    async def ask(owner: str | None) -> None:
        async with in_turn(size, owner):
            now[owner] += 1
            most[:] = max(most[0], now.total()), max(most[1], now[owner])
            await anyio.lowlevel.checkpoint()
            now[owner] -= 1

    async def all_of_them() -> None:
        async with anyio.create_task_group() as tasks:
            for owner in owners:
                tasks.start_soon(ask, owner)

    anyio.run(all_of_them)
    return most[0], most[1]


def test_large_answers_are_made_one_at_a_time_for_an_owner_and_two_in_all() -> None:
    """10.B: sixty at once stopped the event loop for 6.8 s."""
    assert most_at_once(LARGE, ["a"] * 20) == (1, 1)
    assert most_at_once(LARGE, [None] * 20) == (1, 1)
    assert most_at_once(LARGE, ["a"] * 20 + ["b"] * 20 + ["c"] * 20) == (2, 1)
    assert most_at_once(1000, ["a"] * 20) == (20, 20)


def test_nobody_waits_behind_all_that_another_asked_for() -> None:
    order: list[str] = []

    async def ask(owner: str) -> None:
        async with in_turn(LARGE, owner):
            await anyio.lowlevel.checkpoint()
            order.append(owner)

    async def all_of_them() -> None:
        async with anyio.create_task_group() as tasks:
            for owner in [*["greedy"] * 50, "modest"]:
                tasks.start_soon(ask, owner)

    anyio.run(all_of_them)
    assert order.index("modest") <= 2 and len(order) == 51
