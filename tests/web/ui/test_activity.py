"""Runs and clients, from events alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.events import Event, Use
from mcp_skills_server.telemetry.metrics import Metrics
from mcp_skills_server.web.ui.pages.operation import MOST_CLIENTS, MOST_RUNS, Activity
from programs import LOOSE, loose
from web.http_wire import client
from web.ui.serving import get, page_serving, words
from wire import write_skill

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
    assert (last.event.principal, last.requests, last.refused, last.first, last.event.time) == (
        "token:ann",
        2,
        1,
        1.0,
        2.0,
    )


def test_what_others_do_is_not_for_everybody(tmp_path: Path) -> None:
    write_skill(tmp_path / "tea")
    with page_serving(tmp_path) as server:
        for path in ("/ui/runs", "/ui/clients"):
            reply = get(server, path)
            assert reply.status == 403 and "administrators" in words(reply)
            assert path not in get(server, "/ui/").body.decode()


TOKEN = "0123456789abcdef"


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
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        runs = words(get(server, "/ui/runs", **bearer))
        assert "scripts/brew.py" in runs and "token:ann" in runs
        clients = words(get(server, "/ui/clients", **bearer))
        assert "token:ann" in clients and "tools/call" in clients and "modern" in clients
        assert TOKEN not in runs + clients


def test_what_a_person_looks_at_is_no_use_of_a_skill() -> None:
    metrics = Metrics(dict, ("tools/call",))
    use = Use("load", "tea", "SKILL.md", "sha256:00")
    metrics.record(event(protocol=events.PAGE, uses=(use,)))
    assert metrics.registry.get_sample_value("skills_uses_total", {"action": "load", "skill": "tea"}) is None
    metrics.record(event(uses=(use,)))
    assert metrics.registry.get_sample_value("skills_uses_total", {"action": "load", "skill": "tea"}) == 1
