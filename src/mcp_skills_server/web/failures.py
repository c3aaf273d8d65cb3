"""Requests that prove nobody: one count of each address, whichever door they come to."""

from __future__ import annotations

from typing import Final

from starlette.types import Receive, Scope, Send

from mcp_skills_server.access.quotas import Rates
from mcp_skills_server.access.rates import Rate
from mcp_skills_server.server.callers import counted
from mcp_skills_server.web.over_quota import refuse_in_time

_QUOTA: Final = "failed-authentications-per-minute"


class FailedAuthentications:
    """The quota of failed authentications. It keeps nobody out who proves to be somebody.

    Args:
        rates: how often one address may fail; None where that is not counted.
    """

    def __init__(self, rates: Rates | None = None) -> None:
        self._rates = rates

    @property
    def _rate(self) -> Rate | None:
        return None if self._rates is None else self._rates.failed_authentications

    def count(self, scope: Scope) -> float:
        """Count that a request failed. Returns the seconds to wait; 0 where it was within the quota."""
        rate = self._rate
        return 0.0 if rate is None else rate.take(counted(scope))

    async def is_over(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Count that a request failed, and answer 429 where that is over the quota. Whether it was."""
        rates, rate, wait = self._rates, self._rate, self.count(scope)
        if rates is not None and rate is not None and wait > 0:
            await refuse_in_time(scope, receive, send, rates, quota=_QUOTA, most=rate.per_minute, wait=wait)
        return wait > 0
