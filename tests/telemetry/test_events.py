"""Events of requests, runs and catalogue changes, and their readers."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from opentelemetry.sdk.trace import TracerProvider

from catalog.forest import load_registry, skill_md, skills, write_files
from mcp_skills_server import Registry, Runtime, attach
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.views import View, retry_when_stale
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.audit import AuditLog
from mcp_skills_server.telemetry.events import Event, Events, NotRecordedError, Use
from mcp_skills_server.telemetry.log import log_requests
from mcp_skills_server.telemetry.metrics import Metrics
from mcp_skills_server.telemetry.tracing import Tracing
from mcp_skills_server.telemetry.usage import Usage, UsageStore
from mcp_skills_server.web.ui.activity import Activity
from wire import DEADLINE, write_skill

pytestmark = pytest.mark.anyio


async def test_internal_error_is_distinguished_from_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_skill(tmp_path / "a")
    server, registry, seen = Server[Any]("mine"), Registry([tmp_path]), list[Event]()
    attach(server, registry, watch=False).events.subscribe(seen.append)
    monkeypatch.setattr(registry, "body", {}.pop)  # raises an unexpected error
    async with Client(server, mode="legacy") as client:
        with pytest.raises(MCPError):
            await client.get_prompt("a")
    assert (seen[-1].method, seen[-1].outcome) == ("prompts/get", "failed")


def test_each_catalogue_change_is_one_event(tmp_path: Path) -> None:
    write_files(tmp_path, skills("gone", "edited", "same"))
    registry, seen = Registry([tmp_path]), list[Event]()
    Runtime(registry).events.subscribe(seen.append)
    registry.load()
    assert seen == []  # the first scan is no change
    (tmp_path / "gone" / "SKILL.md").unlink()
    write_files(
        tmp_path, {"edited/SKILL.md": skill_md("edited", body="Other."), "torn/SKILL.md": "---\nname: [\n---\n"}
    )
    registry.refresh()
    assert [(event.protocol, event.outcome, event.skills) for event in seen if event.outcome != "vanished"] == [
        ("catalogue", "changed", ("edited",)),
        ("catalogue", "appeared", ("torn",)),
    ]
    digest = registry.snapshot.skills["edited"].files["SKILL.md"].digest
    assert [use.digest for event in seen for use in event.uses if use.skill == "edited"] == [digest]


async def test_reads_before_a_retry_are_not_counted(tmp_path: Path, publisher: Events, published: list[Event]) -> None:
    registry = load_registry(write_files(tmp_path, {"a/SKILL.md": skill_md("a"), "a/b.md": "b"}))
    files = ["b.md", "SKILL.md"]

    async def handler(view: View) -> bytes:
        raw = await view.read(view.snapshot.skills["a"], files.pop(0))
        if files:
            raise StaleFileError(str(tmp_path / "a" / "SKILL.md"))
        return raw

    with publisher.serving(), events.Request("mcp", "x"):
        raw = await retry_when_stale(registry, handler)
    (event,) = published
    assert event.bytes == len(raw)
    assert [use.file for use in event.uses] == ["SKILL.md"]


async def test_cancelled_request_is_an_event_with_bounded_fields(publisher: Events, published: list[Event]) -> None:
    long = "x" * 500
    with publisher.serving(), anyio.CancelScope() as scope, events.Request("mcp", long, principal=None, host=long):
        scope.cancel()
        await anyio.lowlevel.checkpoint()
    (event,) = published
    assert event.outcome == "cancelled"
    assert (len(event.method), len(event.host or "")) == (200, 200)


def test_run_outside_a_request_is_an_event(publisher: Events, published: list[Event]) -> None:
    with publisher.serving():
        with events.Request("mcp", "x"):
            pass
        events.record_run("a", "scripts/x.py", "sha256:0")
    events.record_run("a", "scripts/y.py", "sha256:0")  # of no server
    _, run = published
    assert (run.protocol, run.outcome) == (events.LIBRARY, "begun")
    assert run.uses == (Use("run", "a", "scripts/x.py", "sha256:0"),)


def test_run_replaces_the_mention_of_its_skill(publisher: Events, published: list[Event]) -> None:
    """Else the span of the request would describe the mention."""
    with publisher.serving(), events.Request("mcp", "x") as request:
        for name in ("a", "b"):
            request.add(Use("", name, "SKILL.md", ""))
        events.record_run("a", "scripts/x.py", "sha256:0")
    assert published[-1].uses == (Use("", "b", "SKILL.md", ""), Use("run", "a", "scripts/x.py", "sha256:0"))


def test_run_that_could_not_be_recorded_is_no_use(publisher: Events, published: list[Event]) -> None:
    """Else the audit log would name the end of a run that never began."""

    def fail(event: Event) -> None:
        if event.outcome == "begun":
            raise NotRecordedError("no space")

    publisher.subscribe(fail)
    mention = Use("", "a", "SKILL.md", "")
    with publisher.serving(), events.Request("mcp", "x") as request:
        request.add(mention)
        with pytest.raises(NotRecordedError):
            events.record_run("a", "scripts/x.py", "sha256:0")
    assert published[-1].uses == (mention,)


def test_failing_reader_affects_neither_others_nor_request(
    publisher: Events, published: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    later_reader: list[Event] = []
    unsubscribe = publisher.subscribe(lambda _: {}["a bug"])
    publisher.subscribe(later_reader.append)
    for _ in range(2):
        with publisher.serving(), events.Request("mcp", "x"):
            pass
        unsubscribe()
    assert len(published) == len(later_reader) == 2
    assert caplog.text.count("a reader of events failed") == 1


@pytest.mark.parametrize(("keeps_questions", "question"), [(True, "how?"), (False, "")])
def test_event_has_principal_search_and_error_code(publisher: Events, keeps_questions: bool, question: str) -> None:
    published: list[Event] = []
    publisher.subscribe(published.append, questions=keeps_questions)
    token = events.request_id.set("first")
    with publisher.serving(), events.Request("mcp", "x", principal=Principal("token", "ann")) as request:
        events.record_search("how?", 2)
        events.record_use(Use("dropped", "a", "SKILL.md", ""))
        request.code = -32000
    events.request_id.reset(token)
    (event,) = published
    assert (event.request, event.principal, event.found, event.code) == ("first", "token:ann", 2, -32000)
    assert (event.question, event.bytes) == (question, 0)
    assert event.milliseconds < 10_000


async def test_servers_in_one_process_share_no_reader(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Log, audit log, metrics, usage, traces and activity contain events of their own server only."""
    caplog.set_level(logging.DEBUG, logger="mcp_skills_server.telemetry.log")
    observed, other = Server[Any]("observed"), Server[Any]("other")
    for name in "ab":
        write_skill(tmp_path / name / name)
    publisher = attach(observed, Registry([tmp_path / "a"]), watch=False).events
    other_attachment = attach(other, Registry([tmp_path / "b"]), watch=False)
    metrics, activity, of_other = Metrics(dict, ("resources/read",)), Activity(), list[Event]()
    AuditLog(str(tmp_path / "audit"), required=True).subscribe_to(publisher)
    publisher.subscribe(metrics.record)
    publisher.subscribe(activity.take)
    publisher.subscribe(Tracing(TracerProvider(shutdown_on_exit=False), (), lambda _: None).record)
    log_requests(publisher)
    store = UsageStore(str(tmp_path / "usage.db"))
    stop = Usage(store, questions=True).start(publisher)
    other_attachment.events.subscribe(of_other.append)
    with anyio.fail_after(DEADLINE):
        async with Client(observed) as client_a, Client(other) as client_b:
            for client, name in ((client_a, "a"), (client_b, "b")):
                await client.read_resource(f"skill://{name}/SKILL.md")
                await client.call_tool("skills_search", {"query": "qqqqqq"})
    write_skill(tmp_path / "b" / "c")
    other_attachment.registry.refresh()
    stop()
    assert [event.skills for event in of_other if event.uses] == [("b",), ("c",)]
    assert all(event.question == "" for event in of_other)
    records = map(json.loads, (tmp_path / "audit").read_text().splitlines())
    assert {record.get("skill") for record in records} == {None, "a"}
    (line,) = (message for message in caplog.messages if "resources/read" in message)
    assert line.startswith("resources/read of a: ok")
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    assert {sample.labels.get("skill") for sample in samples} == {None, "a"}
    assert sum(client.requests for client in activity.clients()) == len(caplog.messages)
    assert [row.name for row in store.report("skill", 2).lines if row.name] == ["a"]


def test_requests_are_logged_at_debug_level(publisher: Events, caplog: pytest.LogCaptureFixture) -> None:
    unsubscribe = log_requests(publisher)
    with publisher.serving():
        for level in (logging.INFO, logging.DEBUG):
            caplog.set_level(level, logger="mcp_skills_server")
            assert caplog.messages == []
            principal = Principal("token", "alice")
            with events.Request("mcp", "skills/get", principal=principal, host="a host") as request:
                request.add(Use("load", "acme/refunds", "SKILL.md", "sha256:0"), 5)
        publisher.emit(Event(0, events.CATALOGUE, "", "appeared", uses=(Use("", "new", "SKILL.md", ""),)))
        (line,) = caplog.messages
        assert line.startswith("skills/get of acme/refunds: ok in ") and line.endswith(" ms (mcp, token:alice, a host)")
        with events.Request("mcp", "skills/get") as request:
            for number in range(25):
                request.add(Use("read", f"s{number}" * 200, "SKILL.md", ""))
        line = caplog.messages[-1]
        assert "s19s" in line and "s20s" not in line and " and 5 more: ok in " in line and len(line) < 5_000
        publisher.emit(Event(0, "mcp", "x", "failed", milliseconds=1.23456))
        fields = {"protocol": "mcp", "method": "x", "outcome": "failed", "milliseconds": 1.235}
        assert caplog.records[-1].msg.fields == fields
        events.emit_refusal("POST", "token")
        assert "POST: refused (token) in " in caplog.messages[-1]
        assert caplog.records[-1].msg.fields["reason"] == "token"
        rate_limited = [hasattr(record, "repeats") for record in caplog.records]
        assert rate_limited == [False, False, False, True], "else refused clients flood the log"
        unsubscribe()
        with events.Request("mcp", "skills/get"):
            pass
    assert len(caplog.messages) == 4
