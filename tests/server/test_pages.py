"""Pages that are kept: an edit shows in them, and only a few are kept."""

from __future__ import annotations

from pathlib import Path

from catalog.forest import loaded, plant, skills
from mcp_skills_server.server import requests
from mcp_skills_server.server.requests import Page


def test_pages_of_cursors_that_are_made_up_are_bounded(tmp_path: Path) -> None:
    snapshot, page = loaded(plant(tmp_path, skills("a"))).snapshot, Page([], None)
    for number in range(1000):
        requests.cache_page(page, snapshot, "skills", number)
    kept = [number for number in range(1000) if requests.cached_page(snapshot, "skills", number) is page]
    assert 0 < len(kept) <= requests._MOST_PAGES and kept[-1] == 999
