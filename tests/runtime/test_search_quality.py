"""Recall of the search on labelled queries, which were written before the search was tuned."""

from __future__ import annotations

from statistics import mean

import pytest

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model import Snapshot
from mcp_skills_server.runtime.search import Search
from runtime.catalogue import generated_skills, labelled_queries
from wire import FIXTURES


@pytest.mark.parametrize("catalogue", ["fixtures", "generated"])
def test_recall_at_five_of_labelled_queries_exceeds_91_percent(catalogue: str) -> None:
    registry = Registry([FIXTURES] if catalogue == "fixtures" else [])
    if catalogue == "fixtures":
        registry.load()
    else:
        registry.snapshot = Snapshot(generated_skills(6_000))
    search = Search(registry)
    recall: list[float] = []
    missed: list[str] = []
    for each in labelled_queries():
        if each["catalogue"] == catalogue:
            found = {skill.path for skill in search.find(each["query"], 5, lambda _: True)}
            recall.append(len(found & {*each["expect"]}) / len(each["expect"]))
            if recall[-1] < 1:
                missed.append(each["query"])
    assert mean(recall) > 0.91, missed
