"""What one replica says makes the others look: once, soon, not too often, and also for what they missed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mcp_skills_server.shared import link
from mcp_skills_server.shared.address import redis_settings
from mcp_skills_server.shared.change_bus import FOLDERS, SOURCES, ChangeBus
from mcp_skills_server.shared.link import Link
from shared.redis_servers import RealRedis, redis_server
from web.http_wire import until
from wire import DEADLINE

pytestmark = pytest.mark.needs_program("redis-server")


class Replica:
    def __init__(self, redis: RealRedis) -> None:
        self.sources = self.folders = 0
        self.said_while_scanning = self.is_failing = False
        self.link = Link(redis_settings(redis.url))
        self.bus = ChangeBus(self.link, {SOURCES: self._look_at_sources, FOLDERS: self._look_at_folders})

    def _look_at_sources(self) -> None:
        if self.is_failing:
            raise OSError("for once")
        self.sources += 1

    def _look_at_folders(self) -> None:
        self.said_while_scanning = self.bus.is_scanning
        self.folders += 1


@contextmanager
def replicas(redis: RealRedis, count: int) -> Iterator[list[Replica]]:
    before = listeners(redis)
    with ExitStack() as stack:
        made = [Replica(redis) for _ in range(count)]
        for each in made:
            each.bus.start()
            stack.callback(each.bus.stop)
        until(lambda: listeners(redis) == before + len(made), "the replicas")
        yield made


def listeners(redis: RealRedis) -> int:
    return int(redis.say("--raw", "pubsub", "numsub", "mcp-skills:changes").split()[-1])


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RealRedis]:
    with redis_server(tmp_path / "redis") as server:
        yield server


def test_the_others_look_and_who_says_so_does_not(redis: RealRedis) -> None:
    with replicas(redis, 3) as (a, b, c):
        a.bus.notify(FOLDERS)
        until(lambda: b.folders and c.folders)
        b.bus.notify(SOURCES)
        until(lambda: a.sources and c.sources)
        assert [(each.sources, each.folders) for each in (a, b, c)] == [(1, 0), (0, 1), (1, 1)]
        assert b.said_while_scanning and not b.bus.is_scanning


def test_many_messages_are_few_looks_and_foreign_ones_none(redis: RealRedis, caplog: pytest.LogCaptureFixture) -> None:
    with replicas(redis, 2) as (a, b):
        for _ in range(500):
            a.bus.notify(FOLDERS)
        whole = '{"changed":"sources","from":"x"}'.ljust(512)
        for message in ('{"changed":"x","from":"x"}', whole, f"{whole} ", "[1]", '{"changed":"folders"}', "\\xff"):
            redis.say("publish", "mcp-skills:changes", message)
        until(lambda: b.folders and b.sources)
        assert b.folders <= 3  # the first at once, and what came meanwhile a second later
    assert caplog.text.count("a message that no replica wrote") == 4 * 2


def test_what_was_said_while_redis_was_away_or_not_there_yet_is_looked_for_afterwards(redis: RealRedis) -> None:
    with replicas(redis, 1) as (a,):
        redis.stop()
        b = Replica(redis)
        b.bus.start()
        until(lambda: not a.link.is_up and not b.link.is_up)
        a.bus.notify(FOLDERS)  # which nobody hears
        redis.start()
        until(lambda: all((a.folders, a.sources, b.folders, b.sources)))
        assert a.link.is_up and b.link.is_up
        b.bus.stop()


def test_who_lost_its_connection_looks_and_makes_the_others_look(redis: RealRedis) -> None:
    with replicas(redis, 2) as (a, b):
        lost = redis.say("client", "list", "type", "pubsub").partition(" ")[0].removeprefix("id=")
        redis.say("client", "kill", "id", lost)
        until(lambda: all((a.folders, a.sources, b.folders, b.sources)))


def test_a_message_that_was_not_sent_in_time_is_made_up_for(redis: RealRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    with replicas(redis, 2) as (a, b):
        monkeypatch.setattr(link, "_WHOLE_S", 0.3)
        redis.say("client", "pause", "800", "write")
        a.bus.notify(FOLDERS)
        until(lambda: not a.link.is_up)
        until(lambda: b.folders)
        assert a.link.is_up


def test_a_redis_that_takes_no_messages_is_still_used(redis: RealRedis, caplog: pytest.LogCaptureFixture) -> None:
    redis.say("acl", "setuser", "default", "-publish")
    with replicas(redis, 2) as (a, b):
        for _ in range(3):
            a.bus.notify(FOLDERS)
        until(lambda: "refuses a change message" in caplog.text)
        assert a.link.is_up and b.folders == 0
    lines = [each for each in caplog.records if "redis://" in each.getMessage()]
    assert lines and all(each.__dict__["repeats"] for each in lines)  # which the log says once a minute


def test_saying_something_outside_its_life_does_nothing(redis: RealRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_STOP_S", DEADLINE)
    with replicas(redis, 1) as (a,):
        early = Replica(redis)
        early.bus.notify(FOLDERS)
        early.bus.stop()
        late = Replica(redis)
        late.bus.start()
        until(lambda: listeners(redis) == 2)
        late.bus.stop()
        assert listeners(redis) == 1
        late.bus.notify(FOLDERS)
        assert a.folders == 0


def test_who_ends_in_the_middle_leaves_no_connection_open(redis: RealRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    process = redis.process
    assert process is not None
    with replicas(redis, 1) as (a,):
        pool = a.link._publisher.connection_pool
        closing = pool.disconnect

        async def slowly() -> None:
            await closing()
            process.send_signal(signal.SIGCONT)
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

        monkeypatch.setattr(pool, "disconnect", slowly)
        process.send_signal(signal.SIGSTOP)  # who connects waits for its first answer
        try:
            a.bus.notify(FOLDERS)
            a.bus.notify(SOURCES)
            until(lambda: [each.is_connected for each in [*pool._in_use_connections]] == [True] * 3)
        finally:
            a.bus.stop()
            process.send_signal(signal.SIGCONT)
    assert a.link._thread is not None
    a.link._thread.join(DEADLINE)
    assert not a.link._thread.is_alive()
    assert not [each for each in {*pool._available_connections, *pool._in_use_connections} if each.is_connected]


def test_what_fails_does_not_end_the_looking(redis: RealRedis, caplog: pytest.LogCaptureFixture) -> None:
    with replicas(redis, 2) as (a, b):
        b.is_failing = True
        a.bus.notify(SOURCES)
        until(lambda: "the scan after a message failed" in caplog.text)
        b.is_failing = False
        a.bus.notify(SOURCES)
        until(lambda: b.sources)
