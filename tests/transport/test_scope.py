"""What ends the work of a task, of both kinds."""

from __future__ import annotations

import asyncio

import pytest
from anyio import CancelScope

from mcp_skills_server.transport.scope import TaskScope, scope

KINDS = pytest.mark.parametrize("shields", [False, True])


def test_only_a_scope_of_anyio_shields() -> None:
    async def made(*, shields: bool) -> object:
        return scope(shields=shields)

    assert isinstance(asyncio.run(made(shields=True)), CancelScope)
    assert isinstance(asyncio.run(made(shields=False)), TaskScope)


@KINDS
def test_work_ends_at_its_wait_and_nobody_outside_notices(shields: bool) -> None:
    done: list[str] = []

    async def work() -> None:
        with scope(shields=shields) as made:
            asyncio.get_running_loop().call_soon(made.cancel)
            done.append("begun")
            try:
                await asyncio.Event().wait()
            finally:
                done.append("ended")
        await asyncio.sleep(0)
        done.append("after")

    asyncio.run(work())
    assert done == ["begun", "ended", "after"]


@KINDS
def test_work_that_is_taken_back_before_it_begins_ends_at_its_first_wait(shields: bool) -> None:
    done: list[str] = []

    async def work() -> None:
        made = scope(shields=shields)
        made.cancel()
        made.cancel()
        with made:
            done.append("begun")
            await asyncio.sleep(0)
            done.append("gone on")

    asyncio.run(work())
    assert done == ["begun"]


@KINDS
def test_a_scope_that_was_not_cancelled_lets_everything_through(shields: bool) -> None:
    async def work(error: BaseException) -> None:
        with scope(shields=shields):
            raise error

    with pytest.raises(ZeroDivisionError):
        asyncio.run(work(ZeroDivisionError()))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(work(asyncio.CancelledError()))


@KINDS
def test_who_ends_the_task_itself_is_not_hindered(shields: bool) -> None:
    async def work() -> None:
        with scope(shields=shields) as made:
            made.cancel()
            await asyncio.Event().wait()

    async def all_of_it() -> bool:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(all_of_it())


@KINDS
def test_an_error_of_the_work_is_raised_though_it_was_taken_back(shields: bool) -> None:
    async def work() -> None:
        with scope(shields=shields) as made:
            made.cancel()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(work())
