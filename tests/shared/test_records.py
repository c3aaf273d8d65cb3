"""Records and buckets in a real Redis: one writer at a time, bounded in number, size and age, whatever stands there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from mcp_skills_server.shared.address import redis_settings
from mcp_skills_server.shared.link import ChangedMeanwhileError, FullError, Link, SharedError
from mcp_skills_server.shared.records import Records, SharedBucket, hashed
from shared.redis_servers import RealRedis, redis_server

pytestmark = [pytest.mark.needs_program("redis-server"), pytest.mark.anyio]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRedis]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis(started: RealRedis) -> RealRedis:
    started.say("config", "set", "maxmemory", "0")
    started.say("flushall")
    return started


@pytest.fixture
async def link(redis: RealRedis) -> AsyncIterator[Link]:
    made = Link(redis_settings(redis.url, prefix="one:"))
    yield made
    await made.aclose()


def records(link: Link, *, share: int = 10, ttl_s: float = 60, **more: int) -> Records:
    return Records(link, "session", ttl_s=ttl_s, share=share, **more)


def key(name: str) -> str:
    return f"one:session:{hashed(name)}"


async def test_a_connection_that_was_closed_meanwhile_is_opened_again_and_none_is_left(redis: RealRedis) -> None:
    link = Link(redis_settings(redis.url))
    for _ in range(2):
        await records(link).write("a", "me", "one", replaces=None)
        assert len(redis.say("client", "list").splitlines()) == 2  # its own, and that of who asks
        redis.say("client", "kill", "type", "normal")
    await records(link).read("a", "me")
    await link.aclose()
    while len(redis.say("client", "list").splitlines()) > 1:
        continue


async def test_what_is_written_is_read_by_who_knows_its_name_and_only_what_was_read_is_replaced(link: Link) -> None:
    kept = records(link)
    for _ in range(2):  # as after an answer that was lost
        await kept.write("a", "me", "one", replaces=None)
    for stale in (None, "zero"):
        with pytest.raises(ChangedMeanwhileError):
            await kept.write("a", "me", "two", replaces=stale)
    assert await kept.read("a", "me") == "one" and await kept.read("b", "me") is None
    await kept.write("a", "me", "two", replaces="one")
    assert await records(link).read("a", "me") == "two"
    await kept.delete("a", "me")
    assert await kept.read("a", "me") is None


async def test_of_many_writers_at_once_one_wins(link: Link) -> None:
    kept = records(link)
    await kept.write("a", "me", "start", replaces=None)
    writes = [kept.write("a", "me", f"by {each}", replaces="start") for each in range(30)]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [*map(type, results)].count(ChangedMeanwhileError) == 29
    assert await kept.read("a", "me") == f"by {results.index(None)}"


async def test_every_key_has_the_prefix_and_an_end_and_no_clients_text(link: Link, redis: RealRedis) -> None:
    kept = records(link, ttl_s=60_000)
    await kept.write("handle-of-a-session", "token alpha", "text", replaces=None)
    assert 59_950_000 < int(redis.say("pttl", key("handle-of-a-session"))) <= 60_000_000
    await SharedBucket(link, "requests", most=5, per_second=1).take("token alpha")
    assert len(redis.all_keys()) == 4
    for each in redis.all_keys():
        assert each.startswith("one:")
        assert "alpha" not in each and "handle" not in each
        assert int(redis.say("pttl", each)) > 0
    assert hashed("a") == "ca978112ca1bbdcafac231b39a23dc4da786eff8", "replicas of two versions share their keys"


async def test_a_record_that_nobody_uses_ends(link: Link, redis: RealRedis) -> None:
    kept = records(link, ttl_s=0.05)
    await kept.write("a", "me", "one", replaces=None)
    while redis.all_keys():
        pass
    assert await kept.read("a", "me") is None


async def test_who_writes_too_many_loses_its_own_oldest_and_nobody_anothers(link: Link) -> None:
    kept = records(link, share=3)
    await kept.write("mine", "me", "kept", replaces=None)
    for each in range(3):
        await kept.write(f"theirs {each}", "they", "text", replaces=None)
    assert await kept.read("theirs 0", "they") == "text"  # which makes it the youngest
    for each in (3, 4):
        await kept.write(f"theirs {each}", "they", "text", replaces=None)
        await kept.write(f"nobody's {each}", None, "text", replaces=None)
    left = [each for each in range(5) if await kept.read(f"theirs {each}", "they") is not None]
    assert left == [0, 3, 4]
    assert await records(link, share=1).read("nobody's 3", None) == "text"
    assert await kept.read("mine", "me") == "kept"


async def test_where_all_places_are_taken_an_owner_gives_up_its_own_or_is_refused(link: Link) -> None:
    kept = records(link, share=10, whole=4)
    for each in range(4):
        await kept.write(f"a {each}", "a", "text", replaces=None)
    with pytest.raises(FullError, match="all 4 shared ones are in use"):
        await kept.write("b", "b", "text", replaces=None)
    await kept.write("a 4", "a", "text", replaces=None)
    assert [await kept.read(f"a {each}", "a") for each in (0, 4)] == [None, "text"]


async def test_there_is_room_for_65536_records_of_16_kib(link: Link, redis: RealRedis) -> None:
    kept = records(link)
    await kept.write("large", "me", "é" * 8192, replaces=None)
    assert await kept.read("large", "me") == "é" * 8192
    with pytest.raises(SharedError, match="too long"):
        await kept.write("larger", "me", "é" * 8192 + "x", replaces=None)
    others = "for each = 3, 65536 do redis.call('ZADD', KEYS[1], '+inf', each) end"
    redis.say("eval", others, "1", "one:session:all")
    await kept.write("last", "me", "text", replaces=None)
    assert await kept.read("large", "me") is not None
    with pytest.raises(FullError):
        await kept.write("one more", "they", "text", replaces=None)


async def test_a_record_stays_with_the_group_that_began_it(link: Link) -> None:
    kept = records(link, share=1)
    await kept.write("a", "me", "one", replaces=None)
    await kept.write("a", "they", "two", replaces="one")  # from another address
    await kept.write("b", "they", "three", replaces=None)
    assert await kept.read("a", "me") == "two"


async def test_what_no_replica_wrote_is_nothing_or_refused(link: Link, redis: RealRedis, tmp_path: Path) -> None:
    redis.say("set", key("binary"), b"\xff\xfe\xfd")
    redis.say("eval", f"redis.call('SET', '{key('huge')}', string.rep('x', 16 * 1024 * 1024))", "0")
    redis.say("lpush", key("list"), "x")
    kept = records(link)
    assert await kept.read("binary", "me") is None
    assert await kept.read("huge", "me") is None
    with pytest.raises(SharedError):
        await kept.read("list", "me")
    assert link.is_up
    with pytest.raises(ChangedMeanwhileError):
        await kept.write("binary", "me", "text", replaces=None)


async def test_a_full_redis_refuses_to_write_and_not_to_read_and_says_so_once(
    link: Link, redis: RealRedis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    kept = records(link)
    await kept.write("a", "me", "one", replaces=None)
    redis.say("config", "set", "maxmemory", "1")
    for _ in range(3):
        with pytest.raises(SharedError, match="refuses"):
            await kept.write("b", "me", "two", replaces=None)
        assert await kept.read("a", "me") == "one"
    assert link.is_up
    redis.say("config", "set", "maxmemory", "0")
    await kept.write("b", "me", "two", replaces=None)
    lines = [each.getMessage() for each in caplog.records if each.name.startswith("mcp_skills_server")]
    assert len({*lines}) == 1  # which the log says once a minute
    assert "refuses writing a session: " in lines[0] and "maxmemory" in lines[0]


# Buckets


async def test_a_bucket_gives_what_it_holds_and_says_how_long_to_wait(link: Link) -> None:
    bucket = SharedBucket(link, "requests", most=3, per_second=0.01)
    assert [await bucket.take("a") for _ in range(3)] == [0, 0, 0]
    assert 90 < await bucket.take("a") <= 100
    assert await bucket.take("b", 3) == 0
    assert await SharedBucket(link, "runs", most=3, per_second=0.01).take("a") == 0


async def test_replicas_draw_from_one_bucket(link: Link) -> None:
    other = Link(link.settings)
    buckets = [SharedBucket(each, "requests", most=20, per_second=0.001) for each in (link, other)]
    taken = await asyncio.gather(*(each.take("a") for each in buckets for _ in range(30)))
    assert [wait == 0 for wait in taken].count(True) == 20
    await other.aclose()


async def test_a_bucket_fills_again_and_not_above_its_size(link: Link, redis: RealRedis) -> None:
    bucket = SharedBucket(link, "requests", most=2, per_second=50)
    assert [await bucket.take("a") for _ in range(2)] == [0, 0]
    while await bucket.take("a"):
        continue
    (name,) = redis.all_keys()
    # As if an hour had passed, and then as if the clock had been set back.
    for at in (-3600, 3600):
        redis.say("eval", f"redis.call('HINCRBYFLOAT', KEYS[1], 'at', {at})", "1", name)
        assert await bucket.take("a", 2) == 0
        assert await bucket.take("a", 2) > 0


async def test_a_bucket_that_is_something_else_is_refused(link: Link, redis: RealRedis) -> None:
    redis.say("set", f"one:bucket:requests:{hashed('a')}", "text")
    redis.say("hset", f"one:bucket:requests:{hashed('b')}", "left", "much", "at", "once")
    bucket = SharedBucket(link, "requests", most=2, per_second=1)
    with pytest.raises(SharedError):
        await bucket.take("a")
    assert await bucket.take("b") == 0
