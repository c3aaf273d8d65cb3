"""The bounds of a catalog."""

from __future__ import annotations

from typing import Any

from mcp_skills_server.dialects.aicatalog import CatalogSkill, catalog
from tables import each_row

from .build import digest, skill


@each_row(("asked", "shown"), [(0, None), (1, None), (2, 2), (5, 5), (6, 5)])
def test_a_catalog_has_an_index_and_500_skills_with_as_many_queries_as_the_schema_takes(
    asked: int, shown: int | None
) -> None:
    one = CatalogSkill(skill("a", version="1.0"), "/a.zip", digest("a"), "application/zip", ["How?"] * asked)
    made: Any = catalog("https://me@example.com:8000", "/index.json", [one] * 501, has_card=False)
    assert made["host"] == {"displayName": "example.com-8000"} and len(made["entries"]) == 501
    assert made["entries"][0]["url"] == "https://me@example.com:8000/index.json"
    last = made["entries"][-1]
    assert (last["type"], last["displayName"], last["version"]) == ("application/agent-skills+zip", "a", "1.0")
    assert last.get("representativeQueries") == (shown and ["How?"] * shown)
