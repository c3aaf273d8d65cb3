"""Reproducible tar and zip archives of a skill's files, and safe unpacking of untrusted ones.

Both formats are parsed and written by hand, in memory. The standard library's readers ignore what
an attacker adds: bytes around the members, overlapping members, invalid names. Its writers leave
marks of the machine (PAX headers, versions of zlib). The limits bound the memory that is used.

Members are stored, not compressed. Builds of zlib (zlib-ng, Apple's, hardware) compress the same
input to different bytes, and a digest in an index must not depend on the machine. A deflate stream
of stored blocks has exactly one encoding. It costs transfer: 148 public skills came to three and a
half times their compressed size, the median one to 60 KiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mcp_skills_server.format.archive.tar import GZIP, XZ, fits_ustar, is_tar, read_tar, write_tar
from mcp_skills_server.format.archive.tree import (
    ArchiveRefusedError,
    Files,
    Tree,
    UnpackLimits,
    check_name,
    check_paths,
)
from mcp_skills_server.format.archive.zip import END, LOCAL, read_zip, write_zip
from mcp_skills_server.format.ignored import ARCHIVES

__all__ = (
    "MEDIA_TYPES", "TAR_GZ", "ZIP", "ArchiveRefusedError", "Files", "UnpackLimits", "check_paths",
    "is_archive", "is_tar", "pack", "pack_tar", "unpack",
)  # fmt: skip

TAR_GZ: Final = ".tar.gz"
ZIP: Final = ".zip"
MEDIA_TYPES: Final[Mapping[str, str]] = {TAR_GZ: "application/gzip", ZIP: "application/zip"}
"""Media types by suffix."""


def is_archive(name: str) -> bool:
    """Tell whether a file name has the suffix of an archive that `unpack` reads."""
    return name.lower().endswith(ARCHIVES)


def unpack(raw: bytes, limits: UnpackLimits | None = None) -> dict[str, tuple[bytes, bool]]:
    """Return (content, is executable) of each file of a zip or tar by path, in path order.

    The first bytes select the format, whatever the Content-Type or suffix. Paths lose a leading
    `./`; empty directories are dropped. Every path stays inside the target directory, on any
    platform. The files need not be a skill.

    Raises:
        ArchiveRefusedError: the archive is damaged, over a limit, or holds what no skill needs:
            links, devices, encrypted members, names that a platform cannot hold or tell apart,
            bytes outside of the members.
    """
    limits = limits or UnpackLimits()
    tree = Tree(limits)
    if raw.startswith((LOCAL, END)):  # WK-26: the content decides, not the name
        read_zip(raw, limits, tree)
    elif raw.startswith((GZIP, XZ)) or is_tar(raw):
        read_tar(raw, limits, tree)
    else:
        raise ArchiveRefusedError(f"its content is none of {', '.join(ARCHIVES)}")
    return tree.finish()


def pack(files: Files) -> tuple[str, bytes]:
    """Return the archive of a skill as (suffix, bytes): `.tar.gz`, else `.zip`.

    Members are files only, sorted by path, with mode 0644 or 0755 and no owner, time or `./`. So
    every machine makes the same bytes. It is a zip if a name is not ASCII or exceeds 100 bytes
    and a prefix of 155, or a file has 8 GiB or more.

    Raises:
        ArchiveRefusedError: a name is not a plain relative path, or the files are too large for the
            format.
    """
    members = _members(files)
    if all(fits_ustar(path, len(raw)) for path, (raw, _) in members):
        return TAR_GZ, write_tar(members)
    return ZIP, write_zip(members)


def pack_tar(files: Files) -> bytes:
    """Return the archive as `pack` does, but always as `.tar.gz`, for readers of that format alone.

    Raises:
        ArchiveRefusedError: a name is not a plain relative path, or a file is too large for the
            format.
    """
    return write_tar(_members(files))


def _members(files: Files) -> list[tuple[str, tuple[bytes, bool]]]:
    for path in files:
        check_name(path)
    return sorted(files.items())
