"""Who runs, asks, uses and offers what: the views of runs, clients, usage, sources and tools."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.datastructures import QueryParams
from starlette.requests import Request

from catalog.forest import plant, skill_md, skills
from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.registry import MirroredRoot, Registry
from mcp_skills_server.sources.mirrors import SourceState
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.events import Event, Use
from mcp_skills_server.telemetry.metrics import Metrics
from mcp_skills_server.telemetry.usage import By, Report, UsageRow, UsageStore
from mcp_skills_server.web.ui.pages import catalogue, operation
from mcp_skills_server.web.ui.pages.operation import Activity
from mcp_skills_server.web.ui.pages.problems import survey_of
from programs import LOOSE, loose
from web.http_wire import Server, bearing, client, token_file, until
from web.test_grants import ANN, BOB, configure
from web.ui.serving import get, grant, make_context, page_serving, words
from wire import FIXTURES, write_skill


def event(time: float = 1.0, outcome: Any = "ok", protocol: str = "mcp", **fields: Any) -> Event:
    return Event(time=time, protocol=protocol, method="tools/call", outcome=outcome, **fields)


def test_clients_differ_by_who_where_what_and_how_and_the_latest_are_kept() -> None:
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
    for number in range(509):
        seen.take(event(number, "begun", uses=(Use("run", "", "", ""),)))
        seen.take(event(number, address=f"10.0.{number % 256}.{number // 256}"))
    for kept in (seen.runs(), seen.clients()):
        assert [each.event.time for each in kept] == [*range(508, 8, -1)]


@loose
def test_a_run_and_its_client_are_shown_to_who_may_see_them(tmp_path: Path) -> None:
    write_skill(tmp_path / "tea", scripts__brew_py="print('brewed')\n")
    environment = {"MCP_SKILLS_TOKENS": f"ann={ANN}"}
    with (
        page_serving(tmp_path, "--allow-scripts", *LOOSE, environment=environment) as server,
        client(server, "modern", token=ANN) as ann,
    ):
        loaded = ann.call("skills_load", names=["tea"])
        given = {"path": "skill://tea/scripts/brew.py", "session": loaded["structuredContent"]["session"]}
        done = ann.call("skills_run_script", **given)
        assert not done.get("isError"), done
        runs, clients = (words(get(server, f"/ui/{view}", **bearing(ANN))) for view in ("runs", "clients"))
        assert "scripts/brew.py" in runs and "token:ann" in runs
        assert "token:ann" in clients and "tools/call" in clients and "modern" in clients
        assert ANN not in runs + clients


def test_a_run_goes_on_until_its_request_ends_and_names_no_skill_that_the_viewer_has_not(tmp_path: Path) -> None:
    def page() -> str:
        return words(bytes(anyio.run(operation.runs, None, context).body).decode())

    who = Principal("token", "bob")
    grants = Grants([Grant((who.id,), (Pattern("tea"),))], local=False)
    context = make_context(plant(tmp_path, skills("finance/refunds", "tea")), grants=grants, principal=who)
    runs = [Use("run", path, f"scripts/{path.partition('/')[0]}.py", "") for path in ("tea", "finance/refunds", "")]
    for each in runs:
        context.site.activity.take(event(outcome="begun", uses=(each,)))
    assert "scripts/tea.py" in page() and "finance" not in page() and page().count(" running") == 3
    assert page().count("of a skill that you may not read") == 1 and "code sent with the call" in page()
    assert context.site.activity.clients() == []
    context.site.activity.take(event(outcome="failed", uses=(runs[0],), milliseconds=7.0))
    assert page().count(" running") == 2 and " failed 7 ms" in page()
    assert [(each.requests, each.refused) for each in context.site.activity.clients()] == [(1, 1)]


HEADINGS = ("By principal", "By host program")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two skills, and two tokens."""
    plant(tmp_path / "skills", skills("finance/refunds", "tea"))
    token_file(tmp_path, f"ann={ANN}", f"bob={BOB}")
    return tmp_path


def use_one(server: Server, place: Path, token: str | None = None) -> None:
    """Load a skill, and wait until this is in the store: what the page has read of it, it shows for five seconds."""
    with client(server, "modern", token=token) as one:
        one.read("skill://finance/refunds/SKILL.md")
    until(lambda: UsageStore(str(place / "usage.db")).report("principal").lines)


@pytest.mark.parametrize("grants", [grant("ann", "finance/**") + grant("bob", "**", may=["admin"]), ""])
def test_who_may_see_others_sees_who_used_how_much(place: Path, grants: str) -> None:
    store = f"sqlite:{place / 'usage.db'}"
    with page_serving("--config", configure(place, grants), "--usage", store) as server:
        use_one(server, place, ANN)
        seen = words(get(server, "/ui/usage", **bearing(BOB)))
        assert seen.count(" 1 0 0 0 ") == 3
        by_principal, _, by_host = seen.partition(f" {HEADINGS[0]} ")[2].partition(f" {HEADINGS[1]} ")
        assert "token:ann 1 0 0 0 " in by_principal and "wire 1 0 0 0 " in by_host and "token:" not in by_host
        assert "token:ann" in words(get(server, "/ui/clients", **bearing(BOB)))
        for view in ("runs", "clients"):
            assert get(server, f"/ui/{view}", **bearing(ANN)).status == (403 if grants else 200)
        not_admin = words(get(server, "/ui/usage", **bearing(ANN)))
        assert all((text in not_admin) == (not grants) for text in (*HEADINGS, "token:ann 1"))


def test_where_nobody_proves_anything_nobody_sees_who_else_there_is(place: Path) -> None:
    with page_serving(place / "skills", "--usage", f"sqlite:{place / 'usage.db'}") as server:
        use_one(server, place)
        seen = words(get(server, "/ui/usage"))
        assert " 1 0 0 0 " in seen and not any(heading in seen for heading in HEADINGS) and "wire" not in seen
        for path in ("/ui/runs", "/ui/clients"):
            reply = get(server, path)
            assert reply.status == 403 and "administrators" in words(reply)
            assert path not in get(server, "/ui/").body.decode()


def test_no_more_than_so_many_are_shown_the_most_used_first(tmp_path: Path) -> None:
    class Counts(UsageStore):
        def report(self, by: By = "skill", days: int = 30) -> Report:
            rows = (UsageRow(f"{by}-{number:04}" * (number > 0), loads=9_000 - number) for number in range(5_000))
            return Report((*rows, UsageRow("s050", last=1.0)), 0, 0, ())

    def shown(start: int) -> str:
        query = f"from={start}".encode()
        request = Request({"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": query})
        return bytes(anyio.run(operation.usage, request, context).body).decode()

    made = plant(tmp_path / "skills", skills(*(f"s{number:03}" for number in range(101))))
    context, counts = make_context(made), Counts(str(tmp_path / "usage.db"))
    context = replace(context, site=replace(context.site, usage=operation.UsageReports(counts)), sees_others=True)
    assert [shown(start).count("/ui/skills/s") for start in (0, 1, 100)] == [100, 100, 1]
    assert ['rel="next"' in shown(start) for start in (0, 1)] == [True, False]
    found = [
        catalogue._find(context, catalogue.ListQuery.of(QueryParams(f"from={start}")), survey_of(context))
        for start in (0, 1)
    ]
    assert [(len(each["rows"]), each["more"], each["total"]) for each in found] == [(100, True, 101), (100, False, 101)]
    page = words(shown(0))
    for by, nameless in (("principal", "anonymous"), ("host", "unknown")):
        assert page.count(f"{by}-") == 99
        assert page.index(f"{nameless} 9,000") < page.index(f"{by}-0001 8,999") < page.index(f"{by}-0099 8,901")


def test_what_a_person_looks_at_is_no_use_of_a_skill() -> None:
    metrics, use = Metrics(dict, ("tools/call",)), Use("load", "tea", "SKILL.md", "sha256:00")
    for protocol, count in ((events.PAGE, None), ("mcp", 1)):
        metrics.record(event(protocol=protocol, uses=(use,)))
        assert metrics.registry.get_sample_value("skills_uses_total", {"action": "load", "skill": "tea"}) == count


def test_each_source_has_its_revision_its_looks_and_for_the_operator_its_last_error(tmp_path: Path) -> None:
    url = "https://skills.example"
    plant(tmp_path / "own", skills("one"))
    plant(tmp_path / "copy", {"two/SKILL.md": skill_md("other")})
    (tmp_path / "empty").mkdir()
    state = SourceState(url, True, "/secret/place: does not answer", "abc123", looked=1e9, next_look=2e9)
    mirror = MirroredRoot(str(tmp_path / "copy"), url)
    with Registry([tmp_path / "own", mirror, tmp_path / "empty"]) as registry:
        context = make_context(registry=registry, sources=[state])
        own, site, empty = operation.source_rows(replace(context, is_admin=True))
        assert (own.name, own.skills, own.state, own.trouble) == ("own", 1, None, "")
        assert (site.name, site.revision, site.skills, site.left_out) == (url, "abc123", 1, 1)
        assert (site.state, site.trouble) == (state, state.trouble)
        assert (empty.name, empty.skills) == ("empty", 0)
        rows = operation.source_rows(replace(context, is_admin=False))
        assert [each.name for each in rows] == ["own", url]
        assert rows[1].trouble and "secret" not in rows[1].trouble


def test_the_view_of_sources_says_when_each_was_looked_at(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as archive:
        archive.writestr("one/SKILL.md", skill_md("one"))
    plant(tmp_path / "own", skills("two"))
    with page_serving(tmp_path / "s.zip", tmp_path / "own") as server:
        text = words(get(server, "/ui/sources"))
        assert "own none 1 a local folder none" in text and "s.zip" in text and " UTC" in text
        assert str(tmp_path / "own") not in text


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with page_serving(FIXTURES) as started:
        yield started


def test_each_tool_is_called_and_its_answer_is_what_a_model_gets(server: Server) -> None:
    def called(query: str) -> str:
        return words(get(server, f"/ui/tools?tool=skills_{query}&call=1"))

    assert "query (required)" in words(get(server, "/ui/tools"))
    found = called("search&arg.query=refund&arg.limit=1")
    assert "- refunds: Handles a refund request" in found and "- invoices:" not in found
    assert "bytes of text" in found
    loaded = called("load&arg.names=refunds,+invoices")
    assert '"names": ["refunds", "invoices"]' in loaded and "Book it" in loaded
    assert "# Approval limits" in called("read&arg.skill=refunds&arg.path=references/approval-limits.md")
    wrong = called("load&arg.names=no-such")
    assert "tool error" in wrong and "Nothing was loaded" in wrong
    assert "tool error" in called("read&arg.path=no-such")
    page = called("run_script&arg.path=scripts/run.sh")
    assert "query (required)" in page and "Result" not in page, "a tool that does something is not called"
    for host in ("generic", "opencode"):
        page = get(server, f"/ui/tools?tool=skills_load&arg.names=refunds&host={host}&call=1").body.decode()
        assert f"<option selected>{host}</option>" in page


def test_nothing_of_an_argument_becomes_markup(server: Server) -> None:
    given = json.dumps("<script>hit()</script>")
    for tool in ("skills_search&arg.query", "skills_load&arg.names", "skills_list&arg.limit"):
        reply = get(server, f"/ui/tools?tool={tool}={given}&call=1")
        assert reply.status == 200 and b"<script>hit" not in reply.body
