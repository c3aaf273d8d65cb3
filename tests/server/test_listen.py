"""Listen streams and legacy subscriptions: their bounds, delivery, and memory."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_skills_server.access.grants import Grant, Pattern, Permissions
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.access.quota import Owner, QuotaError, Streams
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import RequestError
from mcp_skills_server.model import Changes
from mcp_skills_server.server import notify
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.notify import Notice, Notifier, RecentNotifications, Stream
from mcp_skills_server.server.requests import Settings
from wire import DEADLINE, write_skill

pytestmark = pytest.mark.anyio


class Listener:
    def __init__(self, *uris: str) -> None:
        # `run` pops the filter from this list, so that no other reference keeps it.
        self.filter = [{"resourceSubscriptions": list(uris), "junk": Junk("x" * 10_000)}]
        self.received: list[tuple[str, Any]] = []
        self.acknowledged = anyio.Event()
        self.result: dict[str, Any] | None = None

    async def send(self, method: str, params: dict[str, Any] | None) -> None:
        self.received.append((method, params))
        self.acknowledged.set()

    async def run(self, notifier: Notifier, owner: Owner | None) -> None:
        async with asyncio.timeout(DEADLINE):
            stream = Stream("stream", self.send, shared=False)
            self.result = await notifier.listen(stream, self.filter.pop(), owner)

    @property
    def accepted_uris(self) -> list[str]:
        return self.received[0][1]["notifications"].get("resourceSubscriptions", [])


class Junk(str):
    """A text that no stream may hold, which the garbage collector finds by its class."""


@asynccontextmanager
async def listeners(notifier: Notifier) -> AsyncGenerator[Callable[..., Any]]:
    """Yield a function that opens a listener's stream; close all of them at the end."""
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:

            async def start(listener: Listener, owner: Owner | None) -> Listener:
                tasks.start_soon(listener.run, notifier, owner)
                await listener.acknowledged.wait()
                return listener

            yield start
            tasks.cancel_scope.cancel()


async def test_stream_keeps_only_the_uris_that_can_be_served() -> None:
    notifier = Notifier(Settings())
    foreign = ["file:///etc/passwd", "https://example.com/", "x", "skill://a//b", "skill://a?q"]
    async with listeners(notifier) as start:
        good = ["skill://a/SKILL.md", "skill://not/yet/SKILL.md"]
        listener = await start(Listener(good[0], *foreign, *reversed(good)), None)
        assert listener.accepted_uris == good
        listener.received.clear()
        gc.collect()
        assert [each for each in gc.get_objects() if isinstance(each, Junk)] == []


async def test_uris_of_one_stream_are_bounded_in_number_and_total_length() -> None:
    notifier = Notifier(Settings())
    many = [f"skill://a/{number:04}" for number in range(1025)]
    longest = [f"skill://a/{number:04086}" for number in range(9)]  # 4,096 characters each
    for uris, message in ((many, "at most 1024"), ([*longest[:8], "skill://a"], "at most 32,768 characters")):
        with pytest.raises(RequestError, match=message):
            await Listener(*uris).run(notifier, None)
    async with listeners(notifier) as start:
        assert len((await start(Listener(*many[1:]), None)).accepted_uris) == 1024
        too_long = longest[8] + "x"
        assert (await start(Listener(*longest[:8], too_long), None)).accepted_uris == longest[:8]


async def test_stream_beyond_a_limit_is_refused_and_ends_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """An evicted client would reopen its stream at once, and evict another one: for ever."""
    notifier = Notifier(Settings(streams=Streams(9)))
    async with listeners(notifier) as start:
        streams = [await start(Listener(), Owner(owner)) for owner in "aab"]
        with pytest.raises(QuotaError, match="one client may have at most 2"):
            await Listener().run(notifier, Owner("a"))
        streams += [await start(Listener(), Owner(owner)) for owner in "bccdd"]
        for owner in ("a", "another", None):
            with pytest.raises(QuotaError, match="limit of 8 is reached" if owner != "a" else "at most 2"):
                await Listener().run(notifier, owner and Owner(owner))
        await anyio.wait_all_tasks_blocked()
        assert [each.result for each in streams] == [None] * 8
    assert caplog.messages[1].startswith("refused a stream of a: Too many streams: ")


@pytest.mark.requirement("MCP-49")
async def test_closed_stream_does_not_count_toward_the_limit() -> None:
    notifier = Notifier(Settings(streams=Streams(4)))
    for number in range(5):
        async with listeners(notifier) as start:
            await start(Listener(), Owner(f"owner {number}"))
    assert not notifier._streams


async def test_subscriptions_of_one_owner_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "MAX_WATCHED", 8)
    notifier = Notifier(Settings())
    peers = [LegacyClient() for _ in range(3)]
    for peer in peers[:2]:
        notifier.watch(peer, "skill://a/SKILL.md", Owner("me"))
        notifier.watch(peer, "skill://a/SKILL.md", Owner("me"))
    with pytest.raises(QuotaError, match="one client may have at most 2"):
        notifier.watch(peers[0], "skill://b/SKILL.md", Owner("me"))
    notifier.watch(peers[2], "skill://b/SKILL.md", Owner("other"))
    notifier.unwatch(peers[0], "skill://a/SKILL.md")
    notifier.watch(peers[0], "skill://b/SKILL.md", Owner("me"))
    await peers[1].exit_stack.aclose()
    notifier.watch(peers[0], "skill://c/SKILL.md", Owner("me"))


def test_subscriptions_of_a_client_and_of_all_are_limited() -> None:
    notifier, (last, *clients) = Notifier(Settings()), [LegacyClient() for _ in range(65)]
    for client in clients:
        for number in range(1024):
            notifier.watch(client, f"skill://{number}/SKILL.md")
        with pytest.raises(RequestError, match="Too many subscriptions: at most 1024"):
            notifier.watch(client, "skill://more/SKILL.md")
    with pytest.raises(QuotaError):
        notifier.watch(last, "skill://0/SKILL.md")


async def test_stream_of_legacy_client_ends_with_queued_notices_on_shutdown() -> None:
    """So does one that its client opens afterwards, before the listener is closed."""
    notifier = Notifier(Settings())
    queue = notifier.register(LegacyClient())
    notifier.publish([Notice("notifications/resources/list_changed")])
    notifier.close()
    async with asyncio.timeout(DEADLINE):
        assert await queue.take() and await queue.take() is None
        assert await notifier.register(LegacyClient()).take() is None


async def test_rebound_client_is_notified_of_its_new_grants_once_its_stream_is_open() -> None:
    old, new = (Principal("token", "me", groups=frozenset(group)) for group in ("a", "b"))
    of_a, of_b = (Permissions([Grant((f"group:{group}",), (Pattern(group),))]) for group in ("a", "b"))
    permissions = {old: of_a, new: of_b, None: of_a}
    compared: list[tuple[Permissions, Permissions]] = []

    def between(before: Permissions, after: Permissions) -> list[Notice]:
        compared.append((before, after))
        return [Notice("notifications/resources/list_changed")]

    notifier = Notifier(Settings(), permissions=permissions.__getitem__, between=between)
    client = LegacyClient()
    client.principal = old
    async with notifier.running():
        notifier.add_legacy_client(client)
        notifier.rebind(client, old)()
        assert compared == []
        notify_difference = notifier.rebind(client, new)
        await anyio.wait_all_tasks_blocked()
        assert client.sent == []
        assert compared == []
        notify_difference()
        await anyio.wait_all_tasks_blocked()
        assert client.sent == ["notifications/resources/list_changed"]
        assert compared == [(of_a, of_b)]
        # The grants are swapped, and the client is rebound: its lists may be those of either grant.
        permissions[new], permissions[old] = of_a, of_b
        compared.clear()
        notifier.rebind(client, old)()
        await anyio.wait_all_tasks_blocked()
        assert len(client.sent) == 2
        assert compared == [(of_a, of_b)]


async def test_change_during_a_slow_notification_is_notified_again() -> None:
    notice = Notice("notifications/resources/list_changed")
    notifier, client, slow = Notifier(Settings()), LegacyClient(), anyio.Event()
    send = client.send

    async def send_slowly(method: str, params: dict[str, Any] | None) -> None:
        await slow.wait()
        await send(method, params)

    client.send = send_slowly
    async with notifier.running():
        notifier.add_legacy_client(client)
        for _ in range(2):
            notifier.publish([notice] * 1000)
            await anyio.wait_all_tasks_blocked()
        slow.set()
        await anyio.wait_all_tasks_blocked()
    assert client.sent == [notice[0]] * 2


class LegacyClient:
    def __init__(self) -> None:
        self.exit_stack = AsyncExitStack()
        self.connection = self
        self.principal: Principal | None = None
        self.sent: list[str] = []

    def add_exit_callback(self, work: Callable[[], object]) -> None:
        self.exit_stack.callback(work)

    async def send(self, method: str, params: dict[str, Any] | None) -> None:
        self.sent.append(method)


# Replicas with older skills


async def test_recent_notifications_are_announced_and_repeated_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    recent = RecentNotifications(lambda: calls.append("announced"))
    recent.repeat()
    recent.add(lambda: calls.append("a"))
    recent.add(lambda: calls.append("b"), announce=False)
    recent.repeat()
    await asyncio.sleep(0)
    assert calls == ["announced", "a", "b"]
    for number in range(300):
        recent.add(partial(calls.append, number), announce=False)
    recent.repeat()
    await asyncio.sleep(0)
    assert calls[3:] == list(range(300 - 256, 300))
    monkeypatch.setattr(notify, "_REMEMBERED_S", 0.0)
    changes = Changes({}, {})
    kept = weakref.ref(changes)
    recent.add(partial(calls.append, changes), announce=False)
    del changes
    expired = asyncio.Event()
    asyncio.get_running_loop().call_later(0, expired.set)  # after the timer of `add`
    await expired.wait()
    assert kept() is None
    recent.repeat()
    await asyncio.sleep(0)
    assert len(calls) == 3 + 256


async def test_new_replica_repeats_all_list_changes_for_its_clients(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    sent: asyncio.Queue[str] = asyncio.Queue()

    async def send(method: str, _: dict[str, Any] | None) -> None:
        sent.put_nowait(method)

    with Registry([tmp_path]) as registry:
        recent = RecentNotifications(lambda: sent.put_nowait("announced"))
        attachment = Attachment(registry, Settings(), None, None, recent=recent)
        async with attachment.running(), asyncio.timeout(DEADLINE):
            stream = Stream(1, send, shared=False)
            listen = asyncio.ensure_future(attachment.notifier.listen(stream, {"resourcesListChanged": True}))
            assert await sent.get() == "notifications/subscriptions/acknowledged"
            await attachment.ready()
            recent.repeat()
            assert await sent.get() == "notifications/resources/list_changed"
            attachment.notifier.close()
            await listen
