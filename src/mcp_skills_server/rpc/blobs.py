"""In-memory blob store with limits of number, bytes and idle time.

A blob's name is a random capability: any client that knows it may read the blob, because the
protocol has no sessions. Over quota, an owner loses its own oldest blobs, never those of others.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mcp_skills_server.errors import RequestError, quoted
from mcp_skills_server.runtime.quota import Owner, Quota, QuotaError

PREFIX: Final = "blob:"


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob: bytes, media type, and time of last use in seconds of the store's clock."""

    raw: bytes
    kind: str
    used: float


class BlobStore:
    """The blobs of a server; `share` is the byte limit per owner, None for a quarter."""

    def __init__(
        self,
        *,
        most: int = 1000,
        most_bytes: int = 64 << 20,
        idle_s: float = 3600,
        now: Callable[[], float] = time.monotonic,
        share: int | None = None,
    ) -> None:
        self._least = most_bytes // most
        self._quota = Quota[str]("blobs", most_bytes, share, name="blob-bytes")
        self._idle_s = idle_s
        self._now = now
        self._kept: OrderedDict[str, Blob] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def limit(self, owner: Owner) -> int:
        """Return the byte limit of one owner."""
        return self._quota.limit(owner)

    def add(self, raw: bytes, kind: str, owner: Owner = None) -> str:
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
        for gone in self._quota.claim(name, owner, max(len(raw), self._least)):
            del self._kept[gone]
        self._kept[name] = Blob(raw, kind, self._now())
        return name

    def get(self, name: str) -> Blob:
        """Return a blob and refresh its idle time.

        Raises:
            RequestError: the blob never existed, or was evicted.
        """
        self._drop_idle()
        found = self._kept.get(name)
        if found is None:
            raise RequestError(f"Unknown blob {quoted(name)}: it never existed, or has expired")
        fresh = self._kept[name] = Blob(found.raw, found.kind, self._now())
        self._kept.move_to_end(name)
        self._quota.renew(name)
        return fresh

    def _drop_idle(self) -> None:
        while self._kept and self._now() - next(iter(self._kept.values())).used > self._idle_s:
            name, _ = self._kept.popitem(last=False)
            self._quota.release(name)
