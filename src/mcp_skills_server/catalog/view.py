"""The view of one request: a snapshot that is bound once, and the bytes of its files."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from mcp_skills_server.catalog.reader import Body
from mcp_skills_server.catalog.threads import in_thread, off_loop
from mcp_skills_server.errors import REPEATS, StaleFileError, UnreadableError
from mcp_skills_server.model import SKILL_MD, Skill, Snapshot
from mcp_skills_server.telemetry import events

if TYPE_CHECKING:
    from mcp_skills_server.catalog.views import SkillSet

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_INLINE_BYTES: Final = 1 << 18
"""Larger files are read off the event loop."""
_INLINE_MARKDOWN: Final = 1 << 14
"""A longer SKILL.md is parsed off the event loop; for a shorter one the switch of threads would cost more."""


class View:
    """The skills that one request is answered from.

    Args:
        skill_set: the skills that the grants leave to the caller.

    Attributes:
        skill_set: as given.
        snapshot: all that the request sees, as it was when the view was made.
    """

    __slots__ = ("skill_set", "snapshot")

    def __init__(self, skill_set: SkillSet) -> None:
        self.skill_set = skill_set
        self.snapshot: Snapshot = skill_set.snapshot

    async def read(self, skill: Skill, path: str) -> bytes:
        """Return the exact bytes of a file of a skill.

        Raises:
            StaleFileError: they are no longer those that were scanned.
        """
        file = skill.files[path]
        raw = await off_loop(file.size <= _INLINE_BYTES, self.skill_set.read, file)
        events.was_read(skill, path)
        return raw

    async def body(self, skill: Skill) -> Body:
        """Return the skill's instructions and the files that they refer to.

        Raises:
            StaleFileError: as for `read`.
        """
        quick = skill.files[SKILL_MD].size <= _INLINE_MARKDOWN
        found = await off_loop(quick, self.skill_set.body, skill)
        events.was_read(skill, SKILL_MD)
        return found


async def retry_when_stale(skill_set: SkillSet, handler: Callable[[View], Awaitable[_T]]) -> _T:
    """Return what the handler returns; called once more, with the skill scanned again, where a file has changed.

    Raises:
        UnreadableError: a file changed again, or stays unreadable.
    """
    try:
        return await handler(View(skill_set))
    except StaleFileError as stale:
        events.begins_again()
        await in_thread(skill_set.rescan, stale.path)
    try:
        return await handler(View(skill_set))
    except StaleFileError as stale:
        logger.warning("cannot be read: %s", stale, extra=REPEATS)
        raise UnreadableError from None
