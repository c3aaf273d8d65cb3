"""Small texts that every replica can read and write, each for a while: one write replaces what its writer has read.

No client's text is part of a key, but its hash. All of a group, which is what one owner has, are bounded in number: the
one that was unused the longest goes first, and another group's never.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from mcp_skills_server.shared.faults import ChangedMeanwhileError, FullError, SharedError
from mcp_skills_server.shared.link import Link

if TYPE_CHECKING:
    from redis.asyncio import Redis

MOST_BYTES: Final = 16 << 10
"""Of one record. A longer one is neither written nor read."""
WHOLE: Final = 65_536
"""Records at once, of all groups together."""

_READ: Final = """
local size = redis.call('STRLEN', KEYS[1])
if size == 0 or size > tonumber(ARGV[1]) then return size end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('PEXPIRE', KEYS[1], ARGV[2])
for each = 2, 3 do
  redis.pcall('ZADD', KEYS[each], 'XX', now, ARGV[3])
  redis.pcall('PEXPIRE', KEYS[each], ARGV[2])
end
return redis.call('GET', KEYS[1])
"""
# A full Redis refuses ZADD, and must not refuse to read.

_WRITE: Final = """
local text, replaces, ttl, member, place = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local there = redis.call('GET', KEYS[1])
if there and there ~= text and (replaces == '' or redis.sha1hex(there) ~= replaces) then return 'changed' end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if not there then
  redis.call('ZADD', KEYS[2], 'XX', now, member)
  for each = 2, 3 do redis.call('ZREMRANGEBYSCORE', KEYS[each], '-inf', now - ttl * 1000) end
  local over = redis.call('ZCARD', KEYS[2]) - tonumber(ARGV[6]) + 1
  if over < 1 and redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[7]) then
    over = 1
    if redis.call('ZCARD', KEYS[2]) == 0 then return 'full' end
  end
  for _ = 1, over do
    local oldest = redis.call('ZPOPMIN', KEYS[2])[1]
    if oldest then
      redis.call('ZREM', KEYS[3], oldest)
      redis.call('DEL', place .. oldest)
    end
  end
end
redis.call('SET', KEYS[1], text, 'PX', ttl)
for each = 2, 3 do
  if there then redis.call('ZADD', KEYS[each], 'XX', now, member)
  else redis.call('ZADD', KEYS[each], now, member) end
  redis.call('PEXPIRE', KEYS[each], ttl)
end
return 'written'
"""
# Whether it is full, Redis looks at the first command of a script that changes something, and at ZADD, but not at
# ZREMRANGEBYSCORE: so the first one is a ZADD that changes nothing.

_DELETE: Final = """
for each = 2, 3 do redis.call('ZREM', KEYS[each], ARGV[1]) end
return redis.call('DEL', KEYS[1])
"""


class Records:
    """Records of one kind.

    Args:
        link: the way to Redis.
        kind: what they are, as a part of their keys and in the log.
        ttl_s: seconds after which one that nobody used is gone.
        share: records of one group.
        whole: records at once.
    """

    def __init__(self, link: Link, kind: str, *, ttl_s: float, share: int, whole: int = WHOLE) -> None:
        self._link = link
        self._kind = kind
        self._ttl_ms = max(1, int(ttl_s * 1000))
        self._share = share
        self._whole = whole

    def _keys(self, name: str, group: str | None) -> tuple[str, list[str]]:
        member, owner = hashed(name), hashed(group or "")
        keys = [self._link.key(self._kind, each) for each in (member, f"of:{owner}", "all")]
        return member, keys

    async def read(self, name: str, group: str | None) -> str | None:
        """The text of a record, which was used by that; None where there is none that a replica can have written.

        Raises:
            SharedError: it cannot be read now.
        """
        member, keys = self._keys(name, group)

        async def read(client: Redis) -> Any:
            return await client.register_script(_READ)(keys, [MOST_BYTES, self._ttl_ms, member])

        found = await self._link.use(f"a reading of a {self._kind}", read)
        if not isinstance(found, bytes):
            return None
        try:
            return found.decode()
        except UnicodeDecodeError:
            return None

    async def write(self, name: str, group: str | None, text: str, *, replaces: str | None) -> None:
        """Write a record.

        Args:
            name: by which it is found.
            group: among whose records it counts; None has no share of its own.
            text: at most `MOST_BYTES` of UTF-8.
            replaces: the text that was read; None for a new record.

        Raises:
            ChangedMeanwhileError: another text stands there by now.
            FullError: there is no place, and the group has no record to give up.
            SharedError: it cannot be written now.
        """
        raw = text.encode()
        if len(raw) > MOST_BYTES:
            raise SharedError(f"this {self._kind} is too long to be shared between replicas; load fewer skills")
        member, keys = self._keys(name, group)
        before = "" if replaces is None else hashlib.sha1(replaces.encode(), usedforsecurity=False).hexdigest()
        share = self._whole if group is None else self._share
        given = [raw, before, self._ttl_ms, member, self._link.key(self._kind, ""), share, self._whole]

        async def write(client: Redis) -> Any:
            return await client.register_script(_WRITE)(keys, given)

        done = await self._link.use(f"a writing of a {self._kind}", write)
        if done == b"changed":
            raise ChangedMeanwhileError(f"the {self._kind} was changed through another replica meanwhile; call again")
        if done == b"full":
            raise FullError(f"too many {self._kind}s: all {self._whole:,} that are shared are taken; try again later")

    async def delete(self, name: str, group: str | None) -> None:
        """Delete a record, if it is there.

        Raises:
            SharedError: it cannot be deleted now.
        """
        member, keys = self._keys(name, group)

        async def delete(client: Redis) -> Any:
            return await client.register_script(_DELETE)(keys, [member])

        await self._link.use(f"an end of a {self._kind}", delete)


def hashed(text: str) -> str:
    """What stands for a client's text in a key."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]
