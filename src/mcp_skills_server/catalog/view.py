"""The view of one request: a snapshot that is bound once, and the bytes of its files.

A handler is a function of a view. It raises StaleFileError when a file is no longer the one that was scanned; then the
file's skill is scanned again and the handler is called again with a view of the new snapshot.
"""

from __future__ import annotations

import logging
from asyncio import sleep
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from mcp_skills_server.catalog.reader import Body
from mcp_skills_server.catalog.skill_set import SkillSet
from mcp_skills_server.catalog.threads import in_thread, off_loop
from mcp_skills_server.errors import REPEATS, StaleFileError, UnreadableError
from mcp_skills_server.model import SKILL_MD, Skill, Snapshot
from mcp_skills_server.telemetry import events

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_TRIES: Final = 5
_PAUSE_S: Final = 0.005
"""Before each try after the second: what is being written needs time."""
_INLINE_BYTES: Final = 1 << 18
"""Larger files are read off the event loop."""
_INLINE_MARKDOWN: Final = 1 << 14
"""A longer SKILL.md is parsed off the event loop; for a shorter one the switch of threads would cost more."""


class View:
    """The skills that one request is answered from.

    Args:
        skill_set: the skills that the grants leave to the caller.
        last_try: whether a file that changed is no reason to call the handler again.

    Attributes:
        skill_set: as given.
        snapshot: all that the request sees, as it was when the view was made.
        last_try: as given.
    """

    __slots__ = ("last_try", "skill_set", "snapshot")

    def __init__(self, skill_set: SkillSet, *, last_try: bool = True) -> None:
        self.skill_set = skill_set
        self.snapshot: Snapshot = skill_set.snapshot
        self.last_try = last_try
        skill_set.note_request()

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
        quick = skill.files[SKILL_MD].size <= _INLINE_MARKDOWN or self.skill_set.has_body(skill)
        found = await off_loop(quick, self.skill_set.body, skill)
        events.was_read(skill, SKILL_MD)
        return found

    async def digests(self, skill: Skill) -> dict[str, str]:
        """Return the digests of the skill's files, by path; on the last try without files that cannot be read.

        Raises:
            StaleFileError: as for `read`.
        """
        known = {path: file.digest for path, file in skill.files.items() if file.digest is not None}
        return known if len(known) == len(skill.files) else await off_loop(False, self._digests, skill)

    async def hash_files(self, skills: Sequence[Skill]) -> None:
        """Compute the digests of these skills' files that are not known yet."""
        if skills:
            await in_thread(self._hash_files, skills)

    def _digests(self, skill: Skill) -> dict[str, str]:
        found: dict[str, str] = {}
        for path, file in skill.files.items():
            try:
                found[path] = self.skill_set.digest(file)
            except StaleFileError as stale:
                if not self.last_try:
                    raise
                logger.warning("%s is shown without a file of it: %s", skill.path, stale, extra=REPEATS)
        return found

    def _hash_files(self, skills: Sequence[Skill]) -> None:
        for skill in skills:
            self.skill_set.hash_files(skill)


def is_hashed(skill: Skill) -> bool:
    """Tell whether all digests of the skill's files are known."""
    return None not in [file.digest for file in skill.files.values()]


async def retry_when_stale(skill_set: SkillSet, handler: Callable[[View], Awaitable[_T]]) -> _T:
    """Return what the handler returns, called again with a new view for as long as it finds that files have changed.

    Raises:
        UnreadableError: a file did not hold still, or stays unreadable.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            return await handler(View(skill_set, last_try=not tries_left))
        except StaleFileError as stale:
            if not tries_left:
                logger.warning("cannot be read: %s", stale, extra=REPEATS)
                raise UnreadableError from None
            events.begins_again()
            await in_thread(skill_set.rescan, stale)
            if tries_left < _TRIES - 1:
                await sleep(_PAUSE_S)
    raise AssertionError
