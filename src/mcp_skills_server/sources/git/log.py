"""Bounded `git log` with patches for some paths.

Nothing that the repository, its configuration or the user's could name is started, and nothing is fetched. All of it is
foreign text: what ends a field is made up for each call, so that no author and no message can end one.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mcp_skills_server.format import ignored
from mcp_skills_server.sources.faults import SourceError
from mcp_skills_server.sources.git.program import Git, GitFailedError

MOST: Final = 20
"""Commits that are shown."""
_MOST_BYTES: Final = 1 << 20
_MOST_LINES: Final = 500
_MOST_CHARACTERS: Final = 2_000
"""Of one line, and of what an author or a message says."""
_SECONDS: Final = 5.0
_LAST_MOMENT: Final = 253_402_300_799
"""The end of the year 9999; a commit may name any."""
_LOG: Final = (
    "log", "--no-show-signature", "--no-color", "--no-mailmap", "--no-notes", "--encoding=UTF-8", "--no-renames",
    f"--max-count={MOST}",
)  # fmt: skip
_PATCH: Final = ("--patch", "--no-ext-diff", "--no-textconv", "--unified=3")
_WILD: Final = re.compile(r"[*?\[\\]")
_IGNORED: Final = [
    f"{deep}{each}{end}"
    for each in ignored.PATTERNS
    for deep in ([""] if each[0] == "*" else ["", "*/"])
    for end in ([""] if each[-1] == "*" else ["", "/*"])
]
"""The names that are never served, of files and of folders, however deep: a star of git fits slashes too."""
_CHANGED: Final = re.compile(rb":\d{6} \d{6} ([0-9a-f]{40}|[0-9a-f]{64}) ([0-9a-f]{40}|[0-9a-f]{64}) [A-Z]\0")


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit that touched the paths.

    Attributes:
        id: of the commit, in hex.
        time: when it was written, as it says, in seconds since 1970; from 0 to the end of the year 9999.
        author: who wrote it, as it says.
        subject: the first line of its message.
        lines: a unified diff of what it changed there; empty where git cannot tell.
        is_whole: whether there are no more lines.
    """

    id: str
    time: float
    author: str
    subject: str
    lines: tuple[str, ...]
    is_whole: bool


def pathspecs(folder: str, without: Sequence[str] = ()) -> list[str]:
    """Return git pathspecs for a folder, without some folders in it and without what is never served.

    Args:
        folder: from the top of the repository, with `/`; "" for all of it.
        without: from that folder.
    """
    before = f"{folder}/" if folder else ""
    places = [f":(top,literal){folder}" if folder else ":(top)"]
    places += [f":(top,literal,exclude){before}{each}" for each in without]
    above = _WILD.sub(r"\\\g<0>", before)
    return places + [f":(top,exclude){above}{each}" for each in _IGNORED]


def read_log(git: Git, places: Sequence[str], *revisions: str) -> list[Commit] | None:
    """Return the last commits that touched these places, newest first, or None if git fails. Blocks.

    Args:
        git: the program, for the repository.
        places: as `pathspecs` has them.
        revisions: where to begin, and with `^` before them where to end; HEAD where there are none.
    """
    mark = secrets.token_hex(16)
    words = [*_LOG, f"--format={mark}%H{mark}%at{mark}%an{mark}%s{mark}"]
    for more in (_PATCH, ()):  # where the differences are too large, or not all there, the commits are shown alone
        try:
            raw = git.run(
                *words, *more, "--end-of-options", *revisions, "--", *places, seconds=_SECONDS, most=_MOST_BYTES
            )
        except (GitFailedError, SourceError):
            continue
        parts = raw.decode("utf-8", "replace").split(mark)[1:]
        return [_commit(*parts[at : at + 5]) for at in range(0, len(parts) - 4, 5)]
    return None


def changed_blobs(git: Git, places: Sequence[str], *revisions: str) -> set[str]:
    """Return the ids of all blobs that `read_log` would compare.

    Raises:
        GitFailedError: git cannot tell.
    """
    raw = git.run(
        *_LOG,
        "--format=",
        "--raw",
        "--no-abbrev",
        "-z",
        "--end-of-options",
        *revisions,
        "--",
        *places,
        seconds=_SECONDS,
        most=_MOST_BYTES,
    )
    return {each.decode() for pair in _CHANGED.findall(raw) for each in pair if each.strip(b"0")}


def _commit(commit: str, moment: str, author: str, subject: str, rest: str) -> Commit:
    lines = rest.strip("\n").split("\n")
    shown = tuple(each[:_MOST_CHARACTERS] for each in lines[:_MOST_LINES]) if rest.strip("\n") else ()
    when = min(int(moment), _LAST_MOMENT) if moment.isascii() and moment.isdigit() else 0
    return Commit(
        commit, float(when), author[:_MOST_CHARACTERS], subject[:_MOST_CHARACTERS], shown, len(lines) <= _MOST_LINES
    )
