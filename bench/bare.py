"""The least that any first scan must do: look at every directory, stat every file, read each SKILL.md."""

from __future__ import annotations

import os


def bare_scan(root: str) -> tuple[int, int]:
    """Walk `root`; returns how many files there are and how many bytes the SKILL.md files have."""
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
                if entry.name == "SKILL.md":
                    with open(entry.path, "rb", buffering=0) as file:
                        size += len(file.read())
    return files, size
