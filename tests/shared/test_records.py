"""Shared records and token buckets in a real Redis."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from mcp_skills_server.shared import records as module
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
    opened = Link(redis_settings(redis.url, prefix="one:"))
    yield opened
    await opened.aclose()


def session_records(link: Link, *, ttl_s: float = 60) -> Records:
    return Records(link, "session", ttl_s=ttl_s)


def session_key(name: str) -> str:
    return f"one:session:{hashed(name)}"


async def test_closed_connection_is_reopened_and_aclose_leaves_none(redis: RealRedis) -> None:
    link = Link(redis_settings(redis.url))
    for _ in range(2):
        await session_records(link).write("a", "me", "one", replaces=None)
        assert len(redis.say("client", "list").splitlines()) == 2  # one of them is the connection of redis-cli
        redis.say("client", "kill", "type", "normal")
    await session_records(link).read("a", "me")
    await link.aclose()
    while len(redis.say("client", "list").splitlines()) > 1:
        continue


async def test_record_is_read_by_name_and_replaced_by_compare_and_set(link: Link) -> None:
    records = session_records(link)
    for _ in range(2):  # as a retry after a lost response
        await records.write("a", "me", "one", replaces=None)
    for stale in (None, "zero"):
        with pytest.raises(ChangedMeanwhileError):
            await records.write("a", "me", "two", replaces=stale)
    assert await records.read("a", "me") == "one"
    assert await records.read("b", "me") is None
    await records.write("a", "me", "two", replaces="one")
    assert await session_records(link).read("a", "me") == "two"
    await records.delete("a", "me")
    assert await records.read("a", "me") is None


async def test_one_of_many_concurrent_writers_wins(link: Link) -> None:
    records = session_records(link)
    await records.write("a", "me", "start", replaces=None)
    writes = [records.write("a", "me", f"by {each}", replaces="start") for each in range(30)]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [*map(type, results)].count(ChangedMeanwhileError) == 29
    assert await records.read("a", "me") == f"by {results.index(None)}"


async def test_key_has_prefix_and_expiry_and_no_text_of_a_client(link: Link, redis: RealRedis) -> None:
    records = session_records(link, ttl_s=60_000)
    await records.write("handle-of-a-session", "token alpha", "text", replaces=None)
    assert 59_950_000 < int(redis.say("pttl", session_key("handle-of-a-session"))) <= 60_000_000
    await SharedBucket(link, "requests", most=5, per_second=1).take("token alpha")
    assert len(redis.all_keys()) == 4
    for each in redis.all_keys():
        assert each.startswith("one:")
        assert "alpha" not in each and "handle" not in each
        assert int(redis.say("pttl", each)) > 0
    assert hashed("a") == "ca978112ca1bbdcafac231b39a23dc4da786eff8", "replicas of different versions share keys"


async def test_unused_record_expires(link: Link, redis: RealRedis) -> None:
    records = session_records(link, ttl_s=0.05)
    await records.write("a", "me", "one", replaces=None)
    while redis.all_keys():
        pass
    assert await records.read("a", "me") is None


async def test_group_beyond_its_share_loses_its_own_oldest_record(link: Link) -> None:
    records = session_records(link)
    await records.write("mine", "me", "kept", replaces=None, share=1)
    for each in range(3):
        await records.write(f"theirs {each}", "they", "text", replaces=None, share=3)
    assert await records.read("theirs 0", "they") == "text"  # now the youngest
    for each in (3, 4):
        await records.write(f"theirs {each}", "they", "text", replaces=None, share=3)
        await records.write(f"ungrouped {each}", None, "text", replaces=None)
    left = [each for each in range(5) if await records.read(f"theirs {each}", "they") is not None]
    assert left == [0, 3, 4]
    assert await records.read("ungrouped 3", None) == "text"
    assert await records.read("mine", "me") == "kept"


async def test_group_evicts_its_own_record_at_the_total_limit_or_is_refused(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WHOLE", 4)
    records = session_records(link)
    for each in range(4):
        await records.write(f"a {each}", "a", "text", replaces=None)
    with pytest.raises(FullError, match="all 4 shared ones are in use"):
        await records.write("b", "b", "text", replaces=None)
    await records.write("a 4", "a", "text", replaces=None)
    assert [await records.read(f"a {each}", "a") for each in (0, 4)] == [None, "text"]


async def test_limits_are_65536_records_of_16_kib(link: Link, redis: RealRedis) -> None:
    records = session_records(link)
    await records.write("large", "me", "é" * 8192, replaces=None)
    assert await records.read("large", "me") == "é" * 8192
    with pytest.raises(SharedError, match="too long"):
        await records.write("larger", "me", "é" * 8192 + "x", replaces=None)
    others = "for each = 3, 65536 do redis.call('ZADD', KEYS[1], '+inf', each) end"
    redis.say("eval", others, "1", "one:session:all")
    await records.write("last", "me", "text", replaces=None)
    assert await records.read("large", "me") is not None
    with pytest.raises(FullError):
        await records.write("one more", "they", "text", replaces=None)


async def test_record_stays_in_the_group_that_created_it(link: Link) -> None:
    records = session_records(link)
    await records.write("a", "me", "one", replaces=None, share=1)
    await records.write("a", "they", "two", replaces="one", share=1)  # from another address
    await records.write("b", "they", "three", replaces=None, share=1)
    assert await records.read("a", "me") == "two"


async def test_foreign_value_is_missing_or_refused(link: Link, redis: RealRedis) -> None:
    redis.say("set", session_key("binary"), b"\xff\xfe\xfd")
    redis.say("eval", f"redis.call('SET', '{session_key('huge')}', string.rep('x', 16 * 1024 * 1024))", "0")
    redis.say("lpush", session_key("list"), "x")
    records = session_records(link)
    assert await records.read("binary", "me") is None
    assert await records.read("huge", "me") is None
    with pytest.raises(SharedError):
        await records.read("list", "me")
    assert link.is_up
    with pytest.raises(ChangedMeanwhileError):
        await records.write("binary", "me", "text", replaces=None)


async def test_full_redis_refuses_only_writes_and_is_logged_once(
    link: Link, redis: RealRedis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    records = session_records(link)
    await records.write("a", "me", "one", replaces=None)
    redis.say("config", "set", "maxmemory", "1")
    for _ in range(3):
        with pytest.raises(SharedError, match="refuses"):
            await records.write("b", "me", "two", replaces=None)
        assert await records.read("a", "me") == "one"
    assert link.is_up
    redis.say("config", "set", "maxmemory", "0")
    await records.write("b", "me", "two", replaces=None)
    lines = [each.getMessage() for each in caplog.records if each.name.startswith("mcp_skills_server")]
    assert len({*lines}) == 1
    assert "refuses writing a session: " in lines[0]
    assert "maxmemory" in lines[0]


# Buckets


async def test_take_returns_0_while_tokens_last_and_then_the_wait(link: Link) -> None:
    bucket = SharedBucket(link, "requests", most=3, per_second=0.01)
    assert [await bucket.take("a") for _ in range(3)] == [0, 0, 0]
    assert 90 < await bucket.take("a") <= 100
    assert await bucket.take("b") == 0
    assert await SharedBucket(link, "runs", most=3, per_second=0.01).take("a") == 0


async def test_take_of_several_tokens_takes_all_or_none(link: Link) -> None:
    bucket = SharedBucket(link, "requests", most=3, per_second=0.01)
    assert await bucket.take("a", 2) == 0
    assert 90 < await bucket.take("a", 2) <= 100
    assert await bucket.take("a") == 0


async def test_replicas_share_a_bucket(link: Link) -> None:
    other = Link(link.settings)
    buckets = [SharedBucket(each, "requests", most=20, per_second=0.001) for each in (link, other)]
    taken = await asyncio.gather(*(each.take("a") for each in buckets for _ in range(30)))
    assert [wait == 0 for wait in taken].count(True) == 20
    await other.aclose()


async def test_bucket_refills_up_to_its_size(link: Link, redis: RealRedis) -> None:
    bucket = SharedBucket(link, "requests", most=2, per_second=2)
    assert [await bucket.take("a") for _ in range(2)] == [0, 0]
    while await bucket.take("a"):
        continue
    (name,) = redis.all_keys()
    # An hour passes, and then the clock is set back.
    for at in (-3600, 3600):
        redis.say("eval", f"redis.call('HINCRBYFLOAT', KEYS[1], 'at', {at})", "1", name)
        assert [await bucket.take("a") > 0 for _ in range(3)] == [False, False, True]


async def test_foreign_value_of_a_bucket_is_refused_or_reset(link: Link, redis: RealRedis) -> None:
    redis.say("set", f"one:bucket:requests:{hashed('a')}", "text")
    redis.say("hset", f"one:bucket:requests:{hashed('b')}", "left", "much", "at", "once")
    bucket = SharedBucket(link, "requests", most=2, per_second=1)
    with pytest.raises(SharedError):
        await bucket.take("a")
    assert await bucket.take("b") == 0
