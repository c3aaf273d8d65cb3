"""Byte quota over all skills of a site together.

An archive is two hundred times as large as what was downloaded, and limits for each skill still add up.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock

from mcp_skills_server.sources.faults import UnacceptableError


class UnpackedBudget:
    """How many bytes the skills of an index have in the folder, so that all of them together stay below a limit.

    Args:
        most: bytes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        self._lock = Lock()

    def hold(self, name: str, size: int) -> None:
        """Set the size of a skill."""
        with self._lock:
            self._hold(name, size)

    def check(self, name: str, size: int) -> None:
        """Prove that a skill may have so many bytes in the place of those that it has.

        Raises:
            UnacceptableError: together with the others they are too many.
        """
        if self._bytes - self._sizes.get(name, 0) + size > self._most:
            reason = f"all skills of the site together have more than {self._most} bytes, unpacked"
            raise UnacceptableError(f"{reason}; 'fetch --max-unpacked-bytes' allows more")

    @contextmanager
    def taken(self, name: str, size: int) -> Generator[None]:
        """Reserve bytes for a skill; if the `with` fails, it has what it had before.

        Raises:
            UnacceptableError: as for `check`.
        """
        with self._lock:
            before = self._sizes.get(name, 0)
            self.check(name, size)
            self._hold(name, size)
        try:
            yield
        except BaseException:
            self.hold(name, before)
            raise

    def _hold(self, name: str, size: int) -> None:
        self._bytes += size - self._sizes.get(name, 0)
        self._sizes[name] = size
