"""The least that any first scan must do: look at every directory, stat every file, read what it must know."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Container


def bare_scan(root: str, reads: Container[str] | None = ("SKILL.md",), *, hashes: bool = False) -> tuple[int, int]:
    """Walk `root`; returns how many files there are and how many bytes those have that were read.

    Args:
        root: the directory.
        reads: the names of the files to read, None for every file.
        hashes: compute the SHA-256 of what was read.
    """
    files = size = 0
    directories = [root]
    while directories:
        with os.scandir(directories.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.path)
                    continue
                entry.stat(follow_symlinks=False)
                files += 1
                if reads is None or entry.name in reads:
                    with open(entry.path, "rb", buffering=0) as file:
                        raw = file.read()
                    size += len(raw)
                    if hashes:
                        hashlib.sha256(raw).hexdigest()
    return files, size
