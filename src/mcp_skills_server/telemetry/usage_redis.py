"""Counts of uses in Redis, to which all replicas add. They add up: a batch that is sent twice counts once.

A hash for each day has what was done by skill, one by principal, one by host program, and one has the questions. Their
fields are JSON; a reader passes over what no server wrote. Each hash has an end and a bound of its fields, beyond
which what is new counts under the name `_OTHER`.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mcp_skills_server.errors import REPEATS
from mcp_skills_server.shared.faults import SharedError
from mcp_skills_server.shared.link import Link
from mcp_skills_server.telemetry.usage_redis_report import (
    ASKED,
    LAST,
    MOST,
    MOST_SERVED,
    QUESTIONS,
    VERSION,
    WHAT,
    each_of,
    field_of,
    key_of,
    portions,
    read_report,
    served_key,
)
from mcp_skills_server.telemetry.usage_store import (
    DAY_S,
    KEPT_DAYS,
    OTHER,
    SEARCHES,
    Batch,
    By,
    Count,
    NotStoredError,
    Report,
    day_of,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_AT_ONCE: Final = 1000
"""Fields of one command; Redis answers nobody else for about 2 ms."""
_COMMANDS: Final = 8
"""Commands of one pipeline, which are answered long before the link gives up."""
_SENDER_MS: Final = 3_600_000
"""For so long Redis knows which batch of a process it has had."""
_ANNOUNCE_S: Final = 600.0
_SERVED_S: Final = 3 * _ANNOUNCE_S
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
        """Add to the counts: in one pipeline, or where there are thousands in several."""
        now = self._now()
        if now - self._announced >= _ANNOUNCE_S or now < self._announced:
            self.serve(self._served)
        pieces = [*self._pieces(batch)]
        commands = [self._command(batch.number, place, *piece) for place, piece in enumerate(pieces)]
        answers: list[Any] = []
        for some in portions(commands, _COMMANDS):
            answers += self._use(partial(_executed, commands=some))
        for (day, table, _), full in zip(pieces, answers, strict=True):
            if full and (day, table) not in self._full:
                self._full = {(day, table), *(each for each in self._full if each[0] >= day)}
                logger.warning(
                    "%s: more than %s counts by %s today; what is new counts as %s",
                    self.name,
                    f"{MOST[table]:,}",
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
            came = sorted(self._served)[:MOST_SERVED]
        key = served_key(self._link)

        async def note(client: Redis) -> None:
            untyped: Any = client
            seconds, _ = await untyped.time()
            pipe = untyped.pipeline(transaction=False)
            for some in portions(gone, _AT_ONCE):
                pipe.zrem(key, *some)
            for some in portions(came, _AT_ONCE):
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
        return read_report(self._link, by, day_of(self._now()) - days + 1, days)

    def _pieces(self, batch: Batch) -> Iterator[tuple[int, str, Sequence[tuple[str, int, str]]]]:
        """Day and table of each command, and field, times and moment of what it adds; always the same of a batch."""
        sums: dict[tuple[int, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        lasts: dict[tuple[int, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for count, found in batch.counts.items():
            for table, name, digest in _tables(count):
                sums[count.day, table][field_of(count.action, name, digest, count.protocol)] += found.times
                if count.action not in SEARCHES:
                    field = field_of(LAST, name)
                    lasts[count.day, table][field] = max(lasts[count.day, table][field], found.last)
        if batch.questions:
            today = max((each.day for each in batch.counts), default=day_of(self._now()))
            sums[today, QUESTIONS] = {field_of(ASKED, text): times for text, times in batch.questions.items()}
        for place, fields in sums.items():
            moments = ((field, 0, f"{moment:.3f}") for field, moment in lasts[place].items())
            for some in portions([*((field, times, "") for field, times in fields.items()), *moments], _AT_ONCE):
                yield *place, some

    def _command(self, number: int, place: int, day: int, table: str, fields: Sequence[tuple[str, int, str]]) -> Any:
        until_ms = (KEPT_DAYS + 1) * DAY_S * 1000
        keys = (
            self._link.key("usage", "version"),
            self._link.key("usage", "from", self._us),
            key_of(self._link, day, table),
        )
        given = VERSION, place, number, _SENDER_MS, until_ms, MOST[table], OTHER
        return "EVALSHA", _SHA, len(keys), *keys, *given, *(each for field in fields for each in field)

    def _use(self, work: Callable[[Redis], Awaitable[Any]]) -> Any:
        try:
            return self._link.call(WHAT, work)
        except SharedError:
            raise NotStoredError from None  # the link has a line of it in the log


async def _executed(client: Redis, commands: Sequence[Any]) -> list[Any]:
    """The answers of commands with the script, in one pipeline, or in two where Redis does not know the script."""
    from redis.exceptions import NoScriptError

    answers = await each_of(client, commands)
    if any(isinstance(each, NoScriptError) for each in answers):
        await client.script_load(_ADD)
        answers = await each_of(client, commands)  # what was done is known by its number
    for each in answers:
        if isinstance(each, Exception):
            raise each
    return answers


def _tables(count: Count) -> Iterator[tuple[str, str, str]]:
    """The tables that a count is in, by what name, and with which digest."""
    yield "skill", count.skill, count.digest
    yield "principal", count.principal, ""
    yield "host", count.host, ""
