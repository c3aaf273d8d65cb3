"""Where commands keep what the next run need not read again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_skills_server.catalog.index import Index


def cache_folder(given: str | None) -> Path:
    """The folder of caches: the one that `--cache-dir` named, or the user's."""
    from pathlib import Path

    from mcp_skills_server.directories import cache_directory

    return Path(given) if given else cache_directory()


def index_of(given: str | None) -> Index:
    """Return the index: of every root where a folder was named for it, else of large ones in the user's cache."""
    from mcp_skills_server.catalog.index import LEAST_SKILLS, Index

    return Index(cache_folder(given) / "index", 1 if given else LEAST_SKILLS)


def publish_memory(given: str | None) -> Path:
    """Where it is kept which files `publish` need not read again."""
    return cache_folder(given) / "publish"
