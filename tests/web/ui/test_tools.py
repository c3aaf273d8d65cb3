"""The view that calls a tool as a host would."""

from __future__ import annotations

import json
from pathlib import Path

from web.ui.serving import get, page_serving, words
from wire import FIXTURES, write_skill


def test_each_tool_is_called_and_its_answer_is_what_a_model_gets() -> None:
    with page_serving(FIXTURES) as server:
        assert "query (required)" in words(get(server, "/ui/tools"))
        found = words(get(server, "/ui/tools?tool=skills_search&arg.query=refund&arg.limit=1&call=1"))
        assert (
            "- refunds: Handles a refund request" in found and "bytes of text" in found and "- invoices:" not in found
        )
        loaded = words(get(server, "/ui/tools?tool=skills_load&arg.names=refunds,+invoices&call=1"))
        assert '"names": ["refunds", "invoices"]' in loaded and "Book it" in loaded
        path = "references/approval-limits.md"
        read = words(get(server, f"/ui/tools?tool=skills_read&arg.skill=refunds&arg.path={path}&call=1"))
        assert "# Approval limits" in read
        wrong = words(get(server, "/ui/tools?tool=skills_load&arg.names=no-such&call=1"))
        assert "tool error" in wrong and "Nothing was loaded" in wrong


def test_a_tool_that_does_something_is_not_called(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", scripts__run_sh="#!/bin/sh\n")
    with page_serving(tmp_path) as server:
        page = words(get(server, "/ui/tools?tool=skills_run_script&arg.path=scripts/run.sh&call=1"))
        assert "query (required)" in page and "Result" not in page
    with page_serving(tmp_path, "--no-tools") as server:
        assert "offers no tools" in words(get(server, "/ui/tools?tool=skills_list&call=1"))


def test_a_host_is_answered_in_its_own_length(tmp_path: Path) -> None:
    write_skill(tmp_path / "long", body="word " * 9_000)
    with page_serving(tmp_path) as server:
        for host in ("generic", "opencode"):
            page = get(server, f"/ui/tools?tool=skills_load&arg.names=long&host={host}&call=1").body.decode()
            assert f"<option selected>{host}</option>" in page


def test_nothing_of_an_argument_becomes_markup(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    given = json.dumps("<script>hit()</script>")
    with page_serving(tmp_path) as server:
        for tool in ("skills_search&arg.query", "skills_load&arg.names", "skills_list&arg.limit"):
            reply = server.send("GET", f"/ui/tools?tool={tool}={given.replace(' ', '+')}&call=1")
            assert reply.status == 200 and b"<script>hit" not in reply.body
