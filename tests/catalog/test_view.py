"""A request is answered from one snapshot, and once more from the next one where a file has changed."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from catalog.forest import loaded, plant, skill_md, skills
from mcp_skills_server.catalog.views import View, retry_when_stale
from mcp_skills_server.errors import StaleFileError, UnreadableError


def test_a_file_that_stays_unreadable_refuses_the_request_with_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = loaded(plant(tmp_path, skills("a")))
    tries: list[View] = []

    async def handler(view: View) -> None:
        tries.append(view)
        raise StaleFileError(str(tmp_path / "a/SKILL.md"), "Permission denied")

    async def ask() -> None:
        await retry_when_stale(registry, handler)

    with pytest.raises(UnreadableError, match="cannot be read; try again"):
        anyio.run(ask)
    assert len(tries) == 2
    assert caplog.messages == [f"cannot be read: Permission denied: {tmp_path / 'a/SKILL.md'}"]


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
