"""What one client is owed: each thing once, in order, and nothing lost while a slow client is being told."""

from __future__ import annotations

import anyio
import pytest

from mcp_skills_server.server.notify import Mailbox
from wire import DEADLINE

pytestmark = pytest.mark.anyio
SKILLS = ("notifications/skills/list_changed", None)
FILE = ("notifications/resources/updated", "skill://a/SKILL.md")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def taken(mailbox: Mailbox) -> list[tuple[str, str | None]]:
    """All that is owed until the box is closed and empty."""
    out: list[tuple[str, str | None]] = []
    with anyio.fail_after(DEADLINE):
        while (notice := await mailbox.take()) is not None:
            out.append(notice)
    return out


async def test_each_thing_is_owed_once_and_in_order() -> None:
    mailbox = Mailbox(lambda _: True)
    for _ in range(1000):
        mailbox.put([SKILLS, FILE])
    mailbox.close()
    assert await taken(mailbox) == [SKILLS, FILE]


async def test_only_what_is_wanted_is_owed_and_nothing_after_the_end() -> None:
    mailbox = Mailbox(lambda notice: notice[1] is not None)
    mailbox.put([SKILLS, FILE])
    mailbox.close()
    mailbox.put([FILE])
    assert await taken(mailbox) == [FILE]


async def test_what_changes_while_the_client_is_being_told_is_news_again() -> None:
    mailbox = Mailbox(lambda _: True)
    mailbox.put([SKILLS])
    assert await mailbox.take() == SKILLS
    mailbox.put([SKILLS])  # before the first was sent to its end
    mailbox.close()
    assert await taken(mailbox) == [SKILLS]


async def test_who_waits_is_woken_by_news_and_by_the_end() -> None:
    mailbox = Mailbox(lambda _: True)
    async with anyio.create_task_group() as tasks:
        got: list[tuple[str, str | None]] = []

        async def collect() -> None:
            got.extend(await taken(mailbox))

        tasks.start_soon(collect)
        await anyio.wait_all_tasks_blocked()
        mailbox.put([SKILLS])
        await anyio.wait_all_tasks_blocked()
        assert got == []
        mailbox.close()
    assert got == [SKILLS]
