"""What makes a file of an index one that somebody else may have written."""

from __future__ import annotations

from pathlib import Path


def writable_by_others(path: Path) -> None:
    path.chmod(0o666)


def folder_writable_by_others(path: Path) -> None:
    path.parent.chmod(0o777)


def a_link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")
