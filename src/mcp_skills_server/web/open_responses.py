"""The open responses to authenticated clients, each of which ends with its token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Final

import anyio

from mcp_skills_server.access.principal import Admission

_CLOCK_S: Final = 5.0
"""Seconds between comparisons of the wall clock with the tokens of open responses."""
_LOOP_CALL_TIMEOUT_S: Final = 10.0
"""Seconds that another thread waits for its call in the event loop."""


class OpenResponses:
    """The open responses: the front adds them, and the reloader of tokens cancels them."""

    def __init__(self) -> None:
        self._admissions: dict[anyio.CancelScope, Admission] = {}
        """The admission of each open response, by the scope that cancels it."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Prepare for requests; call it in the event loop that will handle them."""
        self._loop = asyncio.get_running_loop()
        self._cancel_expired()

    @contextmanager
    def until_removed(self, admission: Admission) -> Generator[anyio.CancelScope]:
        """Cancel the response in this context once its token expires or is removed."""
        deadline = anyio.current_time() + admission.expires - time.time()
        with anyio.CancelScope(deadline=deadline) as scope:
            self._admissions[scope] = admission
            try:
                yield scope
            finally:
                del self._admissions[scope]

    def cancel(self, removed: frozenset[bytes]) -> None:
        """Cancel the responses to tokens with these hashes. Call in the event loop, if one runs."""
        for scope, admission in [*self._admissions.items()]:
            if admission.hashed in removed:
                scope.cancel()

    def between_requests(self, work: Callable[[], object]) -> None:
        """Call `work` in the event loop and wait, so that each request sees a consistent state.

        For other threads; it deadlocks in a request handler. Before the start, call it directly.
        """
        if self._loop is None or self._loop.is_closed():
            work()
            return

        async def call() -> None:
            work()

        wait([asyncio.run_coroutine_threadsafe(call(), self._loop)], _LOOP_CALL_TIMEOUT_S)

    def _cancel_expired(self) -> None:
        """Cancel the responses whose token has expired by the wall clock, from now on.

        Their deadlines do not notice that the clock was set, or that the machine slept.
        """
        for scope, admission in [*self._admissions.items()]:
            if admission.expires <= time.time():
                scope.cancel()
        asyncio.get_running_loop().call_later(_CLOCK_S, self._cancel_expired)
