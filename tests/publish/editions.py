"""Publications of small trees, and what a client makes of what they give out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.format import archive
from mcp_skills_server.publish.artifacts import Edition
from mcp_skills_server.publish.publication import Publication

SITE = "https://example.com"


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def published(*roots: Path, **options: Any) -> Publication:
    registry = Registry(roots)
    registry.load()
    return Publication(registry, **options)


def offered(raw: bytes, directory: str = wellknown.DIRECTORY) -> dict[str, wellknown.SiteEntry]:
    """What our own consumer makes of an index, every entry of it."""
    index = wellknown.decode(raw, SITE + directory + wellknown.INDEX)
    assert not index.unusable
    return {entry.name: entry for entry in index.entries}


def fetched(publication: Publication, entry: wellknown.SiteEntry) -> dict[str, tuple[bytes, bool]]:
    kept = publication.artifact(entry.url.removeprefix(SITE))
    assert kept is not None
    return proved(entry, kept[1].read())


def proved(entry: wellknown.SiteEntry, raw: bytes) -> dict[str, tuple[bytes, bool]]:
    wellknown.verify_digest(raw, entry.digest)
    files = archive.unpack(raw) if entry.kind == "archive" else {"SKILL.md": (raw, False)}
    assert wellknown.compare_files(entry, files).refusal is None
    return files


def complete(publication: Publication, edition: Edition) -> bool:
    """Whether everything that an edition names can be fetched and is what it says."""
    return all(fetched(publication, entry) for entry in offered(edition.index).values())
