"""In-memory blob store with limits of number, bytes and idle time.

A blob's name is a random capability: any client that knows it may read the blob, because the
protocol has no sessions. Over quota, an owner loses its own oldest blobs, never those of others.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from mcp_skills_server.access.quota import Owner, Quota, QuotaError
from mcp_skills_server.errors import RequestError
from mcp_skills_server.model import printable

PREFIX: Final = "blob:"


class BlobStore:
    """The blobs of a server."""

    def __init__(
        self,
        *,
        most: int = 1000,
        most_bytes: int = 64 << 20,
        idle_s: float = 3600,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._min_charge = max(1, most_bytes // most)
        self._quota = Quota[str]("blobs", most_bytes, name="blob-bytes")
        self._idle_s = idle_s
        self._now = now
        self._kept: OrderedDict[str, tuple[bytes, float]] = OrderedDict()
        """The bytes and the time of last use of each blob, least recently used first."""

    def __len__(self) -> int:
        return len(self._kept)

    def limit(self, owner: Owner | None) -> int:
        """Return the byte limit of one owner."""
        return self._quota.limit(owner)

    def add(self, raw: bytes, owner: Owner | None = None) -> str:
        """Store a blob and return its name.

        Raises:
            QuotaError: it exceeds the owner's share or the free space.
        """
        self._drop_idle()
        limit = self.limit(owner)
        if len(raw) > limit:
            message = f"the content has {len(raw):,} bytes; at most {limit:,} are stored"
            raise QuotaError(message, "blob-bytes")
        name = f"{PREFIX}{secrets.token_hex(16)}"
        # Charge a minimum size for small blobs, which bounds their number too.
        for evicted in self._quota.claim(name, owner, max(len(raw), self._min_charge)):
            del self._kept[evicted]
        self._kept[name] = raw, self._now()
        return name

    def get(self, name: str) -> bytes:
        """Return the bytes of a blob and refresh its idle time.

        Raises:
            RequestError: the blob never existed, or was evicted.
        """
        self._drop_idle()
        if name not in self._kept:
            shown = printable(name[:100])
            raise RequestError(f"Unknown blob {shown!r}: it never existed, or has expired")
        raw, _ = self._kept.pop(name)
        self._kept[name] = raw, self._now()
        self._quota.renew(name)
        return raw

    def _drop_idle(self) -> None:
        while self._kept and self._now() - next(iter(self._kept.values()))[1] > self._idle_s:
            name, _ = self._kept.popitem(last=False)
            self._quota.release(name)
