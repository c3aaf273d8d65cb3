"""Pages that are kept: an edit shows in them, and only a few are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from catalog.forest import loaded, plant
from catalog.forest import skills as planted
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import View
from mcp_skills_server.server import prompts, requests, resources, skills
from mcp_skills_server.server.requests import Caller, Handler, Page, Settings, cache_page, cached_page
from wire import write_skill

LISTS: dict[str, Handler] = {
    "skills": skills.list_skills,
    "resources": resources.list_resources,
    "prompts": prompts.list_prompts,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return plant(tmp_path, planted("a", "b", "c"))


def listed(registry: Registry, name: str) -> Any:
    return anyio.run(LISTS[name], View(registry), Settings(), Caller(), {})[name]


@pytest.mark.parametrize("name", LISTS)
def test_a_page_is_written_once_and_anew_after_an_edit(folder: Path, name: str) -> None:
    registry = loaded(folder)
    page = listed(registry, name)
    assert isinstance(page, Page) and json.loads(page.json) == page
    again = listed(registry, name)
    assert again is page and again.json is page.json
    write_skill(folder / "b", description="Another one.")
    registry.refresh([str(folder / "b")])
    after = listed(registry, name)
    assert b"Another one." in after.json
    assert after == listed(loaded(folder), name)


def test_pages_of_cursors_that_are_made_up_are_bounded(folder: Path) -> None:
    registry = loaded(folder)
    page = Page([], None)
    for number in range(1000):
        cache_page(page, registry.snapshot, "skills", number)
    kept = [number for number in range(1000) if cached_page(registry.snapshot, "skills", number) is page]
    assert 0 < len(kept) <= requests._MOST_PAGES and kept[-1] == 999
