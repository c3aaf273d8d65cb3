"""Blobs: large data by name, in memory, bounded in number, bytes and age.

A name is random and a capability: a client that knows it may read the blob, for the protocol has no
sessions. An owner over its quota loses its own oldest blob, never one of another owner.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mcp_skills_server.errors import RequestError
from mcp_skills_server.model import printable
from mcp_skills_server.runtime.quota import Owner, Quota, QuotaError

PREFIX: Final = "blob:"


@dataclass(frozen=True, slots=True)
class Blob:
    """Data that a client, or a run, left here: bytes, media type, and its last use in seconds of
    the store's clock."""

    raw: bytes
    kind: str
    used: float


class Blobs:
    """The blobs of one server. One owner has at most `share` bytes, None for a quarter; an idle
    blob goes."""

    def __init__(
        self,
        *,
        most: int = 1000,
        most_bytes: int = 64 << 20,
        idle_s: float = 3600,
        now: Callable[[], float] = time.monotonic,
        share: int | None = None,
    ) -> None:
        self._least = max(1, most_bytes // most)
        self._quota = Quota[str]("blobs", most_bytes, share, name="blob-bytes")
        self._idle_s = idle_s
        self._now = now
        self._kept: OrderedDict[str, Blob] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def limit(self, owner: Owner) -> int:
        """Bytes that one owner may leave here."""
        return self._quota.limit(owner)

    def add(self, raw: bytes, kind: str, owner: Owner = None) -> str:
        """Keep these bytes and return the blob's name; QuotaError for more than the owner's share
        or the free space."""
        self._drop_idle()
        limit = self.limit(owner)
        if len(raw) > limit:
            raise QuotaError(
                f"the content has {len(raw):,} bytes, and at most {limit:,} are kept", "blob-bytes"
            )
        name = f"{PREFIX}{secrets.token_hex(16)}"
        # A small one counts for as much as one of the average size, so that their number is bounded
        # too.
        for gone in self._quota.claim(name, owner, max(len(raw), self._least)):
            del self._kept[gone]
        self._kept[name] = Blob(raw, kind, self._now())
        return name

    def get(self, name: str) -> Blob:
        """Return the blob of this name; RequestError if there is none, or no longer."""
        self._drop_idle()
        found = self._kept.get(name)
        if found is None:
            raise RequestError(
                f"Unknown blob {printable(name[:100])!r}: it was never here, or its time is over"
            )
        fresh = self._kept[name] = Blob(found.raw, found.kind, self._now())
        self._kept.move_to_end(name)
        self._quota.renew(name)
        return fresh

    def _drop_idle(self) -> None:
        while self._kept and self._now() - next(iter(self._kept.values())).used > self._idle_s:
            name, _ = self._kept.popitem(last=False)
            self._quota.release(name)
