"""Counts of uses in Redis, to which all replicas add. They add up: a batch that is sent twice counts once.

A hash for each day has what was done by skill, one by principal, one by host program, and one has the questions. Their
fields are JSON; a reader passes over what no server wrote. Each hash has an end and a bound of its fields, beyond
which what is new counts under the name `_OTHER`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from mcp_skills_server.errors import REPEATS, UsageError
from mcp_skills_server.shared.faults import SharedError
from mcp_skills_server.shared.link import Link
from mcp_skills_server.telemetry.usage_store import (
    DAY_S,
    KEPT_DAYS,
    MOST_SHOWN,
    SEARCHES,
    Batch,
    By,
    Count,
    NotStoredError,
    Report,
    Row,
    day_of,
    make_report,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

OTHER: Final = "_OTHER"
"""The name under which counts what there is no place for."""
VERSION: Final = "1"
_WHAT: Final = "counts of uses"
_QUESTIONS: Final = "questions"
_MOST: Final[Mapping[str, int]] = {"skill": 20_000, "principal": 20_000, "host": 2_000, _QUESTIONS: 500}
"""Fields of the hash of one day, beside those of `_OTHER`, which are a few for each action."""
_ACTIONS: Final = frozenset(("load", "read", "run", "dropped", *SEARCHES))
_ASKED, _LAST = "asked", "last"
_AT_ONCE: Final = 1000
"""Fields of one command; Redis answers nobody else for about 2 ms."""
_SENDER_MS: Final = 3_600_000
"""For so long Redis knows which batch of a process it has had."""
_ANNOUNCE_S: Final = 600.0
_SERVED_S: Final = 3 * _ANNOUNCE_S
_MOST_SERVED: Final = 100_000

_ADD: Final = """
local version, sender, counted = KEYS[1], KEYS[2], KEYS[3]
local found = redis.call('GET', version)
if found and found ~= ARGV[1] then return redis.error_reply('another version of this program counts there') end
local size = redis.call('HLEN', counted)
if redis.call('HGET', sender, ARGV[2]) == ARGV[3] then return 0 end
redis.call('HSET', sender, ARGV[2], ARGV[3])
redis.call('PEXPIRE', sender, ARGV[4])
redis.call('SET', version, ARGV[1], 'PX', ARGV[5])
local most, other, full = tonumber(ARGV[6]), ARGV[7], 0
local function add(field, times)
  local sum = redis.pcall('HINCRBY', counted, field, times)
  if type(sum) == 'table' then redis.call('HSET', counted, field, times) end
  return sum
end
for each = 8, #ARGV, 3 do
  local field, times, last = ARGV[each], ARGV[each + 1], ARGV[each + 2]
  if last ~= '' then
    local known = redis.call('HGET', counted, field)
    if known or size < most then
      if not known then size = size + 1 end
      if not tonumber(known or '') or tonumber(known) < tonumber(last) then redis.call('HSET', counted, field, last) end
    end
  elseif add(field, times) == tonumber(times) then
    size = size + 1
    if size > most then
      local made = cjson.decode(field)
      made[2], made[3] = other, ''
      redis.call('HDEL', counted, field)
      add(cjson.encode(made), times)
      size, full = size - 1, full + tonumber(times)
    end
  end
end
redis.call('PEXPIRE', counted, ARGV[5])
return full
"""
# HLEN is refused where the key is no hash, before anything is written; the first HSET where Redis is full.
_SHA: Final = hashlib.sha1(_ADD.encode(), usedforsecurity=False).hexdigest()


class RedisStore:
    """The counts of all servers with one prefix in one Redis.

    Args:
        link: the way to it.
        now: seconds since 1970.
    """

    def __init__(self, link: Link, *, now: Callable[[], float] = time.time) -> None:
        self.name = link.settings.shown
        self._link = link
        self._now = now
        self._us = secrets.token_hex(8)
        self._served: set[str] = set()
        self._announced = 0.0
        self._full: set[tuple[int, str]] = set()

    def add(self, batch: Batch) -> None:
        """Add to the counts, in one pipeline."""
        now = self._now()
        if now - self._announced >= _ANNOUNCE_S or now < self._announced:
            self.serve(self._served)
        pieces = [*self._pieces(batch)]
        commands = [self._command(batch.number, place, *piece) for place, piece in enumerate(pieces)]
        for (day, table, _), full in zip(pieces, self._use(lambda client: _executed(client, commands)), strict=True):
            if full and (day, table) not in self._full:
                self._full = {(day, table), *(each for each in self._full if each[0] >= day)}
                logger.warning(
                    "%s: more than %s counts by %s today; what is new counts as %s",
                    self.name,
                    f"{_MOST[table]:,}",
                    table,
                    OTHER,
                    extra=REPEATS,
                )

    def serve(self, came: Iterable[str], gone: Iterable[str] = ()) -> None:
        """Note which skills are served from now on and which no longer are; now and then all of them are noted anew."""
        came, gone = [*came], [*gone]
        self._served = (self._served - {*gone}) | {*came}
        now = self._now()
        whole = now - self._announced >= _ANNOUNCE_S or now < self._announced
        if whole:
            came = sorted(self._served)[:_MOST_SERVED]
        key = self._link.key("usage", "served")

        async def note(client: Redis) -> None:
            untyped: Any = client
            seconds, _ = await untyped.time()
            pipe = untyped.pipeline(transaction=False)
            for some in _portions(gone):
                pipe.zrem(key, *some)
            for some in _portions(came):
                pipe.zadd(key, dict.fromkeys(some, seconds))
            if whole:
                pipe.zremrangebyscore(key, "-inf", seconds - _SERVED_S)
            pipe.pexpire(key, KEPT_DAYS * DAY_S * 1000)
            await pipe.execute()

        self._use(note)
        if whole:
            self._announced = now

    def report(self, by: By = "skill", days: int = 30) -> Report:
        """What was counted in the last days.

        Raises:
            UsageError: it cannot be read.
        """
        first = day_of(self._now()) - days + 1
        keys = {(day, table): self._key(day, table) for day in range(first, first + days) for table in (by, _QUESTIONS)}
        served = self._link.key("usage", "served")

        async def read(client: Redis) -> tuple[list[Any], Any]:
            found = await _each(client, [("HLEN", key) for key in keys.values()])
            for each in found:
                if isinstance(each, Exception) and not str(each).startswith("WRONGTYPE"):
                    raise each
            sound = [
                key
                for (_, table), key, size in zip(keys, keys.values(), found, strict=True)
                if isinstance(size, int) and size <= 2 * _MOST[table]
            ]
            said = dict(zip(sound, await _each(client, [("HGETALL", key) for key in sound]), strict=True))
            members = await _each(client, [("ZRANGE", served, 0, _MOST_SERVED - 1)] if by == "skill" else [])
            return [said.get(key) for key in keys.values()], members

        try:
            hashes, members = self._link.call(_WHAT, read)
        except SharedError as error:
            raise UsageError(f"{self._link.state}; the counts cannot be read ({error})") from None
        return self._report_of(by, first, days, dict(zip(keys, hashes, strict=True)), members)

    def _report_of(
        self, by: By, first: int, days: int, hashes: Mapping[tuple[int, str], object], members: Sequence[object]
    ) -> Report:
        rows: list[Row] = []
        versions: dict[str, set[str]] = defaultdict(set)
        asked: dict[str, int] = defaultdict(int)
        foreign = 0
        for (day, table), found in hashes.items():
            if not isinstance(found, dict):
                foreign += 1
                continue
            for field, value in cast("dict[bytes, bytes]", found).items():
                read = _read(field, value)
                if read is None:
                    foreign += 1
                    continue
                action, name, digest, amount = read
                if table == _QUESTIONS:
                    asked[name] += int(amount) if action == _ASKED and name != OTHER else 0
                elif action == _LAST:
                    rows.append(Row(name, action, day, 0, amount))
                else:
                    rows.append(Row(name, action, day, int(amount), 0.0))
                    if action == "load" and digest:
                        versions[name].add(digest)
        if foreign:
            logger.warning(
                "%s: %s things below %s that no server of this version wrote are left out; keep other programs off",
                self.name,
                f"{foreign:,}",
                self._link.key("usage", "*"),
                extra=REPEATS,
            )
        names = cast("list[bytes]", members[0] if members and isinstance(members[0], list) else [])
        return make_report(
            by,
            first,
            days,
            rows,
            versions={name: len(found) for name, found in versions.items()},
            served=[each.decode(errors="replace") for each in names],
            questions=sorted(
                ((text, times) for text, times in asked.items() if times), key=lambda each: (-each[1], each[0])
            )[:MOST_SHOWN],
        )

    def _key(self, day: int, table: str) -> str:
        return self._link.key("usage", str(day), table)

    def _pieces(self, batch: Batch) -> Iterator[tuple[int, str, Sequence[tuple[str, int, str]]]]:
        """Day and table of each command, and field, times and moment of what it adds; always the same of a batch."""
        sums: dict[tuple[int, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        lasts: dict[tuple[int, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for count, found in batch.counts.items():
            for table, name, digest in _tables(count):
                sums[count.day, table][_field(count.action, name, digest, count.protocol)] += found.times
                if count.action not in SEARCHES:
                    field = _field(_LAST, name)
                    lasts[count.day, table][field] = max(lasts[count.day, table][field], found.last)
        if batch.questions:
            today = max((each.day for each in batch.counts), default=day_of(self._now()))
            sums[today, _QUESTIONS] = {_field(_ASKED, text): times for text, times in batch.questions.items()}
        for place, fields in sums.items():
            moments = ((field, 0, f"{moment:.3f}") for field, moment in lasts[place].items())
            for some in _portions([*((field, times, "") for field, times in fields.items()), *moments]):
                yield *place, some

    def _command(self, number: int, place: int, day: int, table: str, fields: Sequence[tuple[str, int, str]]) -> Any:
        until_ms = (KEPT_DAYS + 1) * DAY_S * 1000
        keys = self._link.key("usage", "version"), self._link.key("usage", "from", self._us), self._key(day, table)
        given = VERSION, place, number, _SENDER_MS, until_ms, _MOST[table], OTHER
        return "EVALSHA", _SHA, len(keys), *keys, *given, *(each for field in fields for each in field)

    def _use(self, work: Callable[[Redis], Awaitable[Any]]) -> Any:
        try:
            return self._link.call(_WHAT, work)
        except SharedError:
            raise NotStoredError from None  # the link has a line of it in the log


async def _executed(client: Redis, commands: Sequence[Any]) -> list[Any]:
    """The answers of commands with the script, in one pipeline, or in two where Redis does not know the script."""
    from redis.exceptions import NoScriptError

    answers = await _each(client, commands)
    if any(isinstance(each, NoScriptError) for each in answers):
        await client.script_load(_ADD)
        answers = await _each(client, commands)  # what was done is known by its number
    for each in answers:
        if isinstance(each, Exception):
            raise each
    return answers


async def _each(client: Redis, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The answers of commands in one pipeline; the error of one that is refused is its answer."""
    if not commands:
        return []
    pipe: Any = client.pipeline(transaction=False)
    for each in commands:
        pipe.execute_command(*each)
    return await pipe.execute(raise_on_error=False)


def _portions(of: Iterable[_T]) -> Iterator[list[_T]]:
    rest = iter(of)
    while portion := list(islice(rest, _AT_ONCE)):
        yield portion


def _tables(count: Count) -> Iterator[tuple[str, str, str]]:
    """The tables that a count is in, by what name, and with which digest."""
    yield "skill", count.skill, count.digest
    yield "principal", count.principal, ""
    yield "host", count.host, ""


def _field(action: str, name: str, digest: str = "", protocol: str = "") -> str:
    return json.dumps([action, name, digest, protocol], separators=(",", ":"))


def _read(field: bytes, value: bytes) -> tuple[str, str, str, float] | None:
    """Action, name, digest and amount of a field; None of one that no server wrote."""
    try:
        said = json.loads(field)
        amount = float(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, list):
        return None
    words = cast("list[object]", said)
    if len(words) != 4 or not all(isinstance(each, str) for each in words) or not 0 <= amount < 1e15:
        return None
    action, name, digest, _ = cast("list[str]", words)
    return (action, name, digest, amount) if action in _ACTIONS or action in (_ASKED, _LAST) else None
