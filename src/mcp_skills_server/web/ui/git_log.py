"""The last commits of a local folder with their differences, from the git repository that contains its root."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from mcp_skills_server.sources.git.log import Commit, pathspecs, read_log
from mcp_skills_server.sources.git.program import Git


def commits(folder: str, root: str, without: Sequence[str] = ()) -> list[Commit]:
    """Return the last commits that touched a folder, the newest first; none without git. Blocks.

    Args:
        folder: absolute path in `root`, with links resolved.
        root: absolute path of the root that is served, with links resolved.
        without: folders in `folder` that do not count.
    """
    top = _top(Path(root))
    if top is None or not Path(folder).is_relative_to(top):
        return []
    inside = Path(folder).relative_to(top).as_posix()
    return read_log(Git(top / ".git", "", "none"), pathspecs("" if inside == "." else inside, without)) or []


def _top(root: Path) -> Path | None:
    """Return the directory of the repository that contains a root, None where there is none of this user's own.

    Skills are foreign, so nothing below the root leads to a repository. Nor does a `.git` that refers to another place:
    a file or link (`gitdir:`), `commondir`, or borrowed objects.
    """
    for top in (root, *root.parents):
        place = top / ".git"
        try:
            status = os.lstat(place)
        except OSError:
            continue
        # git itself would ask who owns it, had it looked for the repository.
        is_own = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
        return top if is_own and stat.S_ISDIR(status.st_mode) and _is_whole(place) else None
    return None


def _is_whole(repository: Path) -> bool:
    """Tell whether a repository has all that it knows in itself."""
    if any(os.path.lexists(repository / each) for each in ("commondir", "objects/info/alternates")):
        return False
    kept = [repository / each for each in ("HEAD", "objects", "refs")]
    return all(each.exists() and not each.is_symlink() for each in kept)
