"""Publications of small trees, and the client's side: parse indexes and verify artifacts."""

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
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def publication_of(*roots: Path, **options: Any) -> Publication:
    registry = Registry(roots)
    registry.load()
    return Publication(registry, **options)


def parse_index(raw: bytes, directory: str = wellknown.DIRECTORY) -> dict[str, wellknown.SiteEntry]:
    """Parse an index with this project's client; return its entries by name."""
    index = wellknown.decode(raw, SITE + directory + wellknown.INDEX)
    assert not index.unusable
    return {entry.name: entry for entry in index.entries}


def fetch(publication: Publication, entry: wellknown.SiteEntry) -> dict[str, tuple[bytes, bool]]:
    kept = publication.artifact(entry.url.removeprefix(SITE))
    assert kept is not None
    return verify(entry, kept[1].read())


def verify(entry: wellknown.SiteEntry, raw: bytes) -> dict[str, tuple[bytes, bool]]:
    """Verify an artifact against its entry; return its files with their executable flags."""
    wellknown.verify_digest(raw, entry.digest)
    files = archive.unpack(raw) if entry.kind == "archive" else {"SKILL.md": (raw, False)}
    assert wellknown.compare_files(entry, files).refusal is None
    return files


def verify_edition(publication: Publication, edition: Edition) -> None:
    for entry in parse_index(edition.index).values():
        assert fetch(publication, entry)
