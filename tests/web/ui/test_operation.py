"""Who runs, asks, uses and offers what: the views of runs, clients, usage, sources and tools."""

from __future__ import annotations

import json
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect
from starlette.requests import Request

from catalog.forest import plant, skill_md
from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.registry import MirroredRoot, Registry
from mcp_skills_server.sources.mirrors import SourceState
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.events import Event, Use
from mcp_skills_server.telemetry.metrics import Metrics
from mcp_skills_server.telemetry.usage import Batch, By, Count, Report, Tally, UsageRow, UsageStore, day_of
from mcp_skills_server.web.ui.pages import operation
from mcp_skills_server.web.ui.pages.operation import MOST_CLIENTS, MOST_RUNS, Activity
from programs import LOOSE, loose
from web.http_wire import bearing, client, token_file, until
from web.test_grants import ANN, BOB, GRANTS, configure
from web.ui.chromium import looking, needs_chromium
from web.ui.serving import get, own_page, page_serving, words
from web.ui.views import look_at
from wire import FIXTURES, write_skill

# Runs and clients


TOKEN = "0123456789abcdef"
RUN = Use("run", "acme/tea", "scripts/brew.py", "sha256:00")


def event(time: float = 1.0, outcome: Any = "ok", **fields: Any) -> Event:
    return Event(time=time, protocol=fields.pop("protocol", "mcp"), method="tools/call", outcome=outcome, **fields)


def test_a_run_goes_on_until_its_request_ends() -> None:
    seen = Activity()
    seen.take(event(outcome="begun", uses=(RUN,), principal="token:ann"))
    (run,) = seen.runs()
    assert (run.event.outcome, run.started.file) == ("begun", "scripts/brew.py")
    assert seen.clients() == []
    seen.take(event(outcome="failed", uses=(RUN,), principal="token:ann", milliseconds=7.0))
    (run,) = seen.runs()
    assert (run.event.outcome, run.event.milliseconds) == ("failed", 7.0)
    assert [(each.requests, each.refused) for each in seen.clients()] == [(1, 1)]


def test_the_latest_come_first_and_there_are_never_more_than_so_many() -> None:
    seen = Activity()
    for number in range(MOST_RUNS + 9):
        seen.take(event(number, "begun", uses=(RUN,)))
        seen.take(event(number, address=f"10.0.{number % 256}.{number // 256}"))
    assert len(seen.runs()) == MOST_RUNS and len(seen.clients()) == MOST_CLIENTS
    assert seen.runs()[0].event.time == MOST_RUNS + 8 and seen.clients()[0].event.time == MOST_RUNS + 8


def test_clients_differ_by_who_where_what_and_how() -> None:
    seen = Activity()
    for principal in (None, "token:ann"):
        for host in (None, "editor"):
            seen.take(event(principal=principal, host=host))
    seen.take(event(2.0, "refused", principal="token:ann", host="editor"))
    seen.take(event(protocol=events.CATALOGUE, outcome="changed"))
    assert len(seen.clients()) == 4
    last = seen.clients()[0]
    assert (last.event.principal, last.requests, last.refused) == ("token:ann", 2, 1)
    assert (last.first, last.event.time) == (1.0, 2.0)


def test_what_others_do_is_not_for_everybody(tmp_path: Path) -> None:
    write_skill(tmp_path / "tea")
    with page_serving(tmp_path) as server:
        for path in ("/ui/runs", "/ui/clients"):
            reply = get(server, path)
            assert reply.status == 403 and "administrators" in words(reply)
            assert path not in get(server, "/ui/").body.decode()


@loose
def test_a_run_and_its_client_are_shown_to_who_may_see_them(tmp_path: Path) -> None:
    write_skill(tmp_path / "tea", scripts__brew_py="print('brewed')\n")
    environment = {"MCP_SKILLS_TOKENS": f"ann={TOKEN}"}
    with (
        page_serving(tmp_path, "--allow-scripts", *LOOSE, environment=environment) as server,
        client(server, "modern", token=TOKEN) as ann,
    ):
        loaded = ann.request("tools/call", {"name": "skills_load", "arguments": {"names": ["tea"]}})
        given = {"path": "skill://tea/scripts/brew.py", "session": loaded["structuredContent"]["session"]}
        done = ann.request("tools/call", {"name": "skills_run_script", "arguments": given})
        assert not done.get("isError"), done
        runs = words(get(server, "/ui/runs", **bearing(TOKEN)))
        assert "scripts/brew.py" in runs and "token:ann" in runs
        clients = words(get(server, "/ui/clients", **bearing(TOKEN)))
        assert "token:ann" in clients and "tools/call" in clients and "modern" in clients
        assert TOKEN not in runs + clients


def test_what_a_person_looks_at_is_no_use_of_a_skill() -> None:
    metrics = Metrics(dict, ("tools/call",))
    use = Use("load", "tea", "SKILL.md", "sha256:00")
    metrics.record(event(protocol=events.PAGE, uses=(use,)))
    assert metrics.registry.get_sample_value("skills_uses_total", {"action": "load", "skill": "tea"}) is None
    metrics.record(event(uses=(use,)))
    assert metrics.registry.get_sample_value("skills_uses_total", {"action": "load", "skill": "tea"}) == 1


# Use by principal and by host program


ADMIN = """
[[grant]]
who = ["token:bob"]
skills = ["**"]
may = ["admin"]
"""
HEADINGS = ("By principal", "By host program")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two skills, and two tokens."""
    write_skill(tmp_path / "skills" / "finance" / "refunds")
    write_skill(tmp_path / "skills" / "tea")
    token_file(tmp_path, f"ann={ANN}", f"bob={BOB}")
    return tmp_path


def test_a_skill_that_the_viewer_has_not_is_not_named_by_its_runs(place: Path) -> None:
    who = Principal("token", "bob")
    grants = Grants([Grant((who.id,), (Pattern("tea"),))], local=False)
    look = look_at(place, grants=grants, principal=who)
    for path in ("tea", "finance/refunds", ""):
        use = Use("run", path, f"scripts/{path.partition('/')[0]}.py", "")
        look.site.activity.take(event(outcome="begun", uses=(use,)))
    page = words(bytes(anyio.run(operation.runs, None, look).body).decode())
    assert "tea" in page and "finance" not in page and page.count("of a skill that you may not read") == 1
    assert "code sent with the call" in page


def wait_for_count(place: Path) -> None:
    """Wait until a use is in the store: what the page has read of it, it shows for five seconds."""
    until(lambda: UsageStore(str(place / "usage.db")).report("principal").lines)


@pytest.mark.parametrize("grants", [GRANTS + ADMIN, ""])
def test_who_may_see_others_sees_who_used_how_much(place: Path, grants: str) -> None:
    store = f"sqlite:{place / 'usage.db'}"
    with page_serving("--config", configure(place, grants), "--usage", store) as server:
        with client(server, "modern", token=ANN) as ann:
            ann.request("resources/read", {"uri": "skill://finance/refunds/SKILL.md"})
        wait_for_count(place)
        seen = words(get(server, "/ui/usage", **bearing(BOB)))
        assert seen.count(" 1 0 0 0 ") == 3
        _, by_principal, by_host = (part.partition(" Searches ")[0] for part in _parts(seen))
        assert "token:ann 1 0 0 0 " in by_principal and "wire 1 0 0 0 " in by_host
        assert "token:" not in by_host
        assert "token:ann" in words(get(server, "/ui/clients", **bearing(BOB)))
        for view in ("runs", "clients"):
            assert get(server, f"/ui/{view}", **bearing(ANN)).status == (403 if grants else 200)
        not_admin = words(get(server, "/ui/usage", **bearing(ANN)))
        assert all((heading in not_admin) == (not grants) for heading in HEADINGS)
        assert ("token:ann 1" in not_admin) == (not grants)


def _parts(page: str) -> tuple[str, str, str]:
    skills, _, rest = page.partition(f" {HEADINGS[0]} ")
    by_principal, _, by_host = rest.partition(f" {HEADINGS[1]} ")
    return skills, by_principal, by_host


def test_where_nobody_proves_anything_nobody_sees_who_else_there_is(place: Path) -> None:
    with page_serving(place / "skills", "--usage", f"sqlite:{place / 'usage.db'}") as server:
        with client(server, "modern") as one:
            one.request("resources/read", {"uri": "skill://tea/SKILL.md"})
        wait_for_count(place)
        seen = words(get(server, "/ui/usage"))
        assert " 1 0 0 0 " in seen
        assert not any(heading in seen for heading in HEADINGS) and "wire" not in seen


def test_no_more_than_so_many_are_shown_the_most_used_first(tmp_path: Path) -> None:
    class Counts(UsageStore):
        def report(self, by: By = "skill", days: int = 30) -> Report:
            return Report(
                tuple(UsageRow(f"{by}-{number:04}", loads=9_000 - number) for number in range(5_000)), 0, 0, ()
            )

    look, counts = look_at(tmp_path), Counts(str(tmp_path / "usage.db"))
    look = replace(look, site=replace(look.site, usage=operation.UsageReports(counts)), sees_others=True)
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""})
    page = words(bytes(anyio.run(operation.usage, request, look).body).decode())
    for by in ("principal", "host"):
        assert page.count(f"{by}-") == operation.MOST_OTHERS
        assert page.index(f"{by}-0000 9,000") < page.index(f"{by}-0001 8,999") < page.index(f"{by}-0099 8,901")


@needs_chromium
def test_the_tables_are_read_by_anybody_on_any_screen_and_without_a_script(chromium: Browser, place: Path) -> None:
    now = time.time()
    who = {"token:ann": "<b>editor</b>" * 20, "user:" + "x" * 300: "a" * 200, "": ""}
    counts = {
        Count(day_of(now), "load", "tea", "sha256:0", principal, host, "mcp"): Tally(len(who) - number, now)
        for number, (principal, host) in enumerate(who.items())
    }
    UsageStore(str(place / "usage.db")).add(Batch(counts, {}))
    given = (place / "skills", "--usage", f"sqlite:{place / 'usage.db'}")
    options = {"color_scheme": "dark", "viewport": {"width": 320, "height": 600}}
    with own_page(*given) as address, looking(chromium, **options) as seen:
        page = seen.page
        page.goto(address)
        page.goto(f"{address.partition('/ui/')[0]}/ui/usage")
        table = page.get_by_role("region", name="By principal")
        expect(table.get_by_role("row").nth(1)).to_contain_text("token:ann")
        expect(table.get_by_role("row").last).to_contain_text("anonymous")
        hosts = page.get_by_role("region", name="By host program")
        expect(hosts.get_by_role("row").last).to_contain_text("unknown")
        assert Axe().run(page).response["violations"] == []
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 320
        assert page.locator("main b").count() == 0
    with own_page(*given) as address, looking(chromium, java_script_enabled=False) as seen:
        seen.page.goto(address)
        seen.page.goto(f"{address.partition('/ui/')[0]}/ui/usage")
        expect(seen.page.get_by_role("region", name="By principal").get_by_text("token:ann")).to_be_visible()


# Where skills come from


SITE = "https://skills.example"


def mirrored(tmp_path: Path) -> Registry:
    plant(tmp_path / "own", {"one/SKILL.md": skill_md("one")})
    plant(tmp_path / "copy", {"two/SKILL.md": skill_md("other")})
    (tmp_path / "empty").mkdir()
    registry = Registry([tmp_path / "own", MirroredRoot(str(tmp_path / "copy"), SITE), tmp_path / "empty"], quiet_s=0)
    registry.load()
    return registry


def test_each_source_has_its_revision_its_looks_and_its_last_error(tmp_path: Path) -> None:
    state = SourceState(SITE, True, "does not answer", "abc123", looked=1e9, next_look=2e9)
    look = replace(look_at(registry=mirrored(tmp_path), sources=[state]), is_admin=True)
    own, site, empty = operation.source_rows(look)
    assert (own.name, own.skills, own.state, own.trouble) == ("own", 1, None, "")
    assert (site.name, site.revision, site.skills, site.left_out) == (SITE, "abc123", 1, 1)
    assert (site.state, site.trouble) == (state, "does not answer")
    assert (empty.name, empty.skills) == ("empty", 0)


def test_others_than_the_operator_see_the_sources_of_their_skills_and_no_errors_of_them(tmp_path: Path) -> None:
    state = SourceState(SITE, True, "/secret/place: does not answer", "abc123")
    rows = operation.source_rows(replace(look_at(registry=mirrored(tmp_path), sources=[state]), is_admin=False))
    assert [each.name for each in rows] == ["own", SITE]
    assert "secret" not in rows[1].trouble and rows[1].trouble


def test_the_view_says_when_it_was_looked_and_will_be(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as archive:
        archive.writestr("one/SKILL.md", skill_md("one"))
    begun = time.time()
    plant(tmp_path / "own", {"two/SKILL.md": skill_md("two")})
    with page_serving(tmp_path / "s.zip", tmp_path / "own") as server:
        text = words(get(server, "/ui/sources"))
        assert "own none 1 a local folder none" in text
        assert time.strftime("%Y", time.gmtime(begun)) in text or "s.zip" in text
        assert str(tmp_path / "own") not in text


# The view that calls a tool as a host would


def test_each_tool_is_called_and_its_answer_is_what_a_model_gets() -> None:
    with page_serving(FIXTURES) as server:
        assert "query (required)" in words(get(server, "/ui/tools"))
        found = words(get(server, "/ui/tools?tool=skills_search&arg.query=refund&arg.limit=1&call=1"))
        assert "- refunds: Handles a refund request" in found and "- invoices:" not in found
        assert "bytes of text" in found
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
