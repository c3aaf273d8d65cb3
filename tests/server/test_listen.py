"""What is kept of what clients want to hear, and at whose cost it grows."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_skills_server.access.grants import Grant, Pattern, Permissions
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import RequestError
from mcp_skills_server.runtime.quota import Owner, QuotaError
from mcp_skills_server.server import notify
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.notify import Notifier, RecentNotifications, Stream
from mcp_skills_server.server.requests import Settings
from wire import DEADLINE, write_skill

pytestmark = pytest.mark.anyio


class Listening:
    def __init__(self, *uris: str) -> None:
        self.wanted: list[dict[str, Any]] = [{"resourceSubscriptions": list(uris), "junk": Junk("x" * 10_000)}]
        self.told: list[tuple[str, Any]] = []
        self.acknowledged = anyio.Event()
        self.result: dict[str, Any] | None = None

    async def send(self, method: str, params: dict[str, Any] | None) -> None:
        self.told.append((method, params))
        self.acknowledged.set()

    async def run(self, notifier: Notifier, owner: Owner) -> None:
        async with asyncio.timeout(DEADLINE):
            self.result = await notifier.listen(Stream("listening", self.send, False), self.wanted.pop(), owner)

    @property
    def kept(self) -> list[str]:
        return self.told[0][1]["notifications"].get("resourceSubscriptions", [])


class Junk(str):
    """What no stream may keep; the garbage collector knows it by its class."""


@asynccontextmanager
async def opening(notifier: Notifier) -> AsyncGenerator[Callable[..., Any]]:
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:

            async def start(stream: Listening, owner: Owner) -> Listening:
                tasks.start_soon(stream.run, notifier, owner)
                await stream.acknowledged.wait()
                return stream

            yield start
            tasks.cancel_scope.cancel()


async def test_of_a_filter_only_that_is_kept_which_can_be_served() -> None:
    notifier = Notifier(Settings())
    junk = ["file:///etc/passwd", "https://example.com/", "x", "skill://a//b", "skill://a?q"]
    async with opening(notifier) as start:
        good = ["skill://a/SKILL.md", "skill://not/yet/SKILL.md"]
        stream = await start(Listening(good[0], *junk, *reversed(good)), None)
        assert stream.kept == good
        stream.told.clear()
        gc.collect()
        texts = [each for each in gc.get_objects() if isinstance(each, Junk)]
        assert texts == []  # nothing holds the request's params while the stream is open


async def test_the_uris_of_one_stream_are_bounded_in_number_and_in_all() -> None:
    notifier = Notifier(Settings())
    many, long = ([f"skill://a/{'x' * length}{number:04}" for number in range(1025)] for length in (0, 4082))
    for uris, said in ((many, "at most 1024"), ([*long[:8], "skill://a"], "at most 32,768 characters")):
        with pytest.raises(RequestError, match=said):
            await Listening(*uris).run(notifier, None)
    async with opening(notifier) as start:
        assert len((await start(Listening(*many[1:]), None)).kept) == 1024
        assert (await start(Listening(*long[:8], long[8] + "x"), None)).kept == long[:8]  # of 4,096 characters


async def test_who_opens_too_many_streams_has_its_own_oldest_ended() -> None:
    notifier = Notifier(Settings())
    async with opening(notifier) as start:
        mine = await start(Listening(), "token me")
        theirs = [await start(Listening(), "address 192.0.2.1") for _ in range(259)]
        await anyio.wait_all_tasks_blocked()
        assert [each.result is not None for each in theirs] == [True] * 3 + [False] * 256
        for number in range(256 + 256 + 255):
            await start(Listening(), "abc"[number // 256])
        with pytest.raises(QuotaError, match="the server's limit of 1,024 is reached"):
            await Listening().run(notifier, "yet another")
        assert mine.result is None


@pytest.mark.requirement("MCP-49")
async def test_a_stream_that_its_client_closed_frees_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "MOST_STREAMS", 4)
    notifier = Notifier(Settings())
    for number in range(5):
        async with opening(notifier) as start:
            await start(Listening(), f"owner {number}")
    assert not notifier._streams


async def test_subscriptions_of_one_owner_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "MOST_WATCHED", 8)
    notifier = Notifier(Settings())
    peers = [Client() for _ in range(3)]
    for peer in peers[:2]:
        notifier.watch(peer, "skill://a/SKILL.md", "me")
        notifier.watch(peer, "skill://a/SKILL.md", "me")
    with pytest.raises(QuotaError, match="one client may have at most 2"):
        notifier.watch(peers[0], "skill://b/SKILL.md", "me")
    notifier.watch(peers[2], "skill://b/SKILL.md", "other")
    notifier.unwatch(peers[0], "skill://a/SKILL.md")
    notifier.watch(peers[0], "skill://b/SKILL.md", "me")
    await peers[1].ends.aclose()
    notifier.watch(peers[0], "skill://c/SKILL.md", "me")


def test_subscriptions_are_bounded_for_a_client_and_in_all() -> None:
    notifier, (last, *clients) = Notifier(Settings()), [Client() for _ in range(65)]
    for client in clients:
        for number in range(1024):
            notifier.watch(client, f"skill://{number}/SKILL.md")
        with pytest.raises(RequestError, match="Too many subscriptions: at most 1024"):
            notifier.watch(client, "skill://more/SKILL.md")
    with pytest.raises(QuotaError):
        notifier.watch(last, "skill://0/SKILL.md")


async def test_of_a_legacy_client_that_left_nothing_is_kept() -> None:
    notifier, peer = Notifier(Settings()), Client()
    async with notifier.running():
        notifier.add_legacy_client(peer)
        notifier.watch(peer, "skill://a/SKILL.md", "me")
        await peer.ends.aclose()
        await anyio.wait_all_tasks_blocked()
        assert not notifier._deliveries and not notifier._legacy


async def test_who_opens_a_stream_as_somebody_else_hears_of_its_other_skills_once_it_is_open() -> None:
    old, new = (Principal("token", "me", groups=frozenset(group)) for group in ("a", "b"))
    before, after = (Permissions([Grant((f"group:{group}",), (Pattern(group),))]) for group in ("a", "b"))
    of = {old: before, new: after, None: before}
    asked: list[tuple[Permissions, Permissions]] = []

    def between(*given: Permissions) -> list[tuple[str, None]]:
        asked.append((given[0], given[1]))
        return [("notifications/resources/list_changed", None)]

    notifier, client = Notifier(Settings(), permissions=of.__getitem__, between=between), Client()
    client.principal = old
    async with notifier.running():
        notifier.add_legacy_client(client)
        notifier.rebind(client, old)()
        assert asked == []
        is_open = notifier.rebind(client, new)
        await anyio.wait_all_tasks_blocked()
        assert client.sent == [] and asked == []  # what is sent now reaches nobody
        is_open()
        await anyio.wait_all_tasks_blocked()
        assert client.sent == ["notifications/resources/list_changed"] and asked == [(before, after)]
        # It heard of grants that gave it what it had at first, and has what it had then by other groups.
        of[new], asked[:] = before, []
        of[old] = after
        notifier.rebind(client, old)()
        await anyio.wait_all_tasks_blocked()
        assert len(client.sent) == 2 and asked == [(before, after)]


async def test_a_change_while_a_client_is_being_notified_is_sent_again() -> None:
    notice = ("notifications/resources/list_changed", None)
    notifier, client, slow = Notifier(Settings()), Client(), anyio.Event()
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


class Client:
    """A legacy client, and what is to be done at its end."""

    def __init__(self) -> None:
        self.ends = AsyncExitStack()
        self.connection = self
        self.principal: Principal | None = None
        self.sent: list[str] = []

    def add_exit_callback(self, work: Callable[[], object]) -> None:
        self.ends.callback(work)

    async def send(self, method: str, params: dict[str, Any] | None) -> None:
        self.sent.append(method)


# Clients that another replica answered from older skills


async def test_what_was_notified_is_announced_and_repeated_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    kept = RecentNotifications(lambda: heard.append("announced"))
    kept.repeat()  # nothing yet
    kept.add(lambda: heard.append("a"))
    kept.add(lambda: heard.append("b"), announced=False)
    kept.repeat()
    await asyncio.sleep(0)
    assert heard == ["announced", "a", "b"]
    for number in range(300):
        kept.add(partial(heard.append, number), announced=False)
    kept.repeat()
    await asyncio.sleep(0)
    assert heard[3:] == list(range(300 - 256, 300))
    monkeypatch.setattr(notify, "_REMEMBERED_S", 0.0)
    kept.add(lambda: heard.append("forgotten"), announced=False)
    gone = asyncio.Event()
    asyncio.get_running_loop().call_later(0, gone.set)  # after what `add` left to the loop
    await gone.wait()
    kept.repeat()
    await asyncio.sleep(0)
    assert heard[-1] == 299


def recorded() -> tuple[Stream, asyncio.Queue[str]]:
    """A stream, and the methods of what is sent on it."""
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def send(method: str, _: dict[str, Any] | None) -> None:
        heard.put_nowait(method)

    return Stream(1, send, False), heard


async def test_all_is_news_to_clients_of_a_replica_that_has_just_started(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    stream, heard = recorded()
    with Registry([tmp_path]) as registry:
        attachment = Attachment(registry, Settings(), None, None)
        attachment.recent = RecentNotifications(lambda: heard.put_nowait("announced"))
        async with attachment.running(), asyncio.timeout(DEADLINE):
            await attachment.ready()
            wanted = {"resourcesListChanged": True}
            listening = asyncio.ensure_future(attachment.notifier.listen(stream, wanted))
            assert await heard.get() == "notifications/subscriptions/acknowledged"
            attachment.recent.repeat()
            assert await heard.get() == "notifications/resources/list_changed"
            attachment.notifier.close()
            await listening


async def test_tools_that_change_once_the_first_answer_after_the_scan_is_made_are_announced(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    stream, heard = recorded()
    with Registry([tmp_path]) as registry:
        attachment = Attachment(registry, Settings(), None, None)
        async with attachment.running(), asyncio.timeout(DEADLINE):
            listen = attachment.notifier.listen(stream, {"toolsListChanged": True})
            listening = asyncio.ensure_future(listen)
            assert await heard.get() == "notifications/subscriptions/acknowledged"
            await attachment.ready()
            write_skill(tmp_path / "b")
            registry.refresh()
            assert await heard.get() == "notifications/tools/list_changed"
            attachment.notifier.close()
            await listening
