"""Requests beyond the rate of who makes them are answered 429, and all others are handed on."""

from __future__ import annotations

from typing import Any

import anyio

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.access.quotas import QuotaSettings, Rates
from mcp_skills_server.server.callers import PRINCIPAL
from mcp_skills_server.web.rates import MORE, FailedAuthentications, RequestLimits

ANN, BOB = Principal("token", "ann"), Principal("token", "bob")


def scope(principal: Principal | None = None, address: str = "192.0.2.1", path: str = "/mcp") -> dict[str, Any]:
    found = {"type": "http", "method": "POST", "path": path, "headers": [], "client": (address, 1)}
    return found if principal is None else {**found, PRINCIPAL: principal}


def statuses(rates: Rates, *asked: dict[str, Any], calls: int = 1) -> list[int]:
    """How each of these is answered; each has so many calls."""
    out: list[int] = []

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        if MORE not in scope or not await scope[MORE](calls - 1):
            await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            out.append(message["status"])

    async def main() -> None:
        rate = RequestLimits(app, rates)
        for each in asked:
            await rate(each, send, send)

    anyio.run(main)
    return out


def test_beyond_the_rate_of_a_principal_is_429_and_another_one_goes_on() -> None:
    rates = Rates(QuotaSettings(requests_per_minute=2))
    asked = [scope(ANN), scope(ANN), scope(ANN), scope(BOB), scope(ANN, path="/readyz")]
    assert statuses(rates, *asked) == [200, 200, 429, 200, 200]


def test_the_calls_of_a_batch_are_as_many_requests() -> None:
    assert statuses(Rates(QuotaSettings(requests_per_minute=3)), scope(ANN), scope(ANN), calls=2) == [200, 429]


def test_failed_authentications_of_an_address_are_one_count_and_not_of_its_requests() -> None:
    rates = Rates(QuotaSettings(requests_per_minute=1, failed_authentications_per_minute=2))
    one, other = scope(), scope(address="192.0.2.2")
    doors = FailedAuthentications(rates), FailedAuthentications(rates)
    assert [door.count(one) for door in doors] == [0, 0]
    assert doors[0].count(one) > 0 and doors[1].count(other) == 0
    assert statuses(rates, one) == [200]
    rates.replace(QuotaSettings(failed_authentications_per_minute=None))
    assert doors[0].count(one) == 0
