"""What is hashed for a page of `skills/list`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.view import View, is_hashed
from mcp_skills_server.server.requests import Caller, Settings
from mcp_skills_server.server.skills import list_skills
from wire import write_skill

_SETTINGS = Settings(page_size=2)


def listed(registry: Registry, cursor: str | None) -> dict[str, Any]:
    params = {} if cursor is None else {"cursor": cursor}
    return asyncio.run(list_skills(View(registry), _SETTINGS, Caller(), params))


def hashed(registry: Registry) -> list[str]:
    return [path for path, skill in sorted(registry.snapshot.skills.items()) if is_hashed(skill)]


def test_who_goes_on_has_one_page_hashed_ahead_and_who_asks_once_none(tmp_path: Path) -> None:
    names = [f"skill-{letter}" for letter in "abcdefghi"]
    for name in names:
        write_skill(tmp_path / name, more_md=name)
    with Registry([tmp_path]) as registry:
        counts: list[int] = []
        cursor: str | None = None
        for _ in range(5):
            page = listed(registry, cursor)
            cursor = page.get("nextCursor")
            found = hashed(registry)
            assert found == names[: len(found)]
            counts.append(len(found))
        assert counts == [2, 6, 6, 9, 9]
        assert cursor is None
