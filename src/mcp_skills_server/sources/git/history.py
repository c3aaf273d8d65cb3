"""History of a served repository: its last commits, fetched on demand.

They lie in a repository of their own beside the one that skills are fetched into, so that nothing of what is served
depends on it; it is removed and fetched anew when another commit is served. A commit comes with its trees, and of the
files those that the differences of one skill need.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from filelock import FileLock, Timeout

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.faults import SourceError
from mcp_skills_server.sources.git.address import GitAddress, is_commit, is_git, parse_address
from mcp_skills_server.sources.git.log import Commit, changed_blobs, pathspecs, read_log
from mcp_skills_server.sources.git.program import Git, GitFailedError
from mcp_skills_server.sources.git.repository import Repository, Tip
from mcp_skills_server.sources.records import read_index, read_records

DEPTH: Final = 64
"""Commits back from the one that is served, among which those of a skill are looked for."""
_MOST_BLOBS: Final = 2_000
_MOST_BYTES: Final = 128 << 20
"""Of what one request to the remote brings."""
_FETCH_S: Final = 15.0
_AGAIN_S: Final = 60.0
"""After a failure the remote is asked no more for so long, however many look."""


class History(NamedTuple):
    """What is known of a skill.

    Attributes:
        commits: the last ones that touched it, the newest first.
        note: why there are none, in one line; "" where there are some, and where there is nothing to say.
    """

    commits: Sequence[Commit] = ()
    note: str = ""


class Histories:
    """The histories of all sources that are repositories. Any thread may use it.

    Args:
        now: seconds of a clock that never goes back.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._failed: dict[Path, tuple[str, float, str]] = {}
        """Commit, until when, and why, by the folder of the source."""

    def of(self, served: str, origin: str, place: str, without: Sequence[str] = ()) -> History:
        """Return the commits behind a skill as it is served. Blocks up to half a minute to fetch them.

        Args:
            served: the folder of the source that is served.
            origin: of the source.
            place: folder of the skill, from `served`; "" for that itself.
            without: folders in it that do not count.
        """
        if not is_git(origin):
            return History()
        source = Path(os.path.realpath(served)).parent
        known, folder = read_index(served, origin), _folder(served, place)
        if folder is None or known is None or not is_commit(known.body):
            return History(note="It is not known which commit this skill is from.")
        tip = Tip(known.body, known.asked)
        commit, until, why = self._failed.get(source, ("", 0.0, ""))
        if commit == tip.commit and self._now() < until:
            return History(note=why)
        if not self._lock.acquire(blocking=False):  # whoever waits would hold a thread
            return History(note="A history is being fetched just now; load this page again in a moment.")
        try:
            address = parse_address(origin, http=True)  # which the operator allowed when it was opened
            inside = "/".join(each for each in (address.folder, folder) if each)
            with FileLock(source / "history.lock", timeout=0):
                found = _read(source / "history", address, tip, pathspecs(inside, without))
                return History(found, "" if found else f"None of the last {DEPTH} commits changed it.")
        except Timeout:
            return History(note="Another process fetches the history just now; load this page again in a moment.")
        except (SourceError, UsageError, GitFailedError, OSError) as error:
            why = f"The history could not be fetched: {error}" if isinstance(error, SourceError) else _FAILED
            self._failed[source] = tip.commit, self._now() + _AGAIN_S, why
            return History(note=why)
        finally:
            self._lock.release()


_FAILED: Final = "The history could not be read."


def _folder(served: str, place: str) -> str | None:
    """Return the folder in the repository of a skill, given where it is served, or None if unknown."""
    for record in read_records(served):
        if place == record.name or place.startswith(f"{record.name}/"):
            within = place[len(record.name) + 1 :]
            if record.url == record.source:  # the skill at the root of the repository
                return within
            return "/".join(each for each in (record.name, within) if each)
    return None


def _read(directory: Path, address: GitAddress, tip: Tip, places: Sequence[str]) -> Sequence[Commit]:
    repository = Repository(
        directory, address, resolve_s=_FETCH_S, fetch_s=_FETCH_S, depth=DEPTH, most_bytes=_MOST_BYTES
    )
    # With no protocol: what is not here yet must not be fetched piece by piece.
    git = Git(directory, "", "none")
    if not repository.has(tip):
        repository.clear()
        repository.fetch(tip)
    # What the first of them changed is not known: its parents are not here.
    revisions = [tip.commit, *(f"^{each}" for each in repository.roots())]
    wanted = changed_blobs(git, places, *revisions)
    if len(wanted) <= _MOST_BLOBS:
        repository.fetch_blobs(tip, wanted, places)
    return read_log(git, places, *revisions) or ()
