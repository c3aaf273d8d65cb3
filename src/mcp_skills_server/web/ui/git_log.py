"""What git knows of a folder of the operator's own: its last commits with their differences.

The repository is read by the program in the way that sources are (`sources/git/program.py`): nothing that stands in
its configuration is started.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mcp_skills_server.sources.faults import SourceError
from mcp_skills_server.sources.git.program import Git, GitFailedError

MOST: Final = 20
_MOST_BYTES: Final = 1 << 20
_MOST_LINES: Final = 500
_SECONDS: Final = 5.0
_FORMAT: Final = "%x00%H%x1f%at%x1f%an%x1f%s%x1f"


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit that touched a skill.

    Attributes:
        id: of the commit, in hex.
        time: when it was written, in seconds since 1970.
        author: who wrote it, as it says.
        subject: the first line of its message.
        lines: a unified diff of what it changed in the skill.
        is_whole: whether there are no more lines.
    """

    id: str
    time: float
    author: str
    subject: str
    lines: tuple[str, ...]
    is_whole: bool


def commits(folder: str, without: tuple[str, ...] = ()) -> list[Commit]:
    """The last commits that touched a folder, the newest first; none where there is no git. Blocks.

    Args:
        folder: absolute path, with links resolved.
        without: folders in it that do not count.
    """
    found = _repository(Path(folder))
    if found is None:
        return []
    repository, top = found
    inside = Path(folder).relative_to(top).as_posix()
    places = [f":(top,literal){inside}" if inside != "." else ":(top)"]
    places += [
        f":(top,literal,exclude){inside}/{each}" if inside != "." else f":(top,literal,exclude){each}"
        for each in without
    ]
    words = ["log", "--no-show-signature", "--no-color", f"--max-count={MOST}", f"--format={_FORMAT}"]
    git = Git(repository, "", "none")
    try:
        shown = ["--patch", "--no-ext-diff", "--no-textconv", "--no-renames", "--unified=3"]
        raw = git.run(*words, *shown, "--", *places, seconds=_SECONDS, most=_MOST_BYTES)
    except (GitFailedError, SourceError):
        try:
            raw = git.run(*words, "--", *places, seconds=_SECONDS, most=_MOST_BYTES)
        except (GitFailedError, SourceError):
            return []
    return [_commit(each) for each in raw.decode("utf-8", "replace").split("\0") if each.count("\x1f") >= 4]


def _commit(text: str) -> Commit:
    commit, moment, author, subject, rest = text.split("\x1f", 4)
    lines = rest.strip("\n").split("\n")
    return Commit(commit, float(moment or 0), author, subject, tuple(lines[:_MOST_LINES]), len(lines) <= _MOST_LINES)


def _repository(folder: Path) -> tuple[Path, Path] | None:
    """The repository that a folder lies in, and its top; None where there is none of this user's own."""
    for top in (folder, *folder.parents):
        place = top / ".git"
        try:
            if place.is_file():  # of a worktree or a submodule
                said = place.read_text(encoding="utf-8", errors="replace").strip()
                place = Path(os.path.normpath(top / said.removeprefix("gitdir:").strip()))
            if (place / "HEAD").exists():
                # git itself would ask the same, had it looked for the repository.
                return (place, top) if not hasattr(os, "geteuid") or place.stat().st_uid == os.geteuid() else None
        except OSError:
            return None
    return None
