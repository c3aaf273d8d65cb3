"""What one request sees: a snapshot that is bound once, and the bytes of its files.

A handler is a function of a view. It raises StaleFileError when a file is no longer the one that was scanned; then the
file's skill is scanned again and the handler is called again with a view of the new snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from anyio import to_thread

from mcp_skills_server.catalog import answer
from mcp_skills_server.catalog.reader import Body
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import REPEATS, StaleFileError
from mcp_skills_server.model import Skill, Snapshot
from mcp_skills_server.telemetry import events

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class View:
    """The skills that one request is answered from.

    Args:
        registry: whose skills they are.
        snapshot: the skills; by default as they are now.
        last_try: whether a file that changed is no reason to call the handler again.

    Attributes:
        snapshot: all that the request sees.
        last_try: as given.
    """

    __slots__ = ("_registry", "last_try", "snapshot")

    def __init__(self, registry: Registry, snapshot: Snapshot | None = None, *, last_try: bool = True) -> None:
        self._registry = registry
        self.snapshot = registry.snapshot if snapshot is None else snapshot
        self.last_try = last_try

    async def read(self, skill: Skill, path: str) -> bytes:
        """The exact bytes of a file of a skill.

        Raises:
            StaleFileError: they are no longer those that were scanned.
        """
        raw = await answer.read(self._registry, skill.files[path], last=self.last_try)
        events.was_read(skill, path)
        return raw

    async def body(self, skill: Skill) -> Body:
        """The skill's instructions and the files that they refer to.

        Raises:
            StaleFileError: as for `read`.
        """
        return await answer.body(self._registry, skill, last=self.last_try)

    async def digests(self, skill: Skill) -> dict[str, str]:
        """The digests of the skill's files, by path.

        Raises:
            StaleFileError: as for `read`.
        """
        return await answer.off_loop(is_hashed(skill), self._digests, skill)

    async def hash_files(self, skills: Sequence[Skill]) -> None:
        """Compute the digests of these skills' files that nobody has asked for yet, in one go."""
        if skills:
            await to_thread.run_sync(self._hash_files, skills)

    def last_whole(self, skill: Skill, stale: StaleFileError) -> Skill:
        """What to show for a skill of which this file is being rewritten: on the last try its last whole state.

        Raises:
            StaleFileError: there is none, or there is another try.
        """
        found = self._registry.last_proved(skill) if self.last_try and stale.in_motion else None
        if found is None:
            raise stale
        return found

    def refusal(self, stale: StaleFileError, error: Exception) -> Exception:
        """What to raise where a file cannot be read: on the last try this error, with a line in the log."""
        if not self.last_try:
            return stale
        logger.warning("cannot be read: %s", stale, extra=REPEATS)
        return error

    def _digests(self, skill: Skill) -> dict[str, str]:
        return {path: self._registry.digest(file) for path, file in skill.files.items()}

    def _hash_files(self, skills: Sequence[Skill]) -> None:
        for skill in skills:
            self._registry.hash_files(skill)


def is_hashed(skill: Skill) -> bool:
    """Whether all digests of the skill's files are known."""
    return all(file.digest is not None for file in skill.files.values())


def retry_when_stale(registry: Registry, handler: Callable[[View], Awaitable[_T]]) -> Awaitable[_T]:
    """What the handler returns, called again with a new view for as long as it finds that files have changed.

    Raises:
        StaleFileError: a file did not hold still, or stays unreadable.
    """
    # No coroutine of its own: each costs a request a part of a microsecond.
    return answer.answer(registry, lambda snapshot, last: handler(View(registry, snapshot, last_try=last)))
