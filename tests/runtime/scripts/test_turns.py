"""Turns of runs: no more than there are, no owner more than its share, and who has fewest comes first."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.errors import RequestError
from mcp_skills_server.runtime.quota import QuotaError
from mcp_skills_server.runtime.scripts.turns import Turns

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0


@pytest.mark.parametrize(("total", "share", "may"), [(1, None, 1), (2, None, 1), (4, None, 3), (4, 9, 4), (4, 2, 2)])
def test_one_owner_has_its_share(total: int, share: int | None, may: int) -> None:
    assert Turns(total, share).share == may


async def test_who_waits_too_long_hears_whether_its_own_runs_or_those_of_others_are_in_the_way() -> None:
    turns = Turns(2)
    async with turns.turn("a", 0):
        with pytest.raises(QuotaError, match=r"1 scripts of yours .* \(quota runs\)"):
            async with turns.turn("a", 0):
                pass
        async with turns.turn("b", 0):
            with pytest.raises(RequestError, match=r"^2 scripts are running already") as found:
                async with turns.turn("c", 0):
                    pass
            assert not isinstance(found.value, QuotaError)
    async with turns.turn(None, 0), turns.turn(None, 0):  # of a pipe
        pass


async def test_a_call_that_is_given_up_while_it_waits_takes_nothing() -> None:
    turns = Turns(1)

    async def wait() -> None:
        async with turns.turn("b", PATIENCE_S):
            raise AssertionError("it is not its turn")

    async with turns.turn("a", 0), anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    async with turns.turn("c", 0):
        pass


@given(st.lists(st.sampled_from("aaab"), min_size=1, max_size=12), st.integers(1, 4), st.none() | st.integers(1, 4))
def test_never_more_than_there_are_never_more_than_the_share_and_nobody_waits_for_nothing(
    owners: list[str], total: int, share: int | None
) -> None:
    async def all_of_them() -> None:
        turns = Turns(total, share)
        running, waiting = Counter[str](), Counter(owners)

        async def one(owner: str) -> None:
            async with turns.turn(owner, PATIENCE_S):
                waiting[owner] -= 1
                running[owner] += 1
                assert running.total() <= total and running[owner] <= turns.share
                await anyio.wait_all_tasks_blocked()
                if running.total() < total:  # what is free is of use to nobody who waits
                    assert all(running[each] >= turns.share for each in waiting if waiting[each])
                running[owner] -= 1

        async with anyio.create_task_group() as tasks:
            for owner in owners:
                tasks.start_soon(one, owner)
        assert not +waiting and not +running

    anyio.run(all_of_them)


async def test_who_has_fewest_comes_first() -> None:
    turns = Turns(2, 2)
    order: list[str] = []

    async def one(owner: str) -> None:
        async with turns.turn(owner, PATIENCE_S):
            order.append(owner)

    async with anyio.create_task_group() as tasks, turns.turn("hog", 0), turns.turn("hog", 0):
        for owner in ("hog", "hog", "other"):
            tasks.start_soon(one, owner)
            await anyio.wait_all_tasks_blocked()
    assert order[0] == "other"
