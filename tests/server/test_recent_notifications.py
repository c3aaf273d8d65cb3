"""Clients that another replica answered from older skills are notified again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.server import notify
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.notify import RecentNotifications, Stream
from mcp_skills_server.server.requests import Settings
from wire import DEADLINE, write_skill

pytestmark = pytest.mark.anyio


async def test_what_was_notified_is_announced_and_repeated_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    kept = RecentNotifications(lambda: heard.append("announced"))
    kept.repeat()  # nothing yet
    kept.add(lambda: heard.append("a"))
    kept.add(lambda: heard.append("b"), announced=False)
    kept.repeat()
    await asyncio.sleep(0)
    assert heard == ["announced", "a", "b"]
    for _ in range(2 * notify._MOST_REMEMBERED):
        kept.add(lambda: None)
    assert len(kept._notified) == notify._MOST_REMEMBERED
    monkeypatch.setattr(notify, "_REMEMBERED_S", 0.0)
    kept.add(lambda: None)
    gone = asyncio.Event()
    asyncio.get_running_loop().call_later(0, gone.set)  # after what `add` left to the loop
    await gone.wait()
    assert not kept._notified


async def test_all_is_news_to_clients_of_a_replica_that_has_just_started(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def send(method: str, _: dict[str, Any] | None) -> None:
        heard.put_nowait(method)

    with Registry([tmp_path]) as registry:
        attachment = Attachment(registry, Settings(), None, None)
        attachment.recent = RecentNotifications(lambda: None)
        async with attachment.running(), asyncio.timeout(DEADLINE):
            await attachment.ready()
            wanted = {"resourcesListChanged": True}
            listening = asyncio.ensure_future(attachment.notifier.listen(Stream(1, send, False), wanted))
            assert await heard.get() == "notifications/subscriptions/acknowledged"
            attachment.recent.repeat()
            assert await heard.get() == "notifications/resources/list_changed"
            attachment.notifier.close()
            await listening
