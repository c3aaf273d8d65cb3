"""Limits of the AI Catalog."""

from __future__ import annotations

from typing import Any

from mcp_skills_server.dialects.aicatalog import CatalogSkill, catalog
from tables import each_row

from .build import digest, skill


@each_row(("given", "shown"), [(0, None), (1, None), (2, 2), (5, 5), (6, 5)])
def test_catalog_lists_the_index_and_500_skills_with_2_to_5_queries(given: int, shown: int | None) -> None:
    published = CatalogSkill(skill("a", version="1.0"), "/a.zip", digest("a"), "application/zip", ["How?"] * given)
    document: Any = catalog("https://me@example.com:8000", "/index.json", [published] * 501, has_card=False)
    assert document["host"] == {"displayName": "example.com-8000"}
    assert len(document["entries"]) == 501
    assert document["entries"][0]["url"] == "https://me@example.com:8000/index.json"
    last = document["entries"][-1]
    assert (last["type"], last["displayName"], last["version"]) == ("application/agent-skills+zip", "a", "1.0")
    assert last.get("representativeQueries") == (shown and ["How?"] * shown)
