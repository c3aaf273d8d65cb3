"""What clients were notified of is repeated, for who was answered by another process that was behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.server import latest
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.latest import Latest
from mcp_skills_server.server.notify import Stream
from mcp_skills_server.server.requests import Settings
from wire import DEADLINE, write_skill


def test_only_what_came_since_a_moment_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(latest, "monotonic", lambda: now)
    heard: list[str] = []

    async def whole() -> None:
        nonlocal now
        kept = Latest()
        for name in "abc":
            now += 1
            kept.add(lambda name=name: heard.append(name))
        kept.again(102.0)
        await asyncio.sleep(0)
        assert heard == ["b", "c"]
        kept.again(103.5)
        await asyncio.sleep(0)
        assert heard == ["b", "c"]

    asyncio.run(whole())


def test_it_is_forgotten_though_nothing_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest, "_KEPT_S", 0.0)

    async def whole() -> None:
        kept, gone = Latest(), asyncio.Event()
        kept.add(lambda: None)
        asyncio.get_running_loop().call_later(0, gone.set)  # after what it left to the loop
        await gone.wait()
        assert not kept._notified

    asyncio.run(whole())


def test_it_is_bounded() -> None:
    async def whole() -> None:
        kept = Latest()
        for _ in range(2 * latest._MOST):
            kept.add(lambda: None)
        assert len(kept._notified) == latest._MOST

    asyncio.run(whole())


def test_all_is_news_to_clients_of_a_process_that_has_just_started(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def send(method: str, _: dict[str, Any] | None) -> None:
        heard.put_nowait(method)

    async def whole() -> None:
        with Registry([tmp_path]) as registry:
            attachment = Attachment(registry, Settings(), None, None)
            attachment.latest = Latest()
            async with attachment.running(), asyncio.timeout(DEADLINE):
                await attachment.ready()
                wanted = {"resourcesListChanged": True}
                listening = asyncio.ensure_future(attachment.notifier.listen(Stream(1, send, False), wanted))
                assert await heard.get() == "notifications/subscriptions/acknowledged"
                attachment.latest.again(0.0)
                assert await heard.get() == "notifications/resources/list_changed"
                attachment.notifier.close()
                await listening

    asyncio.run(whole())
