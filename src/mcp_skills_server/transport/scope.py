"""What ends the work of a task: a scope of anyio, or one that needs no more than asyncio.

What starts processes shields their start and their end from being cancelled, which scopes of anyio alone respect. And
they end whatever is inside at once, with groups of tasks in it, as the SDK counts on.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Protocol


class Scope(Protocol):
    """Work that can be ended: that of a task while it is inside. anyio's `CancelScope` is one."""

    def cancel(self) -> None:
        """End the work at its next wait, before it has begun or later. Nobody outside of the scope notices."""
        ...

    def __enter__(self) -> Scope: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, of: TracebackType | None, /
    ) -> bool: ...


class TaskScope:
    """A scope without anyio, whose event loop takes a tenth of a start to import. Nothing can be shielded from it."""

    __slots__ = ("_is_cancelled", "_task")

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._is_cancelled = False

    def cancel(self) -> None:
        """As in `Scope`."""
        if not self._is_cancelled:
            self._is_cancelled = True
            if self._task is not None:
                self._task.cancel()

    def __enter__(self) -> Scope:
        self._task = asyncio.current_task()
        if self._is_cancelled and self._task is not None:
            self._task.cancel()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, of: TracebackType | None, /
    ) -> bool:
        task, self._task = self._task, None
        if not self._is_cancelled or task is None:
            return False
        others = task.uncancel()
        return not others and isinstance(error, asyncio.CancelledError)


def scope(*, shields: bool) -> Scope:
    """A scope for the running task; `shields` is whether anything in it is to be shielded, which takes one of anyio."""
    if not shields:
        return TaskScope()
    from anyio import CancelScope

    return CancelScope()
