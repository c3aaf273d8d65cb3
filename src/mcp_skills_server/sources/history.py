"""Which indexes a site has had, as far as a folder has seen them: one that comes back is a rollback.

Whoever answers in the place of a site, or a part of it that was left behind, can repeat what the site said once: all
of its digests are right. Only somebody who remembers can see it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from mcp_skills_server.format.ignored import OURS
from mcp_skills_server.sources.faults import RollbackError
from mcp_skills_server.sources.records import IndexRecord, file_of

HISTORIES: Final = f"{OURS}/history"
"""Where, in a folder of fetched skills, it lies which indexes there were."""
MOST: Final = 1000
"""So many indexes are remembered of each place, the newest."""
_MOST_BYTES: Final = MOST * 80
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class History:
    """The indexes that were seen at one place.

    Attributes:
        digests: sha256 in hex of each, in the order in which they were first seen; the last is the one that is there.
            One that is taken again is the last again.
    """

    digests: tuple[str, ...] = ()

    def goes_back(self, digest: str) -> bool:
        """Whether this index was there before, and another one since."""
        return digest in self.digests[:-1]

    def then(self, digest: str) -> History:
        """The history once this index is there."""
        return History((*(each for each in self.digests if each != digest), digest)[-MOST:])

    def encoded(self) -> bytes:
        """As it is written."""
        return json.dumps({"version": 1, "digests": self.digests}).encode()


def digest_of(index: IndexRecord) -> str:
    """What an index is remembered by: its bytes, wherever they came from."""
    return hashlib.sha256(index.body.encode("utf-8", "surrogateescape")).hexdigest()


def path_of(directory: str | os.PathLike[str], place: str) -> Path:
    """The file with the history of this place, in a folder of fetched skills."""
    return Path(directory, HISTORIES, file_of(place))


def read_history(directory: str | os.PathLike[str], place: str) -> History | None:
    """The history of an index, empty where nothing was seen yet; None where its file cannot be understood.

    Args:
        directory: a folder of fetched skills.
        place: where the index was asked for. A site may have one of each version, and one of them be away for a while.
    """
    try:
        with path_of(directory, place).open("rb") as file:
            data: Any = json.loads(file.read(_MOST_BYTES))
        digests = cast("tuple[str, ...]", tuple(data["digests"]))
        if data["version"] != 1 or not all(map(_DIGEST.fullmatch, digests)):
            return None
    except FileNotFoundError:
        return History()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return History(digests[-MOST:])


def enter(
    directory: str | os.PathLike[str],
    index: IndexRecord,
    write: Callable[[Path, bytes], object],
    *,
    allow_rollback: bool,
) -> Sequence[str]:
    """Remember that this index was there. That comes before anything is brought of it: a process that is killed then
    has not forgotten what it serves.

    Args:
        directory: a folder of fetched skills.
        index: as it came.
        write: replaces a file whole, for its owner alone to read.
        allow_rollback: whether it may be one that was there before.

    Returns:
        What the operator should hear, one line each.

    Raises:
        RollbackError: it was there before, and another one since.
    """
    warnings: list[str] = []
    digest, known = digest_of(index), read_history(directory, index.asked)
    if known is None:
        warnings.append("which indexes it had before cannot be read; an older one is not noticed this time")
        known = History()
    if known.goes_back(digest) and not allow_rollback:
        raise RollbackError("it went back to an index that it had before; --allow-rollback takes it")
    if known.digests[-1:] != (digest,):
        try:
            write(path_of(directory, index.asked), known.then(digest).encoded())
        except OSError as error:
            reason = error.strerror or error
            warnings.append(f"its index cannot be remembered ({reason}); that it comes back one day is not noticed")
    return warnings
