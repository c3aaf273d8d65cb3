"""Quotas: the limits of each principal from the tables of the configuration."""

from __future__ import annotations

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.access.quota import LimitedOwner, Quotas, QuotaTable, limit_of
from tables import each_row

FIRST = QuotaTable(("group:ci", "token:bot"), {"streams": 3, "runs": 5})
SECOND = QuotaTable(("user:ann", "token:bot"), {"streams": 4})
DEFAULT = QuotaTable((), {"streams": 1, "sessions": 2, "failed-authentications-per-minute": 7})
STAR = QuotaTable(("*",), {"sessions": 9})
BOT, ANN = Principal("token", "bot"), Principal("user", "ann", "https://issuer.example")
BUILDER = Principal("user", "builder", "https://issuer.example", frozenset({"ci", "dev"}))


@each_row(("principal", "tables", "streams", "sessions", "runs"), [
    (None, [], None, None, None), (BOT, [], None, None, None),
    (None, [FIRST, DEFAULT], 1, 2, None), (BOT, [FIRST, SECOND, DEFAULT], 3, 2, 5),
    (BOT, [SECOND, FIRST, DEFAULT], 4, 2, None), (ANN, [FIRST, SECOND, DEFAULT], 4, 2, None),
    (BUILDER, [DEFAULT, FIRST, SECOND], 3, 2, 5), (BUILDER, [FIRST], 3, None, 5),
    (BUILDER, [STAR, FIRST, DEFAULT], 1, 9, None), (None, [FIRST, STAR], None, 9, None),
    (Principal("user", "bot"), [FIRST], None, None, None), (Principal("token", "ci"), [FIRST], None, None, None),
])  # fmt: skip
def test_first_matching_table_overrides_the_default(
    principal: Principal | None, tables: list[QuotaTable], **limits: int | None
) -> None:
    client = Quotas(tables).requester(principal, "192.0.2.1")
    assert {key: limit_of(client.owner, key) for key in limits} == limits
    failures = 7 if DEFAULT in tables else 60
    assert limit_of(client.owner, "failed-authentications-per-minute") == failures


def test_owner_is_counted_by_its_key_whatever_its_limits() -> None:
    quotas = Quotas([FIRST])
    before = quotas.requester(BOT, "192.0.2.1").owner
    quotas.replace([])
    after = quotas.requester(BOT, "192.0.2.2").owner
    assert isinstance(before, LimitedOwner) and isinstance(after, LimitedOwner)
    assert {before: "counted"}[after] == {"token:bot": "counted"}[after] == "counted"
    assert (limit_of(before, "streams"), limit_of(after, "streams")) == (3, None)
    assert f"{after} {after!r}" == "token:bot 'token:bot'"
    assert quotas.requester(None, None).owner is None
    assert quotas.requester(None, "2001:db8::1").owner == "address 2001:db8::/64"
