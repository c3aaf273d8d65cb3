"""Pointers of Git LFS: what a repository has in the place of a file whose content is kept elsewhere."""

from __future__ import annotations

from typing import Final

_BEGINNING: Final = b"version https://git-lfs.github.com/spec/v1\n"
_MOST_BYTES: Final = 1024
FAULT: Final = "the file is a pointer of Git LFS and not the content that it stands for"


def is_pointer(raw: bytes) -> bool:
    """Tell whether these bytes are such a pointer and not the content that is meant."""
    return raw.startswith(_BEGINNING) and len(raw) < _MOST_BYTES
