"""What a view gives a handler on the last try, and before it."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from catalog.forest import loaded, plant, skill_md
from mcp_skills_server.catalog.view import View, retry_when_stale
from mcp_skills_server.errors import StaleFileError


def test_only_the_last_try_refuses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plant(tmp_path, {"a/SKILL.md": skill_md("a")})
    registry, stale, error = loaded(tmp_path), StaleFileError("x"), KeyError("refused")
    assert View(registry, last_try=False).refusal(stale, error) is stale and not caplog.messages
    assert View(registry).refusal(stale, error) is error and "cannot be read" in caplog.text


def test_a_handler_is_called_again_with_the_new_snapshot(tmp_path: Path) -> None:
    plant(tmp_path, {"a/SKILL.md": skill_md("a", body="Old.")})
    registry = loaded(tmp_path)
    before = registry.snapshot
    plant(tmp_path, {"a/SKILL.md": skill_md("a", body="New and longer.")})
    seen: list[View] = []

    async def handler(view: View) -> str:
        seen.append(view)
        return (await view.body(view.snapshot.skills["a"])).text

    async def ask() -> str:
        return await retry_when_stale(registry, handler)

    assert anyio.run(ask) == "New and longer."
    assert [view.snapshot is before for view in seen] == [True, False]


def test_a_skill_without_a_last_whole_state_stays_stale(tmp_path: Path) -> None:
    plant(tmp_path, {"a/SKILL.md": skill_md("a")})
    registry, stale = loaded(tmp_path), StaleFileError("x")
    with pytest.raises(StaleFileError) as caught:
        View(registry).last_whole(registry.snapshot.skills["a"], stale)
    assert caught.value is stale
