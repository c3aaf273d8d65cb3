"""A skill's files to one archive and back: the same tree gives the same bytes anywhere, and no archive is trusted.

Bytes in, bytes out; nothing is ever written to a disk here. Both formats are written and read by hand, because the
standard library's readers pass over what an attacker adds (bytes before, between and behind the members, members that
overlap, names that are no names). Reading takes memory for what the limits allow and no more.
"""

from __future__ import annotations

from mcp_skills_server.format.archive.tar_reader import read_tar
from mcp_skills_server.format.archive.tree import ArchiveRefusedError, Files, Tree, UnpackLimits, check_paths
from mcp_skills_server.format.archive.writer import MEDIA_TYPES, TAR_GZ, ZIP, pack, pack_tar
from mcp_skills_server.format.archive.zip_reader import END, LOCAL, read_zip

__all__ = (
    "MEDIA_TYPES",
    "TAR_GZ",
    "ZIP",
    "ArchiveRefusedError",
    "Files",
    "UnpackLimits",
    "check_paths",
    "is_archive",
    "pack",
    "pack_tar",
    "unpack",
)


def is_archive(name: str) -> bool:
    """Tell whether a file is called like an archive that `unpack` reads."""
    return name.lower().endswith((ZIP, TAR_GZ, ".tgz"))


def unpack(raw: bytes, limits: UnpackLimits | None = None) -> dict[str, tuple[bytes, bool]]:
    """Return the files of a `.tar.gz` or `.zip` by path, in path order.

    The first bytes show the format, so a wrong Content-Type or suffix does no harm. Names are given as they
    are, but for a leading `./`; directories without files are left out. No name leads anywhere but below the place
    where the caller puts it, on any platform. Whether it is a skill is for others to say.

    Raises:
        ArchiveRefusedError: it is damaged, over a limit, or holds what no skill needs: links, devices, encrypted
            members, names that a platform cannot hold or tell apart, bytes that belong to no member.
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
