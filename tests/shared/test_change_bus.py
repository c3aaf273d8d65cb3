"""Publish/subscribe between replicas: throttled scans, and scans after a reconnection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from mcp_skills_server.shared import link
from mcp_skills_server.shared.address import redis_settings
from mcp_skills_server.shared.change_bus import FOLDERS, SOURCES, ChangeBus
from mcp_skills_server.shared.link import Link
from shared.redis_servers import RealRedis, redis_server
from web.http_wire import wait_until
from wire import DEADLINE

pytestmark = pytest.mark.needs_program("redis-server")


class Replica:
    """A replica that counts its scans."""

    def __init__(self, redis: RealRedis) -> None:
        self.sources = self.folders = 0
        self.was_scanning = self.is_failing = False
        self.link = Link(redis_settings(redis.url))
        self.bus = ChangeBus(self.link, {SOURCES: self._scan_sources, FOLDERS: self._scan_folders})

    def _scan_sources(self) -> None:
        if self.is_failing:
            raise OSError("injected")
        self.sources += 1

    def _scan_folders(self) -> None:
        self.was_scanning = self.bus.is_scanning
        self.folders += 1


@contextmanager
def replicas(redis: RealRedis, count: int) -> Iterator[list[Replica]]:
    with ExitStack() as stack:
        started = [Replica(redis) for _ in range(count)]
        for each in started:
            each.bus.start()
            stack.callback(each.bus.stop)
        wait_until(lambda: count_subscribers(redis) == len(started), "the replicas")
        yield started


def count_subscribers(redis: RealRedis) -> int:
    return int(redis.say("--raw", "pubsub", "numsub", "mcp-skills:changes").split()[-1])


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRedis]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis(started: RealRedis) -> RealRedis:
    started.say("acl", "setuser", "default", "+publish")
    wait_until(lambda: count_subscribers(started) == 0, "the end of the former replicas")
    return started


def test_message_makes_the_other_replicas_scan(redis: RealRedis) -> None:
    with replicas(redis, 3) as (a, b, c):
        a.bus.notify(FOLDERS)
        wait_until(lambda: b.folders and c.folders)
        b.bus.notify(SOURCES)
        wait_until(lambda: a.sources and c.sources)
        assert [(each.sources, each.folders) for each in (a, b, c)] == [(1, 0), (0, 1), (1, 1)]
        assert b.was_scanning
        assert not b.bus.is_scanning


def test_scans_are_throttled_and_foreign_messages_ignored(redis: RealRedis, caplog: pytest.LogCaptureFixture) -> None:
    with replicas(redis, 2) as (a, b):
        for _ in range(500):
            a.bus.notify(FOLDERS)
        longest = '{"changed":"sources","from":"x"}'.ljust(512)
        for message in ('{"changed":"x","from":"x"}', longest, f"{longest} ", "[1]", '{"changed":"folders"}', "\\xff"):
            redis.say("publish", "mcp-skills:changes", message)
        wait_until(lambda: b.folders and b.sources)
        assert b.folders <= 3  # the first immediately, later ones together after a second
        wait_until(lambda: caplog.text.count("a message that no replica wrote") >= 4 * 2)
    assert caplog.text.count("a message that no replica wrote") == 4 * 2


def test_replica_scans_after_redis_is_back(redis: RealRedis) -> None:
    with replicas(redis, 1) as (a,):
        redis.stop()
        b = Replica(redis)
        b.bus.start()
        wait_until(lambda: not a.link.is_up and not b.link.is_up)
        a.bus.notify(FOLDERS)  # a lost message
        redis.start()
        wait_until(lambda: all((a.folders, a.sources, b.folders, b.sources)))
        assert a.link.is_up and b.link.is_up
        b.bus.stop()


def test_lost_connection_makes_all_replicas_scan(redis: RealRedis) -> None:
    with replicas(redis, 2) as (a, b):
        first = redis.say("client", "list", "type", "pubsub").partition(" ")[0]
        redis.say("client", "kill", "id", first.removeprefix("id="))
        wait_until(lambda: all((a.folders, a.sources, b.folders, b.sources)))


def test_timed_out_message_causes_a_scan_after_reconnecting(redis: RealRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    with replicas(redis, 2) as (a, b):
        monkeypatch.setattr(link, "_WHOLE_S", 0.3)
        redis.say("client", "pause", "800", "write")
        a.bus.notify(FOLDERS)
        wait_until(lambda: not a.link.is_up)
        wait_until(lambda: b.folders)
        assert a.link.is_up


def test_redis_without_publish_permission_is_still_used(redis: RealRedis, caplog: pytest.LogCaptureFixture) -> None:
    redis.say("acl", "setuser", "default", "-publish")
    with replicas(redis, 2) as (a, b):
        for _ in range(3):
            a.bus.notify(FOLDERS)
        wait_until(lambda: "refuses a change message" in caplog.text)
        assert a.link.is_up and b.folders == 0
    lines = [each for each in caplog.records if "redis://" in each.getMessage()]
    assert lines
    assert all(each.__dict__["repeats"] for each in lines)  # logged once a minute


def test_message_before_start_or_after_stop_is_dropped(redis: RealRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_STOP_S", DEADLINE)
    with replicas(redis, 1) as (a,):
        early = Replica(redis)
        early.bus.notify(FOLDERS)
        early.bus.stop()
        late = Replica(redis)
        late.bus.start()
        wait_until(lambda: count_subscribers(redis) == 2)
        late.bus.stop()
        assert count_subscribers(redis) == 1
        late.bus.notify(FOLDERS)
        assert a.folders == 0


def test_failed_scan_does_not_prevent_later_ones(redis: RealRedis, caplog: pytest.LogCaptureFixture) -> None:
    with replicas(redis, 2) as (a, b):
        b.is_failing = True
        a.bus.notify(SOURCES)
        wait_until(lambda: "the scan after a message failed" in caplog.text)
        b.is_failing = False
        a.bus.notify(SOURCES)
        wait_until(lambda: b.sources)
