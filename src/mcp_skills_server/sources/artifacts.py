"""Download and verify the files of one skill that an index names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from mcp_skills_server.dialects import wellknown
from mcp_skills_server.dialects.wellknown import Entry, ProofFailedError
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import Files, UnpackLimits
from mcp_skills_server.format.ignored import ignored, some_of
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.sources.download import Downloader
from mcp_skills_server.sources.faults import UnacceptableError
from mcp_skills_server.sources.http import Response
from mcp_skills_server.sources.urls import shown

_ARCHIVE_OVERHEAD: Final = 4 << 20
"""What an archive may have beyond its files: heads and padding of as many members as `unpack` takes."""
_SKILL_MD_BYTES: Final = 1 << 20
_LIKE_HTML: Final = (".html", ".htm", ".xhtml")


class Proved(NamedTuple):
    """A skill that is what the index says.

    Attributes:
        files: its files.
        warning: how the index describes it otherwise, None where it does not.
    """

    files: Files
    warning: str | None


async def download(entry: Entry, downloader: Downloader, limits: UnpackLimits) -> Callable[[], Proved]:
    """Download the skill of an entry. What is returned proves it, unpacks it and gives its files; it blocks.

    The returned function raises ProofFailedError, ArchiveRefusedError and UnacceptableError.

    Raises:
        UnacceptableError, UnreachableError: it cannot be had.
    """
    if entry.kind is None:
        return partial(_checked, entry, await _files(entry, downloader, limits))
    most = _SKILL_MD_BYTES if entry.kind == "skill-md" else limits.bytes + _ARCHIVE_OVERHEAD
    answer = await downloader.get(entry.url, most)
    return lambda: _checked(entry, _unpacked(entry, answer, limits))


def check_names(paths: Iterable[str]) -> None:
    """Refuse a skill that brings what would never be served, whole: its digest is the publisher's word for all of it.

    Raises:
        UnacceptableError: it does. The message names the files.
    """
    found = ignored(paths)
    if found:
        raise UnacceptableError(
            f"it brings files that are never served, and so nothing of it is written: {some_of(found)}; its publisher "
            "must leave them out"
        )


def _unpacked(entry: Entry, answer: Response, limits: UnpackLimits) -> Files:
    # WK-27, WK-48: the digest is compared before anything is unpacked.
    try:
        wellknown.prove(answer.body, entry.digest)
    except ProofFailedError as error:
        if answer.is_html:
            raise UnacceptableError(f"{shown(answer.url)} is a web page (HTML) and not the skill") from None
        if answer.encoding:
            raise ProofFailedError(f"{error}; it came with Content-Encoding {answer.encoding}") from None
        raise
    return archive.unpack(answer.body, limits) if entry.kind == "archive" else {SKILL_MD: (answer.body, False)}


async def _files(entry: Entry, downloader: Downloader, limits: UnpackLimits) -> Files:
    """Download the files of a skill of discovery 0.1.0, which has no digests."""
    # WK1-14
    check_names(entry.files)
    files: dict[str, tuple[bytes, bool]] = {}
    left = limits.bytes
    for path, url in entry.files.items():
        answer = await downloader.get(url, _SKILL_MD_BYTES if path == SKILL_MD else min(left, limits.file))
        if answer.is_html and not path.lower().endswith(_LIKE_HTML):
            raise UnacceptableError(f"{shown(answer.url)} is a web page (HTML) and not the file")
        if answer.encoding:
            raise UnacceptableError(f"{shown(answer.url)} came compressed ({answer.encoding}), which was not asked for")
        left -= len(answer.body)
        if left < 0:
            raise UnacceptableError(f"it has more than {limits.bytes} bytes")
        files[path] = (answer.body, False)
    return files


def _checked(entry: Entry, files: Files) -> Proved:
    refusal, warning = wellknown.judge_unpacked(entry, files)
    if refusal:
        raise ProofFailedError(refusal)
    check_names(files)
    return Proved(files, warning)
