"""Trees by content, and the root that is served: a link to one of them, moved once the new tree is whole.

Nobody sees half of a tree: it is written aside and renamed to its digest, and never changed after that.
"""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from mcp_skills_server.durable import sync_path
from mcp_skills_server.format.archive import Files
from mcp_skills_server.sources.files import clear, write_tree


def point_link(link: Path, folder: Path) -> None:
    """Point a link to a folder, atomically.

    Raises:
        OSError: it cannot be made; Windows wants a privilege for links.
    """
    fresh = link.with_name(f"{link.name}.fresh")
    clear(fresh)
    fresh.symlink_to(folder, target_is_directory=True)
    os.replace(fresh, link)


class Store:
    """The trees of one source. Every method blocks.

    Args:
        directory: where they are kept; None for a private folder of the process, which is removed at its end.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._given = directory
        self._own: Path | None = None

    @property
    def directory(self) -> Path:
        """Where the trees are. It is made again where somebody removed it, as what clears old temporary files does.

        Raises:
            OSError: it cannot be made, or another user has something there.
        """
        if self._given is not None:
            self._given.mkdir(parents=True, exist_ok=True)
            return self._given
        if self._own is None:
            self._own = Path(tempfile.mkdtemp(prefix="mcp-skills-"))
            atexit.register(self.close)
        with suppress(FileExistsError):
            self._own.mkdir(mode=0o700)
        found = os.lstat(self._own)
        if not stat.S_ISDIR(found.st_mode) or (hasattr(os, "geteuid") and found.st_uid != os.geteuid()):
            raise OSError(errno.EEXIST, "another user has put something there", os.fspath(self._own))
        return self._own

    @property
    def root(self) -> Path:
        """What is served. It is there after the first `serve`."""
        return self.directory / "skills"

    def put(self, digest: str, files: Files) -> Path:
        """Keep these files, which `digest` names, as a tree; the tree that is there already where there is one.

        Raises:
            OSError: the disk is full, or the like.
        """
        tree, made = self.directory / digest, self.directory / "making"
        if not tree.is_dir():
            write_tree(made, files, durable=self._given is not None, umask=False)
            os.rename(made, tree)
            sync_path(self.directory)
        return tree

    def serve(self, tree: Path) -> None:
        """Have the root be this tree, and remove the others.

        Raises:
            OSError: it cannot be written.
        """
        link, fresh = self.root, self.directory / "fresh"
        clear(fresh)
        try:
            fresh.symlink_to(tree.name, target_is_directory=True)
        except OSError:  # Windows wants a privilege for links
            shutil.rmtree(link, ignore_errors=True)
            shutil.copytree(tree, link)
        else:
            os.replace(fresh, link)
        for other in self.directory.iterdir():
            if other not in {tree, link}:
                clear(other)

    def close(self) -> None:
        """Remove the trees, where they are the process's own."""
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)
            atexit.unregister(self.close)
