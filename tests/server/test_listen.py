"""What is kept of what clients want to hear, and at whose cost it grows."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import anyio
import mcp_types as types
import pytest

from mcp_skills_server.errors import RequestError
from mcp_skills_server.runtime.quota import Owner, QuotaError
from mcp_skills_server.server import notify
from mcp_skills_server.server.notify import Notifier
from wire import DEADLINE

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Stream:
    """One client's `subscriptions/listen`."""

    def __init__(self, *uris: str) -> None:
        wanted = {"notifications": {"resourceSubscriptions": list(uris), "junk": "x" * 10_000}}
        self.params = [types.SubscriptionsListenRequestParams.model_validate(wanted)]
        self.told: list[Any] = []
        self.acknowledged = anyio.Event()
        self.result: types.SubscriptionsListenResult | None = None

    async def send_notification(self, notification: Any, related_request_id: object = None) -> None:
        """As the session's."""
        assert related_request_id == "listening"
        self.told.append(notification)
        self.acknowledged.set()

    async def run(self, notifier: Notifier, owner: Owner) -> None:
        """Listen until the end."""
        ctx: Any = SimpleNamespace(request_id="listening", session=self, request=object())
        self.result = await notifier.listen(ctx, self.params.pop(), owner)

    @property
    def kept(self) -> list[str]:
        """The URIs that were acknowledged."""
        return self.told[0].params.notifications.resource_subscriptions or []


@asynccontextmanager
async def opening(notifier: Notifier) -> AsyncGenerator[Callable[..., Any]]:
    """What opens a stream, which is acknowledged then."""
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:

            async def start(stream: Stream, owner: Owner) -> Stream:
                tasks.start_soon(stream.run, notifier, owner)
                await stream.acknowledged.wait()
                return stream

            yield start
            tasks.cancel_scope.cancel()


async def test_of_a_filter_only_that_is_kept_which_can_be_served() -> None:
    notifier = Notifier({"skillsListChanged": "notifications/skills/list_changed"})
    junk = ["file:///etc/passwd", "https://example.com/", "x", "skill://a//b", "skill://a/" + "x" * 4096, "skill://a?q"]
    async with opening(notifier) as start:
        stream = await start(
            Stream("skill://a/SKILL.md", *junk, "skill://not/yet/SKILL.md", "skill://a/SKILL.md"), None
        )
        assert stream.kept == ["skill://a/SKILL.md", "skill://not/yet/SKILL.md"]
        stream.told.clear()
        gc.collect()
        texts = [each for each in gc.get_objects() if isinstance(each, types.SubscriptionsListenRequestParams)]
        assert texts == []  # nothing holds the request's params while the stream is open


async def test_the_uris_of_one_stream_are_bounded_in_number_and_in_all() -> None:
    notifier = Notifier({"skillsListChanged": "notifications/skills/list_changed"})
    for uris, said in (
        ([f"skill://a/{number}" for number in range(1025)], "at most 1024"),
        ([f"skill://a/{number}{'x' * 4000}" for number in range(9)], "at most 32,768 characters"),
    ):
        with pytest.raises(RequestError, match=said):
            await Stream(*uris).run(notifier, None)
    async with opening(notifier) as start:
        assert len((await start(Stream(*[f"skill://a/{number}" for number in range(1024)]), None)).kept) == 1024


async def test_who_opens_too_many_streams_has_its_own_oldest_ended_with_its_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notify, "MOST_STREAMS", 8)
    notifier = Notifier({"skillsListChanged": "notifications/skills/list_changed"})
    async with opening(notifier) as start:
        mine = await start(Stream(), "token me")
        theirs = [await start(Stream(), "address 192.0.2.1") for _ in range(5)]
        while theirs[2].result is None:
            await anyio.lowlevel.checkpoint()
        assert [each.result is not None for each in theirs] == [True, True, True, False, False]
        assert mine.result is None
        for owner in ("a", "a", "b", "b", "c"):
            await start(Stream(), owner)
        with pytest.raises(QuotaError, match="all 8 that this server keeps are taken"):
            await Stream().run(notifier, "yet another")
        assert mine.result is None


async def test_subscriptions_of_all_sessions_of_one_owner_are_bounded_and_end_with_their_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notify, "MOST_WATCHED", 8)
    notifier = Notifier({"skillsListChanged": "notifications/skills/list_changed"})
    sessions = [cast("Any", SimpleNamespace(_connection=Connection())) for _ in range(3)]
    for session in sessions[:2]:
        notifier.watch(session, "skill://a/SKILL.md", "me")
        notifier.watch(session, "skill://a/SKILL.md", "me")
    with pytest.raises(QuotaError, match="one client may have at most 2"):
        notifier.watch(sessions[0], "skill://b/SKILL.md", "me")
    notifier.watch(sessions[2], "skill://b/SKILL.md", "other")
    notifier.unwatch(sessions[0], "skill://a/SKILL.md")
    notifier.watch(sessions[0], "skill://b/SKILL.md", "me")
    await sessions[1]._connection.exit_stack.aclose()
    notifier.watch(sessions[0], "skill://c/SKILL.md", "me")


class Connection:
    """Stands for the SDK's, which lasts as long as its session."""

    def __init__(self) -> None:
        self.exit_stack = AsyncExitStack()
