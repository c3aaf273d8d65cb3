"""What git knows of a folder of the operator's own: its last commits with their differences."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mcp_skills_server.sources.git.log import Commit, places_of, read_log
from mcp_skills_server.sources.git.program import Git


def commits(folder: str, without: Sequence[str] = ()) -> list[Commit]:
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
    return read_log(Git(repository, "", "none"), places_of("" if inside == "." else inside, without)) or []


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
