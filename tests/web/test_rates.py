"""Concurrency limits per client."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from mcp_skills_server.web import rates
from web.test_front import front_of, loopback_policy
from wire import DEADLINE

MANY = 32


def scope_of(address: str | None, **more: Any) -> dict[str, Any]:
    client = (address, 1) if address else None
    headers = [(b"host", b"localhost")]
    return {"type": "http", "method": "GET", "path": "/mcp", "client": client, "headers": headers, **more}


async def all_permits(limits: rates.ConcurrencyLimits) -> list[rates.Permit]:
    held = [limits.permit(None) for _ in range(rates._MAX_OF_ALL)]
    for permit in held:
        await permit.take()
    return held


class LimitedApp:
    """An application behind a concurrency limit. Each request takes a few turns of the loop.

    Attributes:
        started: the client of each request, in order of start.
        most: the most concurrent requests of each client.
    """

    def __init__(self) -> None:
        self.started: list[str] = []
        self.most: dict[str, int] = {}
        self.front = front_of(self._answer, loopback_policy())
        self._running: dict[str, int] = {}

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = ""
        if scope["client"]:
            client = scope["client"][0]
        self.started.append(client)
        self._running[client] = self._running.get(client, 0) + 1
        self.most[client] = max(self.most.get(client, 0), self._running[client])
        try:
            for _ in range(3):
                await asyncio.sleep(0)
            if scope.get("is_endless"):
                await asyncio.get_running_loop().create_future()
        finally:
            self._running[client] -= 1

    def start(self, address: str | None, *, is_endless: bool = False) -> asyncio.Task[Any]:
        scope = scope_of(address, is_endless=is_endless)
        return asyncio.create_task(self.front(scope, None, None))  # type: ignore[arg-type]

    async def run(self, *addresses: str | None) -> None:
        """Run `MANY` requests of 192.0.2.1 and one of each of these addresses."""
        await asyncio.gather(*map(self.start, ["192.0.2.1"] * MANY), *map(self.start, addresses))


@pytest.mark.anyio
async def test_two_requests_of_one_client_run_at_once_without_delaying_others() -> None:
    app = LimitedApp()
    await app.run("192.0.2.2", *[None] * (MANY - 3))  # clients without an address are not limited
    assert app.most == {"192.0.2.1": 2, "192.0.2.2": 1, "": MANY - 3}
    assert app.started.index("192.0.2.2") <= 2
    assert len(app.started) == 2 * MANY - 2


@pytest.mark.anyio
async def test_requests_of_a_herd_run_a_few_at_a_time_and_a_client_with_many_waits_no_less() -> None:
    app = LimitedApp()
    running: list[int] = []
    herd = [f"192.0.2.{number}" for number in range(2, 130)]
    tasks = [app.start(address) for address in ["192.0.2.1"] * 40 + herd]
    while any(not task.done() for task in tasks):
        running.append(sum(app._running.values()))
        await asyncio.sleep(0)
    assert max(running) == rates._MAX_OF_ALL
    assert app.started.count("192.0.2.1") == 40
    assert app.started[: len(herd)].count("192.0.2.1") < 16  # two at most in the queue at any time


@pytest.mark.anyio
async def test_wait_for_a_permit_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    limits, loop = rates.ConcurrencyLimits(), asyncio.get_running_loop()
    held = await all_permits(limits)
    waiting, clock = asyncio.create_task(limits.permit("me").take()), loop.time
    await asyncio.sleep(0)
    monkeypatch.setattr(loop, "time", lambda: clock() + 100)
    held[0].release()
    await waiting
    assert 100 <= limits.waited_s < 200


@pytest.mark.anyio
async def test_request_that_is_cancelled_while_it_waits_holds_no_permit() -> None:
    limits = rates.ConcurrencyLimits()
    held = await all_permits(limits)
    waiting = [asyncio.create_task(limits.permit("me").take()) for _ in range(3)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    for permit in held:
        permit.release()
    async with asyncio.timeout(DEADLINE):
        for _ in range(2):
            await limits.permit("me").take()


@pytest.mark.anyio
async def test_requests_that_never_wait_take_turns_with_those_of_another_address() -> None:
    started: list[str] = []

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        started.append(scope["client"][0])

    front = front_of(answer, loopback_policy())
    addresses = [*["192.0.2.1"] * MANY, "192.0.2.2"]
    await asyncio.gather(*(front(scope_of(each), None, None) for each in addresses))  # type: ignore[arg-type]
    assert started.index("192.0.2.2") == 2
    assert sorted(started) == addresses


@pytest.mark.anyio
async def test_cancelled_request_releases_its_permit() -> None:
    app = LimitedApp()
    tasks = [app.start("192.0.2.1") for _ in range(MANY)]
    await asyncio.sleep(0)
    for each in tasks[1:-1]:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await app.run()
    assert app.most == {"192.0.2.1": 2}
    assert len(app.started) == MANY + 3  # the first two, and the last


@pytest.mark.anyio
async def test_slow_request_does_not_count_towards_concurrency_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_SLOW_S", 0.01)
    app = LimitedApp()
    streams = [app.start("192.0.2.1", is_endless=True) for _ in range(4)]
    async with asyncio.timeout(20):
        await app.run()
    for each in streams:
        each.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    monkeypatch.setattr(rates, "_SLOW_S", 20)  # on a busy machine, too, none is slow from here on
    app.most.clear()
    await app.run()
    assert app.most == {"192.0.2.1": 2}


@pytest.mark.anyio
async def test_requests_with_slow_bodies_are_handled_two_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_SLOW_S", 0.01)
    all_wait, arrived = asyncio.Event(), asyncio.Event()
    waiting, running, most = 0, 0, 0

    async def receive() -> Message:
        nonlocal waiting
        waiting += 1
        if waiting == MANY:
            all_wait.set()
        await arrived.wait()
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal running, most
        await receive()
        running += 1
        most = max(most, running)
        for _ in range(3):
            await asyncio.sleep(0)
        running -= 1

    front = front_of(answer, loopback_policy())
    scopes = [scope_of("192.0.2.1", method="POST") for _ in range(MANY)]
    requests = [asyncio.create_task(front(scope, receive, None)) for scope in scopes]  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        await all_wait.wait()
        monkeypatch.setattr(rates, "_SLOW_S", 20)
        arrived.set()
        await asyncio.gather(*requests)
    assert most == 2


@pytest.mark.anyio
async def test_request_that_keeps_the_event_loop_busy_is_not_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_SLOW_S", 0.004)
    running, most = 0, 0

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(3):
            end = monotonic() + 0.02
            while monotonic() < end:
                pass
            await asyncio.sleep(0)
        running -= 1

    front = front_of(answer, loopback_policy())
    await asyncio.gather(*(front(scope_of("192.0.2.1"), None, None) for _ in range(8)))  # type: ignore[arg-type]
    assert most == 2


@pytest.mark.anyio
async def test_streams_do_not_keep_their_permits_while_others_keep_the_event_loop_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rates, "_SLOW_S", 0.002)
    app = LimitedApp()
    streams = [app.start("192.0.2.1", is_endless=True) for _ in range(2)]
    waiting = app.start("192.0.2.1")
    for _ in range(100):  # each turn of the loop takes longer than a permit
        end = monotonic() + 0.005
        while monotonic() < end:
            pass
        await asyncio.sleep(0)
    assert waiting.done() and not any(each.done() for each in streams)
    for each in streams:
        each.cancel()
    await asyncio.gather(*streams, return_exceptions=True)


@pytest.mark.anyio
async def test_event_streams_do_not_delay_requests_of_the_same_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would otherwise count for 50 ms, which is half a minute for a thousand that reconnect."""
    monkeypatch.setattr(rates, "_SLOW_S", 20)
    opened = 0

    async def follow(_: Scope, receive: Receive, send: Send) -> None:
        nonlocal opened
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        opened += 1
        await receive()  # waits for a disconnect
        await asyncio.get_running_loop().create_future()

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(_: Message) -> None:
        """Send nothing."""

    front = front_of(follow, loopback_policy())
    streams = [asyncio.create_task(front(scope_of("192.0.2.1"), receive, send)) for _ in range(MANY)]
    for _ in range(10 * MANY):
        await asyncio.sleep(0)
    assert opened == MANY
    for each in streams:
        each.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
