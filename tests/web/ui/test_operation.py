"""The views of runs, clients, usage, sources and tools."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from catalog.forest import skill_md, skills, write_files
from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.registry import MirroredRoot, Registry
from mcp_skills_server.sources.mirrors import SourceState
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.events import Event, Use
from mcp_skills_server.telemetry.usage import By, Report, UsageRow, UsageStore
from mcp_skills_server.web.ui.activity import Activity
from mcp_skills_server.web.ui.pages import catalogue, operation
from mcp_skills_server.web.ui.pages.problems import survey_of
from mcp_skills_server.web.ui.usage import UsageReports
from web.http_wire import Server, Target, bearer_header, client, token_file, wait_until
from web.in_process import app_serving
from web.test_grants import ANN, BOB, configure
from web.ui.serving import get, grant, make_context, render_view, skill_paths, text_of, visible_text
from wire import FIXTURES, write_skill


def event(time: float = 1.0, outcome: Any = "ok", protocol: str = "mcp", **fields: Any) -> Event:
    return Event(time=time, protocol=protocol, method="tools/call", outcome=outcome, **fields)


def test_clients_are_grouped_and_bounded_latest_first() -> None:
    activity = Activity()
    for principal in (None, "token:ann"):
        for host in (None, "editor"):
            activity.take(event(principal=principal, host=host))
    activity.take(event(2.0, "refused", principal="token:ann", host="editor"))
    activity.take(event(protocol=events.CATALOGUE, outcome="changed"))
    assert len(activity.clients()) == 4
    last = activity.clients()[0]
    assert (last.event.principal, last.requests, last.refused) == ("token:ann", 2, 1)
    assert (last.first, last.event.time) == (1.0, 2.0)
    for number in range(509):
        activity.take(event(number, "begun", uses=(Use("run", "", "", ""),)))
        activity.take(event(number, address=f"10.0.{number % 256}.{number // 256}"))
    for rows in (activity.runs(), activity.clients()):
        assert [row.event.time for row in rows] == [*range(508, 8, -1)]


def test_run_is_running_until_its_request_ends_and_hides_withheld_skill(tmp_path: Path) -> None:
    bob = Principal("token", "bob")
    grants = Grants([Grant((bob.id,), (Pattern("tea"),))], local=False)
    context = make_context(write_files(tmp_path, skills("finance/refunds", "tea")), grants=grants, principal=bob)
    activity = context.site.activity
    granted = Use("run", "tea", "scripts/tea.py", "")
    for run in (granted, Use("run", "finance/refunds", "scripts/finance.py", ""), Use("run", "", "scripts/.py", "")):
        activity.take(event(outcome="begun", uses=(run,), principal="token:ann"))
    page = visible_text(render_view(operation.runs, context))
    assert page.count(" running") == 3
    assert "scripts/tea.py" in page and page.count("token:ann") == 3
    assert "finance" not in page and page.count("of a skill that you may not read") == 1
    assert "code sent with the call" in page
    assert activity.clients() == []
    activity.take(event(outcome="failed", uses=(granted,), principal="token:ann", milliseconds=7.0))
    page = visible_text(render_view(operation.runs, context))
    assert page.count(" running") == 2
    assert " failed 7 ms" in page
    assert [(client.requests, client.refused) for client in activity.clients()] == [(1, 1)]


ADMIN_HEADINGS = ("By principal", "By host program")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path / "skills", skills("finance/refunds", "tea"))
    token_file(tmp_path, f"ann={ANN}", f"bob={BOB}")
    return tmp_path


def load_skill(server: Target, folder: Path, token: str | None = None) -> None:
    """Load a skill, and wait until the store has counted it: the page caches a report for five seconds."""
    with client(server, "modern", token=token) as mcp:
        mcp.read("skill://finance/refunds/SKILL.md")
    wait_until(lambda: UsageStore(str(folder / "usage.db")).report("principal").lines)


@pytest.mark.parametrize("grants", [grant("ann", "finance/**") + grant("bob", "**", may=["admin"]), ""])
def test_administrator_sees_use_by_principal_and_host(folder: Path, grants: str) -> None:
    store = f"sqlite:{folder / 'usage.db'}"
    with app_serving("--config", configure(folder, grants), "--usage", store, "--ui") as server:
        load_skill(server, folder, ANN)
        page = visible_text(get(server, "/ui/usage", **bearer_header(BOB)))
        assert page.count(" 1 0 0 0 ") == 3
        by_principal, _, by_host = page.partition(f" {ADMIN_HEADINGS[0]} ")[2].partition(f" {ADMIN_HEADINGS[1]} ")
        assert "token:ann 1 0 0 0 " in by_principal
        assert "wire 1 0 0 0 " in by_host and "token:" not in by_host
        clients = visible_text(get(server, "/ui/clients", **bearer_header(BOB)))
        assert "token:ann" in clients and "resources/read" in clients and "modern" in clients
        for view in ("usage", "runs", "clients"):
            assert ANN not in text_of(get(server, f"/ui/{view}", **bearer_header(BOB)))
        is_admin = not grants  # without grants every token is an administrator's
        for view in ("runs", "clients"):
            assert get(server, f"/ui/{view}", **bearer_header(ANN)).status == (200 if is_admin else 403)
        page = visible_text(get(server, "/ui/usage", **bearer_header(ANN)))
        for text in (*ADMIN_HEADINGS, "token:ann 1"):
            assert (text in page) is is_admin, text


def test_unreadable_counts_are_not_shown_as_no_use(folder: Path) -> None:
    store = folder / "usage.db"
    with app_serving(folder / "skills", "--usage", f"sqlite:{store}", "--ui") as server:
        store.write_bytes(b"garbage" * 1_000)
        page = visible_text(get(server, "/ui/usage"))
        assert "The counts cannot be read" in page and "Nothing was used" not in page
        assert "It was not used" not in visible_text(get(server, "/ui/skills/tea"))
        assert get(server, "/ui/?used=never").status == 200
        server.wait_for_log("usage.db: cannot be read")


def test_server_without_tokens_shows_use_but_no_principals_and_clients(folder: Path) -> None:
    with app_serving(folder / "skills", "--usage", f"sqlite:{folder / 'usage.db'}", "--ui") as server:
        get(server, "/ui/skills/tea")  # viewing the page does not count as a use
        load_skill(server, folder)
        wait_until(lambda: skill_paths(get(server, "/ui/?used=used")) == ["finance/refunds"])  # read every five seconds
        assert skill_paths(get(server, "/ui/?used=never")) == ["tea"]
        assert "Loaded 1 times" in visible_text(get(server, "/ui/skills/finance/refunds"))
        page = visible_text(get(server, "/ui/usage"))
        assert "Of 2 skills 1 was not used in the last 30 days" in page
        assert "finance/refunds 1 0 0 0 1 " in page and "tea 0 0 0 0 0 never" in page
        for text in (*ADMIN_HEADINGS, "wire"):
            assert text not in page
        for path in ("/ui/runs", "/ui/clients"):
            reply = get(server, path)
            assert reply.status == 403
            assert "administrators" in visible_text(reply)
            assert path not in text_of(get(server, "/ui/"))


def test_uses_of_a_skill_of_this_name_in_another_folder_are_not_shown(tmp_path: Path) -> None:
    for folder in ("mine", "theirs"):
        write_skill(tmp_path / folder / "refunds")
    database = tmp_path / "usage.db"
    options = ("--usage", f"sqlite:{database}", "--ui")
    with app_serving(tmp_path / "theirs", *options) as server, client(server, "modern") as mcp:
        mcp.call("skills_load", names=["refunds"])
        wait_until(lambda: any(row.loads for row in UsageStore(str(database)).report().lines))
        assert "Loaded 1 times" in visible_text(get(server, "/ui/skills/refunds"))
    with app_serving(tmp_path / "mine", *options) as server:
        assert "It was not used." in visible_text(get(server, "/ui/skills/refunds"))
        assert "Nothing was used in the last 30 days" in visible_text(get(server, "/ui/usage"))


def test_usage_and_catalogue_are_paginated_most_used_first(tmp_path: Path) -> None:
    class FixedCounts(UsageStore):
        def report(self, by: By = "skill", days: int = 30, roots: Sequence[str] | None = None) -> Report:
            rows = [UsageRow("", loads=9_000)]
            rows += [UsageRow(f"{by}-{number:04}", loads=9_000 - number) for number in range(1, 5_000)]
            return Report((*rows, UsageRow("s050", last=1.0)), 0, 0, ())

    context = make_context(write_files(tmp_path / "skills", skills(*(f"s{number:03}" for number in range(101)))))
    reports = UsageReports(FixedCounts(str(tmp_path / "usage.db")), [])
    context = replace(context, site=replace(context.site, usage=reports), sees_others=True)
    for start, count, has_more in ((0, 100, True), (1, 100, False), (100, 1, False)):
        page = render_view(operation.usage, context, f"from={start}")
        assert page.count("/ui/skills/s") == count
        assert ('rel="next"' in page) is has_more
        listing = catalogue._find(context, catalogue.ListQuery.parse(QueryParams(f"from={start}")), survey_of(context))
        assert (len(listing["rows"]), listing["more"], listing["total"]) == (count, has_more, 101)
    page = visible_text(render_view(operation.usage, context))
    for by, nameless in (("principal", "anonymous"), ("host", "unknown")):
        assert page.count(f"{by}-") == 99
        assert page.index(f"{nameless} 9,000") < page.index(f"{by}-0001 8,999") < page.index(f"{by}-0099 8,901")


def test_sources_show_kind_and_checks_and_errors_to_administrators(tmp_path: Path) -> None:
    url = "https://skills.example"
    write_files(tmp_path / "own", skills("one"))
    write_files(tmp_path / "copy", {"two/SKILL.md": skill_md("other")})
    (tmp_path / "empty").mkdir()
    state = SourceState(url, True, "/secret/place: does not answer", "abc123", polled=1e9, next_poll=2e9)
    mirror = MirroredRoot(str(tmp_path / "copy"), url)
    with Registry([tmp_path / "own", mirror, tmp_path / "empty"]) as registry:
        context = make_context(registry=registry, sources=[state])
        own, site, empty = operation.source_rows(replace(context, is_admin=True))
        assert (own.name, own.skills, own.state, own.trouble) == ("own", 1, None, "")
        assert (site.name, site.revision, site.skills, site.short) == (url, "abc123", 1, {"not listed": 1})
        assert (site.state, site.trouble) == (state, state.trouble)
        assert (empty.name, empty.skills) == ("empty", 0)
        own, site = operation.source_rows(replace(context, is_admin=False))
        assert (own.name, site.name) == ("own", url)
        assert site.trouble and "secret" not in site.trouble
        text = visible_text(render_view(operation.sources, context))
        assert "own none 1 a local folder none" in text and text.count("2001-09-09 01:46 UTC") == 1
        assert str(tmp_path) not in text


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with app_serving(FIXTURES, "--ui") as started:
        yield started


def test_tools_view_calls_reading_tools_and_shows_results(server: Target) -> None:
    def result_of(query: str) -> str:
        return visible_text(get(server, f"/ui/tools?tool=skills_{query}&call=1"))

    assert "query (required)" in visible_text(get(server, "/ui/tools"))
    found = result_of("search&arg.query=refund&arg.limit=1")
    assert "- refunds: Handles a refund request" in found and "- invoices:" not in found
    assert "bytes of text" in found
    loaded = result_of("load&arg.names=refunds,+invoices")
    assert '"names": ["refunds", "invoices"]' in loaded and "Book it" in loaded
    assert "# Approval limits" in result_of("read&arg.skill=refunds&arg.path=references/approval-limits.md")
    error = result_of("load&arg.names=no-such")
    assert "tool error" in error and "Nothing was loaded" in error
    assert "tool error" in result_of("read&arg.path=no-such")
    page = result_of("run_script&arg.path=scripts/run.sh")
    assert "query (required)" in page and "Result" not in page, "a tool with side effects is not called"
    for host in ("generic", "opencode"):
        page = get(server, f"/ui/tools?tool=skills_load&arg.names=refunds&host={host}&call=1").body.decode()
        assert f"<option selected>{host}</option>" in page
    long = result_of("load&arg.names=refunds,invoices&host=claude-code")
    assert '"active_skills": [{"name": "refunds"' in long, "the structure, which this host shows its model"
    for argument in ("skills_search&arg.query", "skills_load&arg.names", "skills_list&arg.limit"):
        reply = get(server, f'/ui/tools?tool={argument}="<script>hit()</script>"&call=1')
        assert reply.status == 200
        assert b"<script>hit" not in reply.body


def test_tools_view_tells_what_a_host_cuts_off(tmp_path: Path) -> None:
    write_skill(tmp_path / "long", body="word\n" * 60_000)
    with app_serving(tmp_path, "--ui") as server:
        page = visible_text(get(server, "/ui/tools?tool=skills_load&arg.names=long&host=claude-code&call=1"))
        assert re.search(r" 40,\d{3} bytes of text, about [\d,]+ tokens\. This host cuts off [\d,]+ characters\.", page)
