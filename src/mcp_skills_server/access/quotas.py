"""Quotas of one principal, or of one address where no proof is required."""

from __future__ import annotations

from typing import Final, NamedTuple

from mcp_skills_server.access.rates import Rate

_REFUSALS_PER_MINUTE: Final = 60


class QuotaSettings(NamedTuple):
    """What the operator leaves to one owner; None where what all share is divided as by default.

    Attributes:
        requests_per_minute: requests over HTTP, of any protocol.
        failed_authentications_per_minute: failed authentications of one address.
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

    @property
    def lasting(self) -> QuotaSettings:
        """What of it holds until the server ends: all but the rates, which `Rates` takes at any time."""
        return self._replace(requests_per_minute=None, failed_authentications_per_minute=None)


class Rates:
    """The rates that are in force. They may be replaced from any thread.

    Attributes:
        requests: None where they are not counted.
        failed_authentications: likewise.
        refusals: how often who is over one of them is answered at once.
    """

    def __init__(self, settings: QuotaSettings) -> None:
        self.refusals: Final = Rate(_REFUSALS_PER_MINUTE)
        self.requests: Rate | None = None
        self.failed_authentications: Rate | None = None
        self.replace(settings)

    def replace(self, settings: QuotaSettings) -> None:
        """Take these from now on. One that changes counts anew."""
        self.requests = _rate(self.requests, settings.requests_per_minute)
        self.failed_authentications = _rate(self.failed_authentications, settings.failed_authentications_per_minute)


def _rate(before: Rate | None, per_minute: int | None) -> Rate | None:
    if per_minute is None:
        return None
    return before if before is not None and before.per_minute == per_minute else Rate(per_minute)
