"""Pages that are kept: an edit shows in them, and only a few are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio

from catalog.forest import loaded, plant, skills
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import View
from mcp_skills_server.server import prompts, requests, resources
from mcp_skills_server.server import skills as handlers
from mcp_skills_server.server.requests import Caller, Page, Settings
from wire import write_skill


def test_a_page_is_written_once_and_anew_after_an_edit(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a", "b", "c")))

    def listed(registry: Registry) -> list[Any]:
        methods = {
            "skills": handlers.list_skills, "resources": resources.list_resources, "prompts": prompts.list_prompts,
        }  # fmt: skip
        return [anyio.run(each, View(registry), Settings(), Caller(), {})[name] for name, each in methods.items()]

    before = listed(registry)
    for page, again in zip(before, listed(registry), strict=True):
        assert isinstance(page, Page) and json.loads(page.json) == page
        assert again is page and again.json is page.json
    write_skill(tmp_path / "b", description="Another one.")
    registry.refresh([str(tmp_path / "b")])
    after = listed(registry)
    assert all(b"Another one." in page.json for page in after) and after == listed(loaded(tmp_path))


def test_pages_of_cursors_that_are_made_up_are_bounded(tmp_path: Path) -> None:
    snapshot, page = loaded(plant(tmp_path, skills("a"))).snapshot, Page([], None)
    for number in range(1000):
        requests.cache_page(page, snapshot, "skills", number)
    kept = [number for number in range(1000) if requests.cached_page(snapshot, "skills", number) is page]
    assert 0 < len(kept) <= requests._MOST_PAGES and kept[-1] == 999
