"""A token bucket that all replicas draw from: so much at once, and so much a second in the long run.

The clock is that of Redis, so replicas need not agree on the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mcp_skills_server.shared.link import Link
from mcp_skills_server.shared.records import hashed

if TYPE_CHECKING:
    from redis.asyncio import Redis

_TAKE: Final = """
local most, rate, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local kept = redis.call('HMGET', KEYS[1], 'left', 'at')
local left, at = tonumber(kept[1] or ''), tonumber(kept[2] or '')
if not left or not at or at > now then left, at = most, now end
left = math.min(most, left + (now - at) * rate)
local wait = 0
if left >= wanted then left = left - wanted else wait = (wanted - left) / rate end
redis.call('HSET', KEYS[1], 'left', string.format('%.6f', left), 'at', string.format('%.6f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil((most - left) / rate * 1000) + 1000)
return string.format('%.6f', wait)
"""


class SharedBucket:
    """Token buckets of one kind, one for each name. A bucket that is full again takes no memory.

    Args:
        link: the way to Redis.
        kind: what is counted, as a part of the keys and in the log, such as "requests".
        most: how much can be taken at once.
        per_second: how much comes back in a second.
    """

    def __init__(self, link: Link, kind: str, *, most: float, per_second: float) -> None:
        if most <= 0 or per_second <= 0:
            raise ValueError("a bucket needs a size and a rate above 0")
        self._link = link
        self._kind = kind
        self._given = [repr(float(most)), repr(float(per_second))]

    async def take(self, name: str, amount: float = 1) -> float:
        """Take so much of the bucket of this name, or nothing.

        Args:
            name: whose bucket; any text.
            amount: how much, at most what the bucket holds.

        Returns:
            0 where it was taken, else the seconds after which there will be enough if nobody else takes any.

        Raises:
            SharedError: nobody can count now.
        """
        key = self._link.key("bucket", self._kind, hashed(name))

        async def take(client: Redis) -> Any:
            return await client.register_script(_TAKE)([key], [*self._given, repr(float(amount))])

        return float(await self._link.use(f"a count of {self._kind}", take))
