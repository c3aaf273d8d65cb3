"""Where a directory's time of modification tells of each name that comes and goes in it: on the local file systems of
Linux. Over a network, in FUSE and in what a virtual machine shares it may be that of another moment, or none."""

from __future__ import annotations

import os
import re
from typing import Final

_TABLE: Final = "/proc/self/mountinfo"
_TIMED: Final = frozenset(
    (b"bcachefs", b"btrfs", b"ext2", b"ext3", b"ext4", b"f2fs", b"jfs", b"overlay", b"ramfs", b"tmpfs", b"xfs", b"zfs")
)
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")


def timed_device(path: str, table: str = _TABLE) -> int | None:
    """The device of a directory's file system where the times of a directory change with its names, None where they may
    not. What is mounted below it has another device, or is of the same file system.

    Args:
        path: absolute and resolved.
        table: the mounts, as proc(5) has them.
    """
    try:
        with open(table, "rb") as file:
            kind = _kind(os.fsencode(path), file.read())
        return os.stat(path).st_dev if kind in _TIMED else None
    except (OSError, LookupError, ValueError):
        return None


def _kind(path: bytes, mounts: bytes) -> bytes:
    """The type of the file system that holds this path: of the mount that lies nearest, and last where several do."""
    nearest, kind = 0, b""
    for line in mounts.splitlines():
        place, _, rest = line.partition(b" - ")
        point = _ESCAPED.sub(lambda found: bytes((int(found[1], 8) & 0xFF,)), place.split()[4]).rstrip(b"/") + b"/"
        if len(point) >= nearest and (path + b"/").startswith(point):
            nearest, kind = len(point), rest.split()[0]
    return kind
