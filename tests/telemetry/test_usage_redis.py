"""Counts of uses in a real Redis: what all replicas add comes to the same, whatever fails or stands there."""

from __future__ import annotations

import json
import logging
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import Changes
from mcp_skills_server.shared.address import redis_settings
from mcp_skills_server.shared.link import Link
from mcp_skills_server.telemetry import usage, usage_redis
from mcp_skills_server.telemetry.events import Event, Use
from mcp_skills_server.telemetry.usage import Usage
from mcp_skills_server.telemetry.usage_redis import RedisStore
from mcp_skills_server.telemetry.usage_sqlite import SqliteStore
from mcp_skills_server.telemetry.usage_store import (
    DAY_S,
    KEPT_DAYS,
    OTHER,
    Batch,
    By,
    Count,
    NotStoredError,
    Sum,
    UsageStore,
    day_of,
)
from shared.redis_servers import RealRedis, answering, free_port, redis_server, until
from web.http_wire import Server, client, http_serving, refused
from wire import COMMAND, DEADLINE, ROOT, write_skill

pytestmark = pytest.mark.needs_program("redis-server")

TODAY = day_of(time.time())
NOON = TODAY * DAY_S + 12 * 3600.0
BY: tuple[By, ...] = ("skill", "principal", "host")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRedis]:
    """One Redis for all."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis(started: RealRedis) -> RealRedis:
    """The same, empty."""
    started.say("config", "set", "maxmemory", "0")
    started.say("flushall")
    return started


def store(redis: RealRedis, **more: Any) -> RedisStore:
    return RedisStore(Link(redis_settings(redis.url, **more)), now=lambda: NOON)


class Unheard:
    def heard(self, message: bytes) -> None:
        """Nobody says anything."""

    def returned(self) -> None:
        """Nothing was missed."""


@contextmanager
def linked(redis: RealRedis) -> Iterator[tuple[Link, RedisStore]]:
    """A store over a link that has connected and keeps its connection, as in a server."""
    link = Link(redis_settings(redis.url))
    link.start(Unheard())
    try:
        made = RedisStore(link, now=lambda: NOON)
        until(lambda: added(made, Batch(0, {}, {})), "the connection")
        yield link, made
    finally:
        link.stop()


def added(to: UsageStore, batch: Batch) -> bool:
    try:
        to.add(batch)
    except NotStoredError:
        return False
    return True


def load(name: str = "a", *, digest: str = "sha256:1", host: str = "an editor", day: int = TODAY) -> Count:
    return Count(day, "load", name, digest, "token:ann", host, "mcp")


def batch(number: int, *counts: Count, times: int = 1) -> Batch:
    return Batch(number, {each: Sum(times, NOON) for each in counts}, {})


def loads(of: UsageStore) -> dict[str, int]:
    return {each.name: each.loads for each in of.report("skill", 30).lines}


def event(*uses: Use, at: float = NOON, found: int | None = None, question: str = "", who: str = "token:ann") -> Event:
    run = any(each.action == "run" for each in uses)
    return Event(
        at, "mcp", "x", "begun" if run else "ok", who, host="an editor", uses=uses, found=found, question=question
    )


def test_both_stores_report_the_same(redis: RealRedis, tmp_path: Path) -> None:
    stores: list[UsageStore] = [SqliteStore(str(tmp_path / "usage.db"), now=lambda: NOON), store(redis)]
    events = [
        event(Use("load", "a", "SKILL.md", "1")),
        event(Use("load", "a", "SKILL.md", "2"), Use("read", "a", "x", "3"), who="token:bob"),
        event(Use("run", "b", "x", "4")),
        event(Use("load", "b", "SKILL.md", "5"), Use("dropped", "b", "SKILL.md", "5"), at=NOON - DAY_S - 0.25),
        event(Use("load", "old", "SKILL.md", "6"), at=NOON - 40 * DAY_S),
        event(found=2, question="refunds"),
        event(found=0, question="teleport"),
        event(found=0, question="teleport"),
        event(Use("load", 'söme "skill"\n', "SKILL.md", "")),
    ]
    for each in stores:
        counting = Usage(each, questions=True)
        served: Any = dict.fromkeys(("a", "b", "never", "gone"))
        counting.serves(Changes({}, served))
        for one in events:
            counting.take([one])
            counting.flush()  # in as many batches
        counting.serves(Changes({"gone": served["gone"]}, {}))
        counting.flush()
    for by in BY:
        one, other = (each.report(by, 30) for each in stores)
        assert one == other
    lines = {each.name: each for each in stores[1].report("skill", 30).lines}
    assert (lines["a"].loads, lines["a"].reads, lines["a"].versions, lines["a"].last) == (2, 1, 2, NOON)
    assert (lines["b"].runs, lines["b"].dropped, lines["b"].days[-3:]) == (1, 1, (0, 1, 1))
    assert lines["never"].last is None and not {"gone", "old"} & lines.keys()
    report = stores[1].report("host", 2)
    assert (report.searches, report.empty, report.questions) == (3, 2, (("teleport", 2),))


def test_what_many_processes_add_at_once_adds_up(redis: RealRedis) -> None:
    def add() -> None:
        mine = store(redis)
        for number in range(1, 21):
            mine.add(batch(number, load("a"), load("b"), times=number))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(DEADLINE)
    assert loads(store(redis)) == {"a": 4 * 210, "b": 4 * 210}


def test_a_batch_whose_answer_was_lost_counts_once(redis: RealRedis) -> None:
    mine = store(redis)
    many = batch(1, *(load(f"skill {each}") for each in range(2500)))  # several commands
    for again in (many, many, batch(2, load("skill 0")), batch(2, load("skill 0"))):
        mine.add(again)
    found = loads(mine)
    assert (len(found), found.pop("skill 0"), {*found.values()}) == (2500, 2, {1})


@pytest.mark.requirement("X-15")
def test_while_redis_is_away_counts_wait_and_what_has_no_place_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "_MOST_WAITING", 3)
    with redis_server(tmp_path / "redis") as redis, linked(redis) as (link, mine):
        counting = Usage(mine)
        redis.stop()
        until(lambda: not link.is_up, "the end of Redis")
        counting.take([event(Use("load", "a", "SKILL.md", "1"))])
        counting.flush()
        for name in ("a", "b", "a", "c", "d", "e", "a"):
            counting.take([event(Use("load", name, "SKILL.md", "1"))])
            counting.flush()
        said = [each for each in caplog.messages if "different counts wait" in each]
        assert len(said) == 1 and "3 different counts" in said[0]
        assert [each.levelno for each in caplog.records if each.name == usage.__name__] == [logging.ERROR]
        assert (counting.waiting, counting.lost) == (4, 2)  # the batch that was begun waits apart
        redis.start()
        until(lambda: link.is_up, "Redis")
        counting.flush()
        assert (counting.waiting, counting.lost) == (0, 2)
        assert loads(mine) == {"a": 4, "b": 1, "c": 1}
        assert "uses are counted again; 2 uses meanwhile were not" in caplog.messages[-1]


def test_a_full_redis_refuses_counts_with_one_line_and_they_wait(
    redis: RealRedis, caplog: pytest.LogCaptureFixture
) -> None:
    with linked(redis) as (link, mine):
        counting = Usage(mine)
        redis.say("config", "set", "maxmemory", "1")
        for _ in range(3):
            counting.take([event(Use("load", "a", "SKILL.md", "1"))])
            counting.flush()
        assert link.is_up and loads(mine) == {}
        (line,) = [each for each in caplog.messages if "refuses counts of uses" in each]
        assert "maxmemory" in line
        redis.say("config", "set", "maxmemory", "0")
        counting.flush()
        assert loads(mine) == {"a": 3}
        assert any("takes counts of uses again" in each for each in caplog.messages)


def test_what_is_too_much_at_once_is_written_and_read_in_parts(redis: RealRedis) -> None:
    mine = store(redis)
    mine.add(batch(1, *(load(f"skill {each}", host=f"host {each % 7}") for each in range(9_000)), times=3))
    assert len(found := loads(mine)) == 9_000 and {*found.values()} == {3}
    assert {each.loads for each in mine.report("host").lines} == {3 * 1285, 3 * 1286}


def test_the_commands_that_the_documentation_allows_are_enough(redis: RealRedis) -> None:
    words = re.search(r"ACL SETUSER (skills .*)", (ROOT / "docs" / "redis.md").read_text())
    assert words is not None
    redis.say("acl", "setuser", *words[1].split())
    link = Link(redis_settings(redis.url.replace("//", "//skills:PASSWORD@")))
    mine = RedisStore(link, now=lambda: NOON)
    mine.serve(["a", "b"], ["c"])
    mine.add(batch(1, *(load(f"skill {each}") for each in range(300))))
    assert len(mine.report().lines) == 302
    redis.say("acl", "setuser", "skills", "-hscan")
    with pytest.raises(UsageError, match="see to the user of --redis"):
        mine.report()


def test_every_key_has_the_prefix_an_end_and_no_clients_text(redis: RealRedis) -> None:
    mine = store(redis, prefix="one:")
    mine.serve(["skill-name"])
    mine.add(Batch(1, {load("skill-name", host="client-text"): Sum(1, NOON)}, {"client-text": 1}))
    assert len(redis.all_keys()) == 7
    for key in redis.all_keys():
        assert key.startswith("one:usage:") and "client" not in key and "skill-name" not in key and "ann" not in key
        assert 0 < int(redis.say("pttl", key)) <= (KEPT_DAYS + 1) * DAY_S * 1000
    assert store(redis).report().lines == ()


@pytest.mark.parametrize(("by", "field"), [("host", "host"), ("skill", "skill")])
def test_a_day_has_a_bound_and_what_is_new_beyond_it_counts_together(
    redis: RealRedis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, by: By, field: str
) -> None:
    monkeypatch.setattr(usage_redis, "MOST", {**dict.fromkeys(BY, 6), "questions": 2})
    mine = store(redis)
    for number in range(1, 21):
        count = load()._replace(**{field: f"made up {number}"})
        mine.add(Batch(number, {count: Sum(2, NOON)}, {f"question {number}": 1}))
    assert int(redis.say("hlen", f"mcp-skills:usage:{TODAY}:{by}")) <= 8
    assert int(redis.say("hlen", f"mcp-skills:usage:{TODAY}:questions")) <= 3
    report = mine.report(by)
    found = {each.name: each.loads for each in report.lines}
    assert sum(found.values()) == 40 and found[OTHER] > 20
    assert OTHER not in dict(report.questions) and len(report.questions) == 2
    assert len([each for each in caplog.messages if f"counts by {by} today" in each]) == 1


def test_skills_that_no_server_has_any_more_are_forgotten(redis: RealRedis) -> None:
    moment = [NOON]
    mine = RedisStore(Link(redis_settings(redis.url)), now=lambda: moment[0])
    mine.serve(["a", "b"])
    seconds = int(redis.say("--raw", "time").split()[0])
    redis.say("zadd", "mcp-skills:usage:served", str(seconds - 24 * 3600), "of a server that is gone")
    redis.say("zrem", "mcp-skills:usage:served", "b")
    moment[0] += 3600
    mine.add(batch(1, load("a")))  # which announces all anew
    assert [each.name for each in mine.report().lines] == ["a", "b"]


def test_what_no_server_wrote_is_passed_over_and_said(redis: RealRedis, caplog: pytest.LogCaptureFixture) -> None:
    mine = store(redis)
    mine.add(batch(1, load("a")))
    key = f"mcp-skills:usage:{TODAY}:skill"
    fields = [
        b"\xff\xfe",
        b"[" * 100_000,
        b"{}",
        b"[1,2,3,4]",
        b'["load"]',
        b'["other","a","","mcp"]',
        json.dumps(["load", "x", "", "mcp"]).encode(),
    ]
    for field in fields:
        redis.say("hset", key, field, "nan" if b'"x"' in field else "1")
    redis.say("hset", key, '["load","b","sha256:1","mcp"]', "garbage")
    redis.say("set", f"mcp-skills:usage:{TODAY - 1}:skill", "x")
    mine.add(batch(2, load("b")))  # over a value that is no number
    assert loads(mine) == {"a": 1, "b": 1}
    (line,) = [each for each in caplog.messages if "no server of this version wrote" in each]
    assert f": {len(fields) + 1} things" in line
    assert not added(mine, batch(3, load("a", day=TODAY - 1)))
    assert redis.say("type", f"mcp-skills:usage:{TODAY - 1}:skill") == "string"
    assert loads(mine) == {"a": 1, "b": 1}


def test_keys_of_another_version_are_left_alone_and_said(redis: RealRedis, caplog: pytest.LogCaptureFixture) -> None:
    redis.say("set", "mcp-skills:usage:version", "2")
    assert not added(store(redis), batch(1, load()))
    assert redis.all_keys() == ["mcp-skills:usage:served", "mcp-skills:usage:version"][1:]
    assert "another version of this program counts there" in caplog.text


def test_what_is_no_redis_is_an_error_of_one_line() -> None:
    with answering(lambda connection: connection.sendall(b"220 mail.example ESMTP\r\n")) as port:
        mine = RedisStore(Link(redis_settings(f"redis://:secret@127.0.0.1:{port}/0")))
        with pytest.raises(UsageError, match="the counts cannot be read") as raised:
            mine.report()
    assert "secret" not in str(raised.value) and "\n" not in str(raised.value)


# The commands


def shown(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "usage", *words], capture_output=True, text=True, timeout=DEADLINE, check=False, cwd=ROOT
    )


def test_wrong_usage_is_one_line(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    assert "give --redis URL too" in refused(tmp_path, "--usage", "redis")
    away = f"redis://:secret@127.0.0.1:{free_port()}/0"
    for words, said in (
        (("--usage", "redis"), "give --redis URL too"),
        (("--usage", "redis", "--redis", away), "there is no connection"),
        (("--usage", "redis", "--redis", "http://x"), "no address of Redis"),
    ):
        done = shown(*words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
        assert said in done.stderr and "secret" not in done.stderr
    done = subprocess.run(
        [*COMMAND, "serve", str(tmp_path), "--usage", "redis"], capture_output=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 2 and b"over stdio give sqlite:FILE" in done.stderr and done.stderr.count(b"\n") == 1


def read(server: Server, times: int) -> None:
    with client(server, "modern") as one:
        for _ in range(times):
            one.request("resources/read", {"uri": "skill://alpha/SKILL.md"})


def counted(redis: RealRedis) -> dict[str, Any]:
    done = shown("--usage", "redis", "--redis", redis.url, "--format", "json")
    assert done.returncode == 0, done.stderr
    return {each["name"]: each for each in json.loads(done.stdout)["lines"]}


@pytest.mark.requirement("X-15")
def test_replicas_and_workers_count_as_one_and_a_killed_one_loses_nothing_that_was_sent(
    redis: RealRedis, tmp_path: Path
) -> None:
    for name in ("alpha", "never"):
        write_skill(tmp_path / "skills" / name)
    options = tmp_path / "skills", "--redis", redis.url, "--usage", "redis"
    with http_serving(*options) as a, http_serving(*options, "--workers", "2") as b:
        read(a, 5)
        until(lambda: loads(store(redis)).get("alpha") == 5, "the counts of the first")
        a.process.send_signal(signal.SIGKILL)
        a.process.wait(DEADLINE)
        for _ in range(4):
            read(b, 2)  # over connections of either worker
        b.signal(signal.SIGTERM)  # which sends the rest
    found = counted(redis)
    assert found["alpha"]["loads"] == 13 and found["never"]["last"] is None
    assert len(re.findall("resources/read of alpha: ok", b.stderr)) == 8


def test_the_page_shows_them(redis: RealRedis, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    write_skill(tmp_path / "skills" / "alpha")
    with http_serving(tmp_path / "skills", "--redis", redis.url, "--usage", "redis", "--ui") as server:
        read(server, 7)
        until(lambda: loads(store(redis)).get("alpha") == 7, "the counts")  # the page reads them every five seconds
        until(lambda: b"<dd>7 times" in server.send("GET", "/ui/skills/alpha").body, "the counts on the page")
