"""How much one principal, or one address where nobody has to prove anything, may take of what all share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """What the operator leaves to one owner; None where what all share is divided as by default.

    Attributes:
        requests_per_minute: requests over HTTP, of any protocol.
        failed_authentications_per_minute: requests of one address that prove nobody.
        sessions: sessions of legacy clients.
        streams: `subscriptions/listen` streams.
        unread_bytes: bytes of answers that wait to be read.
        runtime_sessions: sessions of the tools.
        blob_bytes: bytes of blobs of the Skills Protocol.
        runs: scripts at once.
    """

    requests_per_minute: int | None = None
    failed_authentications_per_minute: int | None = 60
    sessions: int | None = None
    streams: int | None = None
    unread_bytes: int | None = None
    runtime_sessions: int | None = None
    blob_bytes: int | None = None
    runs: int | None = None
