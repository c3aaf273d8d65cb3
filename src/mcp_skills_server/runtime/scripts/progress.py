"""Reports of how long a script has run."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio

logger = logging.getLogger(__name__)

Progress: TypeAlias = Callable[[float], Awaitable[None]]
"""Awaited now and then with the seconds that a script has run."""

BEAT_S = 2.0
"""Between two reports."""


@asynccontextmanager
async def reported(progress: Progress | None) -> AsyncGenerator[None]:
    """Report progress at every beat. Whoever listens has no say in whether the script goes on."""

    async def report(whom: Progress) -> None:
        begun = anyio.current_time()
        while True:
            await anyio.sleep(BEAT_S)
            try:
                with anyio.move_on_after(BEAT_S):
                    await whom(anyio.current_time() - begun)
            except Exception:
                logger.debug("progress could not be reported", exc_info=True)

    wrong: Exception | None = None
    async with anyio.create_task_group() as tasks:
        if progress is not None:
            tasks.start_soon(report, progress)
        try:
            yield
        except Exception as error:  # the group would make another kind of it
            wrong = error
        tasks.cancel_scope.cancel()
    if wrong is not None:
        raise wrong
