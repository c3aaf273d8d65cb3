"""Shared records with compare-and-set and expiry, and token buckets, in Redis.

Keys contain hashes of clients' texts, never the texts. Each owner's records form a group of bounded
size: the least recently used one of the same group is evicted. All times are by the clock of Redis,
so replicas need no synchronized clocks.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Final

from mcp_skills_server.shared.link import ChangedMeanwhileError, FullError, Link, SharedError

MAX_BYTES: Final = 16 << 10
"""Maximum size of a record. A longer one is neither written nor read."""
WHOLE: Final = 65_536
"""Maximum number of records in all groups together."""

# KEYS of these scripts: the record, and two sorted sets, of the records of its group and of all by
# time of use. `member` stands for the record in both.
_READ: Final = """
local size = redis.call('STRLEN', KEYS[1])
if size == 0 or size > tonumber(ARGV[1]) then return size end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('PEXPIRE', KEYS[1], ARGV[2])
for set = 2, 3 do
  redis.pcall('ZADD', KEYS[set], 'XX', now, ARGV[3])
  redis.pcall('PEXPIRE', KEYS[set], ARGV[2])
end
return redis.call('GET', KEYS[1])
"""
# `pcall`: Redis at `maxmemory` rejects ZADD, and the read must succeed nevertheless.

_WRITE: Final = """
local text, replaces, ttl, member, prefix = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local group_most, most = tonumber(ARGV[6]), tonumber(ARGV[7])
local known = redis.call('GET', KEYS[1])
if known and known ~= text and (replaces == '' or redis.sha1hex(known) ~= replaces) then
  return 'changed'
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if not known then
  redis.call('ZADD', KEYS[2], 'XX', now, member)
  for set = 2, 3 do redis.call('ZREMRANGEBYSCORE', KEYS[set], '-inf', now - ttl * 1000) end
  local over = redis.call('ZCARD', KEYS[2]) - group_most + 1
  if over < 1 and redis.call('ZCARD', KEYS[3]) >= most then
    over = 1
    if redis.call('ZCARD', KEYS[2]) == 0 then return 'full' end
  end
  for _ = 1, over do
    local oldest = redis.call('ZPOPMIN', KEYS[2])[1]
    if oldest then
      redis.call('ZREM', KEYS[3], oldest)
      redis.call('DEL', prefix .. oldest)
    end
  end
end
redis.call('SET', KEYS[1], text, 'PX', ttl)
for set = 2, 3 do
  if known then redis.call('ZADD', KEYS[set], 'XX', now, member)
  else redis.call('ZADD', KEYS[set], now, member) end
  redis.call('PEXPIRE', KEYS[set], ttl)
end
return 'written'
"""
# Redis checks `maxmemory` at the first write command of a script and at ZADD, but not at
# ZREMRANGEBYSCORE: so a no-op ZADD comes first.

_DELETE: Final = """
for set = 2, 3 do redis.call('ZREM', KEYS[set], ARGV[1]) end
return redis.call('DEL', KEYS[1])
"""


_TAKE: Final = """
local most, rate, count = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local kept = redis.call('HMGET', KEYS[1], 'left', 'at')
local left, at = tonumber(kept[1] or ''), tonumber(kept[2] or '')
if not left or not at or at > now then left, at = most, now end
left = math.min(most, left + (now - at) * rate)
local wait = 0
if left >= count then left = left - count else wait = (count - left) / rate end
redis.call('HSET', KEYS[1], 'left', string.format('%.6f', left), 'at', string.format('%.6f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil((most - left) / rate * 1000) + 1000)
return string.format('%.6f', wait)
"""


class Records:
    """Records of one kind. Methods raise SharedError while Redis is unavailable.

    An unused record expires after `ttl_s` seconds. All groups together have at most `WHOLE`.
    """

    def __init__(self, link: Link, kind: str, *, ttl_s: float) -> None:
        self._link = link
        self._kind = kind
        self._ttl_ms = max(1, int(ttl_s * 1000))

    def _keys(self, name: str, group: str | None) -> tuple[str, list[str]]:
        member, owner = hashed(name), hashed(group or "")
        keys = [self._link.key(self._kind, scope) for scope in (member, f"of:{owner}", "all")]
        return member, keys

    async def read(self, name: str, group: str | None) -> str | None:
        """Return the text of a record and renew its expiry; None if missing or malformed."""
        member, keys = self._keys(name, group)
        given = [MAX_BYTES, self._ttl_ms, member]
        record = await self._link.run(f"reading a {self._kind}", _READ, keys, given)
        with suppress(UnicodeDecodeError):
            return record.decode() if isinstance(record, bytes) else None
        return None

    async def write(
        self, name: str, group: str | None, text: str, *, replaces: str | None, share: int = WHOLE
    ) -> None:
        """Write a record.

        Args:
            group: the group whose limit applies; None for that of records without one.
            text: at most `MAX_BYTES` of UTF-8.
            replaces: the text that was read (compare-and-set); None for a new record. A record
                that was lost since is created again.
            share: the most records of the group.

        Raises:
            ChangedMeanwhileError: the record has another text by now.
            FullError: the limit of all is reached, and the group has no record to evict.
            SharedError: Redis is unavailable.
        """
        raw = text.encode()
        if len(raw) > MAX_BYTES:
            text = "is too long to be shared between replicas; load fewer skills"
            raise SharedError(f"this {self._kind} {text}")
        member, keys = self._keys(name, group)
        before = ""
        if replaces is not None:
            before = hashlib.sha1(replaces.encode(), usedforsecurity=False).hexdigest()
        key = self._link.key(self._kind, "")
        given = [raw, before, self._ttl_ms, member, key, share, WHOLE]
        done = await self._link.run(f"writing a {self._kind}", _WRITE, keys, given)
        if done == b"changed":
            text = "was changed through another replica meanwhile; call again"
            raise ChangedMeanwhileError(f"the {self._kind} {text}")
        if done == b"full":
            text = f"all {WHOLE:,} shared ones are in use; try again later"
            raise FullError(f"too many {self._kind}s: {text}")

    async def delete(self, name: str, group: str | None) -> None:
        """Delete a record if it exists."""
        member, keys = self._keys(name, group)
        await self._link.run(f"deleting a {self._kind}", _DELETE, keys, [member])


class SharedBucket:
    """Token buckets of one kind such as "requests", one for each name, with one size and rate.

    A full bucket takes no memory. `take` raises SharedError while Redis is unavailable.
    """

    def __init__(self, link: Link, kind: str, *, most: float, per_second: float) -> None:
        self._link = link
        self._kind = kind
        self._given = [repr(float(most)), repr(float(per_second))]

    async def take(self, name: str, count: int = 1) -> float:
        """Take tokens from a bucket and return 0; otherwise return the seconds to wait."""
        key = self._link.key("bucket", self._kind, hashed(name))
        given = [*self._given, count]
        return float(await self._link.run(f"counting {self._kind}", _TAKE, [key], given))


def hashed(text: str) -> str:
    """Return the hash that replaces a client's text in a key."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]
