"""What the page of a skill says to its author: its trigger set, the hosts that show it, its neighbours."""

from __future__ import annotations

import json
import re
from pathlib import Path

from web.ui.serving import get, page_serving, words
from wire import write_skill

REFUNDS = "Issue refunds to customers. Use when money is to be paid back."


def test_an_author_sees_what_misses_and_who_shows_the_skill(tmp_path: Path) -> None:
    cases = [
        {"query": "pay the money back", "should_trigger": True},
        {"query": "minutes of a meeting", "should_trigger": True},
        {"query": "<b>refunds</b>", "should_trigger": False},
    ]
    write_skill(tmp_path / "refunds", description=REFUNDS, evals__any_json=json.dumps(cases), evals__odd_json="{}")
    write_skill(tmp_path / "minutes", description="Write minutes of meetings. Use when asked what was decided.")
    write_skill(tmp_path / "repayments", description=REFUNDS)
    write_skill(tmp_path / "alone", description="Paint a fence. Use when it is grey.\ndisable-model-invocation: true")
    with page_serving(tmp_path) as server:
        seen = words(get(server, "/ui/skills/refunds"))
        assert "Trigger set: 1 of 3 prompts pass" in seen
        assert "minutes comes first by the words minutes, meeting" in seen
        assert "odd.json: holds no trigger set" in seen
        assert re.search(r"claude-code.* : with its whole description|claude-code[^:]*: with its description", seen)
        assert "codex : not at all; skills_search finds it" in seen
        assert re.search(r"repayments \d+%", seen)
        assert b"<b>refunds</b>" not in get(server, "/ui/skills/refunds").body
        assert "No trigger set: put prompts into evals/trigger_queries.json" in words(get(server, "/ui/skills/minutes"))
        assert "For its author" not in words(get(server, "/ui/skills/alone"))
