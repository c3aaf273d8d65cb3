"""A skill's files to one archive and back: the same tree gives the same bytes anywhere, and no
archive is trusted.

Bytes in, bytes out; nothing is ever written to a disk here. Both formats are written and read by
hand. The standard library's readers pass over what an attacker adds (bytes before, between and
behind the members, members that overlap, names that are no names), and its writers leave marks of
the machine (PAX headers, versions of zlib). Reading takes memory for what the limits allow and no
more.

What is written is stored, not compressed: different builds of zlib (zlib-ng, Apple's, hardware)
compress the same input to different bytes, and a digest in an index must not depend on who computed
it. A deflate stream of stored blocks has one spelling. It costs transfer: 148 public skills came to
three and a half times their compressed size, the median one to 60 KiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mcp_skills_server.format.archive.tar import fits_ustar, read_tar, write_tar
from mcp_skills_server.format.archive.tree import (
    ArchiveRefusedError,
    Files,
    Tree,
    UnpackLimits,
    check_name,
    check_paths,
)
from mcp_skills_server.format.archive.zip import END, LOCAL, read_zip, write_zip

__all__ = (
    "MEDIA_TYPES", "TAR_GZ", "ZIP", "ArchiveRefusedError", "Files", "UnpackLimits", "check_paths",
    "is_archive", "pack", "pack_tar", "unpack",
)  # fmt: skip

TAR_GZ: Final = ".tar.gz"
ZIP: Final = ".zip"
MEDIA_TYPES: Final[Mapping[str, str]] = {TAR_GZ: "application/gzip", ZIP: "application/zip"}
"""By suffix."""


def is_archive(name: str) -> bool:
    """Tell whether a file is called like an archive that `unpack` reads."""
    return name.lower().endswith((ZIP, TAR_GZ, ".tgz"))


def unpack(raw: bytes, limits: UnpackLimits | None = None) -> dict[str, tuple[bytes, bool]]:
    """Return the files of a `.tar.gz` or `.zip` by path, in path order.

    The first bytes show the format, so a wrong Content-Type or suffix does no harm. Names are given
    as they are, but for a leading `./`; directories without files are left out. No name leads
    anywhere but below the place where the caller puts it, on any platform. Whether it is a skill is
    for others to say.

    Raises:
        ArchiveRefusedError: it is damaged, over a limit, or holds what no skill needs: links,
            devices, encrypted members, names that a platform cannot hold or tell apart, bytes that
            belong to no member.
    """
    limits = limits or UnpackLimits()
    tree = Tree(limits)
    if raw.startswith(b"\x1f\x8b"):  # WK-26: what it is called does not count
        read_tar(raw, limits, tree)
    elif raw.startswith((LOCAL, END)):
        read_zip(raw, limits, tree)
    else:
        raise ArchiveRefusedError("the archive is neither a .tar.gz nor a .zip")
    return tree.checked()


def pack(files: Files) -> tuple[str, bytes]:
    """Return the archive of a skill as (suffix, bytes): `.tar.gz`, or `.zip` where ustar cannot
    hold a name.

    Files stand at the root, sorted by path, with mode 0644 or 0755 and nothing else of the machine
    they came from: no owner, no time, no directories, no links, no `./`. A zip is taken when a name
    is not ASCII or does not fit 100 bytes and a prefix of 155. The bytes are the same on every
    machine.

    Raises:
        ArchiveRefusedError: a name is not a plain relative path, or the files are too large for the
            format.
    """
    members = _members(files)
    if all(fits_ustar(path, len(raw)) for path, (raw, _) in members):
        return TAR_GZ, write_tar(members)
    return ZIP, write_zip(members)


def pack_tar(files: Files) -> bytes:
    """Return the same as a `.tar.gz` whatever the names are, for those who read no other format.

    Raises:
        ArchiveRefusedError: a name is not a plain relative path, or a file is too large for the
            format.
    """
    return write_tar(_members(files))


def _members(files: Files) -> list[tuple[str, tuple[bytes, bool]]]:
    for path in files:
        check_name(path)
    return sorted(files.items())
