"""Limits and path checks of an archive that is being unpacked, and the collection of its files."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from mcp_skills_server.errors import SkillsServerError
from mcp_skills_server.format import file_names
from mcp_skills_server.format.excerpts import quoted

Files: TypeAlias = Mapping[str, tuple[bytes, bool]]
"""Content and executable flag of each file, by its path in the skill."""

_MAX_SEGMENT: Final = 255
_MAX_PATH: Final = 1024
_MAX_DEPTH: Final = 32
"""Most bytes of a name and of a path on common file systems; levels deeper than any real tree."""
_DRIVE: Final = re.compile(r"[A-Za-z]:")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_FREE_BYTES: Final = 1 << 20
_MAX_HEADER: Final = 1 << 16
_FREE_HEADERS: Final = 1 << 20
_HEADER_BYTES: Final = 1 << 10
"""Bytes of extension headers for each allowed file: only this bounds the work of parsing them."""


class ArchiveRefusedError(SkillsServerError, ValueError):
    """A refused archive, or a name that no archive may hold; the message is one line for people."""


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    """Limits of unpacking; the defaults are those of the most used consumer.

    Attributes:
        files: number of files. Members and directories are limited to four times this number, tar
            extension headers to 1 KiB for each file and at least 1 MiB.
        bytes: total bytes of all files.
        file: bytes of one file.
        ratio: unpacked bytes for each byte of the archive; the first MiB is exempt.
    """

    files: int = 1000  # WK-30, WKO-9
    bytes: int = 50 << 20
    file: int = 16 << 20
    ratio: int = 200


def check_paths(paths: Iterable[str]) -> None:
    """Check that files with these paths can be written below one directory on any platform.

    Raises:
        ArchiveRefusedError: a path cannot, as for `unpack`; the message names the first.
    """
    tree = Tree(UnpackLimits(files=sys.maxsize))
    for path in paths:
        check_name(path)
        tree.reserve(path, 0)
    tree.finish()


def check_name(name: str) -> None:
    """Check that a name is a plain relative path.

    Raises:
        ArchiveRefusedError: on some platform the name is not a plain relative path.
    """
    fault = _fault(name)
    if fault:
        raise ArchiveRefusedError(f"the name {quoted(name)} {fault}")


def _fault(name: str) -> str | None:  # WK-24, WK-28
    segments = name.split("/")
    for is_fault, words in (
        (_CONTROL.search(name), "holds a control character"),
        ("\\" in name, "holds a backslash"),
        (name.startswith("/"), "is absolute"),
        (_DRIVE.match(name), "begins with a drive letter"),
        (".." in segments, "leads out of the skill"),
        ("" in segments or "." in segments, "is not a plain path"),
    ):
        if is_fault:
            return words
    try:
        lengths = [len(segment.encode()) for segment in segments]
    except UnicodeEncodeError:
        return "is not UTF-8"
    if len(segments) > _MAX_DEPTH:
        return f"is more than {_MAX_DEPTH} levels deep"
    if max(lengths) > _MAX_SEGMENT or sum(lengths) + len(segments) - 1 > _MAX_PATH:
        return "is too long"
    return None


def decode_name(name: bytes) -> str:
    """Decode a name.

    Raises:
        ArchiveRefusedError: the name is not UTF-8.
    """
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        raise ArchiveRefusedError(
            f"the name {quoted(name.decode('latin-1'))} is not UTF-8"
        ) from None


class Tree:
    """The collected files of an archive, each checked for conflicts with the earlier ones."""

    def __init__(self, limits: UnpackLimits) -> None:
        self._limits = limits
        self._files: dict[str, tuple[bytes, bool]] = {}
        self._directories: set[str] = set()
        self._members = 0
        self._bytes = 0
        self._header_bytes = 0

    def count(self) -> None:
        """Count a member of any kind against the limit."""
        self._members += 1
        self._check_number(self._members, "members")

    def count_header(self, size: int) -> None:
        """Count the bytes of an extension header against the limit, before they are unpacked."""
        if size > _MAX_HEADER:
            raise ArchiveRefusedError(f"the archive holds a header of {size} bytes")
        self._header_bytes += size
        most = max(_FREE_HEADERS, _HEADER_BYTES * self._limits.files)
        if self._header_bytes > most:
            raise ArchiveRefusedError(f"the archive holds headers of more than {most} bytes")

    def _check_number(self, number: int, what: str) -> None:
        most = 4 * self._limits.files + 4
        if number > most:
            raise ArchiveRefusedError(f"the archive holds more than {most} {what}")

    def parse_name(self, name: str) -> tuple[str, bool]:
        """Return (path, is directory) of a member's name; the archive's root has the path ""."""
        if name in {".", "./"}:
            return "", True
        path = name.removeprefix("./")
        is_directory = path.endswith("/") or path in {"", "."}
        path = path.removesuffix("/")
        check_name(path or name)
        return path, is_directory

    def add_directory(self, path: str) -> None:
        """Add a directory and its parents."""
        if path in self._directories:  # added together with its parents
            return
        parts = path.split("/")
        for length in range(1, len(parts) + 1):
            above = "/".join(parts[:length])
            if above in self._files:
                raise ArchiveRefusedError(f"{quoted(above)} is both a file and a directory")
            self._directories.add(above)
        # Implied parents count too: each member can add as many as its path has levels.
        self._check_number(len(self._directories), "directories")

    def reserve(self, path: str, size: int) -> None:
        """Admit a file of `size` bytes to the tree, before its content is unpacked."""
        if path in self._files:
            raise ArchiveRefusedError(f"the name {quoted(path)} appears twice")
        if path in self._directories:
            raise ArchiveRefusedError(f"{quoted(path)} is both a file and a directory")
        limits = self._limits
        self._bytes += size
        if size > limits.file:
            raise ArchiveRefusedError(
                f"{quoted(path)} has {size} bytes, at most {limits.file} are unpacked"
            )
        if self._bytes > limits.bytes:
            raise ArchiveRefusedError(f"the archive unpacks to more than {limits.bytes} bytes")
        if len(self._files) >= limits.files:
            raise ArchiveRefusedError(f"the archive holds more than {limits.files} files")
        directory = path.rpartition("/")[0]
        if directory:
            self.add_directory(directory)
        self._files[path] = (b"", False)

    def store(self, path: str, raw: bytes, executable: bool) -> None:
        """Set the content of an admitted file."""
        self._files[path] = (raw, executable)

    def finish(self) -> dict[str, tuple[bytes, bool]]:
        """Return all files in path order after checking that their names are portable."""
        for fault in file_names.faults(sorted(self._directories | self._files.keys())):
            raise ArchiveRefusedError(f"{quoted(fault.path)}: {fault.message}")
        return dict(sorted(self._files.items()))


def check_ratio(size: int, packed: int, limits: UnpackLimits) -> None:
    """Check the compression ratio of an archive of `packed` bytes that unpacks to `size` or more.

    Raises:
        ArchiveRefusedError: `size` exceeds both 1 MiB and `limits.ratio` times `packed`.
    """
    if size > max(_FREE_BYTES, limits.ratio * packed):
        raise ArchiveRefusedError(f"the archive unpacks to more than {limits.ratio} times its size")
