"""What happens is one event each, whichever protocol it came by, and costs nothing where nobody reads it."""

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

from catalog.forest import loaded, plant, skill_md, skills
from mcp_skills_server import Registry, Runtime, attach
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.views import View, retry_when_stale
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.audit import AuditLog
from mcp_skills_server.telemetry.events import Event, Events, Use
from mcp_skills_server.telemetry.log import log_requests
from mcp_skills_server.telemetry.metrics import Metrics
from mcp_skills_server.telemetry.tracing import Tracing
from mcp_skills_server.telemetry.usage import Usage, UsageStore
from mcp_skills_server.web.ui.pages.operation import Activity
from wire import DEADLINE, write_skill

pytestmark = pytest.mark.anyio
BODY = "Only who asks for this skill may read this."


async def test_a_bug_is_told_from_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_skill(tmp_path / "a")
    server, registry, seen = Server[Any]("mine"), Registry([tmp_path]), list[Event]()
    attach(server, registry, watch=False).events.subscribe(seen.append)
    monkeypatch.setattr(registry, "body", {}.pop)  # raises KeyError or TypeError
    async with Client(server, mode="legacy") as client:
        with pytest.raises(MCPError):
            await client.get_prompt("a")
    assert [(each.method, each.outcome) for each in seen][-1] == ("prompts/get", "failed")


def test_each_difference_of_the_catalogue_is_one_event(tmp_path: Path) -> None:
    plant(tmp_path, skills("gone", "edited", "same"))
    registry, seen = Registry([tmp_path]), list[Event]()
    Runtime(registry).events.subscribe(seen.append)
    registry.load()
    assert seen == []  # what the first scan finds is no difference
    (tmp_path / "gone" / "SKILL.md").unlink()
    plant(tmp_path, {"edited/SKILL.md": skill_md("edited", body="Other."), "torn/SKILL.md": "---\nname: [\n---\n"})
    registry.refresh()
    found = [(each.protocol, each.outcome, each.skills) for each in seen if each.outcome != "vanished"]
    assert found == [("catalogue", "changed", ("edited",)), ("catalogue", "appeared", ("torn",))]
    digest = registry.snapshot.skills["edited"].files["SKILL.md"].digest
    assert [use.digest for each in seen for use in each.uses if use.skill == "edited"] == [digest]


async def test_what_was_read_before_a_retry_is_not_counted(tmp_path: Path, server: Events, seen: list[Event]) -> None:
    registry, tries = loaded(plant(tmp_path, {"a/SKILL.md": skill_md("a"), "a/b.md": "b"})), list[bytes]()

    async def handler(view: View) -> bytes:
        tries.append(await view.read(view.snapshot.skills["a"], ["b.md", "SKILL.md"][len(tries)]))
        if len(tries) == 1:
            raise StaleFileError(str(tmp_path / "a" / "SKILL.md"))
        return tries[-1]

    with server.serving(), events.Request("mcp", "x", principal=None):
        raw = await retry_when_stale(registry, handler)
    assert [(each.bytes, [use.file for use in each.uses]) for each in seen] == [(len(raw), ["SKILL.md"])]
    assert tries == [b"b", raw]


async def test_a_request_that_is_taken_back_is_cancelled(server: Events, seen: list[Event]) -> None:
    request = events.Request
    with server.serving(), anyio.CancelScope() as scope, request("mcp", "x" * 500, principal=None, host="y" * 500):
        scope.cancel()
        await anyio.lowlevel.checkpoint()
    (event,) = seen
    assert event.outcome == "cancelled" and len(event.method) == 200 and len(event.host or "") == 200


def test_a_run_that_no_request_caused_is_an_event_too(server: Events, seen: list[Event]) -> None:
    with server.serving():
        with events.Request("mcp", "x", principal=None):
            pass
        events.record_run("a", "scripts/x.py", "sha256:0")
    assert not events.has_readers()  # outside of the server
    assert [(each.protocol, each.outcome, each.uses) for each in seen[1:]] == [
        (events.LIBRARY, "begun", (Use("run", "a", "scripts/x.py", "sha256:0"),))
    ]


def test_without_a_reader_nothing_is_gathered(server: Events) -> None:
    for each in (events.observe("mcp", "x"), server.serving()):
        with each, events.observe("mcp", "x") as request:
            assert request is None


def test_a_bug_of_a_reader_costs_neither_the_others_nor_the_request(
    server: Events, seen: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    last: list[Event] = []
    end = server.subscribe(lambda _: {}["a bug"])
    server.subscribe(last.append)
    for _ in range(2):
        with server.serving(), events.observe("mcp", "x"):
            pass
        end()
    assert len(seen) == len(last) == 2 and caplog.text.count("a reader of events failed") == 1


@pytest.mark.parametrize(("keeps", "question"), [(True, "how?"), (False, "")])
def test_an_event_says_who_asked_and_what_came_of_it(
    server: Events, seen: list[Event], keeps: bool, question: str
) -> None:
    server.keeps_questions = keeps
    token = events.request_id.set("first")
    with server.serving(), events.Request("mcp", "x", principal=Principal("token", "ann")) as request:
        events.record_search("how?", 2)
        events.record_use(Use("dropped", "a", "SKILL.md", ""))
        request.code = -32000
    events.request_id.reset(token)
    (found,) = seen
    assert (found.request, found.principal, found.found, found.code) == ("first", "token:ann", 2, -32000)
    assert found.question == question and found.milliseconds < 10_000 and found.bytes == 0


async def test_two_servers_in_one_process_share_no_reader(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Invariant 9 of the architecture: no log, audit, metric, usage, trace or activity."""
    caplog.set_level(logging.DEBUG, logger="mcp_skills_server.telemetry.log")
    server, quiet = Server[Any]("read"), Server[Any]("not read")
    for name in "ab":
        write_skill(tmp_path / name / name)
    own = attach(server, Registry([tmp_path / "a"]), watch=False).events
    other = attach(quiet, Registry([tmp_path / "b"]), watch=False)
    metrics, activity, seen = Metrics(dict, ("resources/read",)), Activity(), list[Event]()
    AuditLog(str(tmp_path / "audit"), required=True).subscribe_to(own)
    metrics.subscribe_to(own)
    own.subscribe(activity.take)
    Tracing(TracerProvider(shutdown_on_exit=False), (), lambda _: None).subscribe_to(own)
    log_requests(own)
    store = UsageStore(str(tmp_path / "usage.db"))
    stop = Usage(store, questions=True).start(own)
    other.events.subscribe(seen.append)
    with anyio.fail_after(DEADLINE):
        async with Client(server) as one, Client(quiet) as two:
            for client, name in ((one, "a"), (two, "b")):
                await client.read_resource(f"skill://{name}/SKILL.md")
                await client.call_tool("skills_search", {"query": "qqqqqq"})
    write_skill(tmp_path / "b" / "c")
    other.registry.refresh()
    stop()
    assert [each.skills for each in seen if each.uses] == [("b",), ("c",)]
    assert all(each.question == "" and each.trace is None for each in seen)
    lines = (tmp_path / "audit").read_text().splitlines()
    assert {json.loads(each).get("skill") for each in lines} == {None, "a"}
    (line,) = (each for each in caplog.messages if "resources/read" in each)
    assert line.startswith("resources/read of a: ok")
    assert {each.labels.get("skill") for family in metrics.registry.collect() for each in family.samples} == {None, "a"}
    assert sum(each.requests for each in activity.clients()) == len(caplog.messages)
    assert [each.name for each in store.report("skill", 2).lines if each.name] == ["a"]


def test_the_log_has_a_line_for_each_request_at_debug_alone(server: Events, caplog: pytest.LogCaptureFixture) -> None:
    end = log_requests(server)
    with server.serving():
        for level in (logging.INFO, logging.DEBUG):
            caplog.set_level(level, logger="mcp_skills_server")
            assert caplog.messages == []
            principal = Principal("token", "alice")
            with events.Request("mcp", "skills/get", principal=principal, host="a host") as request:
                request.add("load", "acme/refunds", "SKILL.md", "sha256:0", 5)
        server.emit(Event(0, events.CATALOGUE, "", "appeared", uses=(Use("", "new", "SKILL.md", ""),)))
        (line,) = caplog.messages
        assert line.startswith("skills/get of acme/refunds: ok in ") and line.endswith(" ms (mcp, token:alice, a host)")
        with events.Request("mcp", "skills/get", principal=None) as request:
            for number in range(25):
                request.add("read", f"s{number}" * 200, "SKILL.md", "")
        line = caplog.messages[-1]
        assert "s19s" in line and "s20s" not in line and " and 5 more: ok in " in line and len(line) < 5_000
        server.emit(Event(0, "mcp", "x", "failed", milliseconds=1.23456))
        fields = {"protocol": "mcp", "method": "x", "outcome": "failed", "milliseconds": 1.235}
        assert vars(caplog.records[-1])["fields"] == fields
        events.emit_refusal("POST", "token")
        assert (
            "POST: refused (token) in " in caplog.messages[-1]
            and vars(caplog.records[-1])["fields"]["reason"] == "token"
        )
        assert [hasattr(each, "repeats") for each in caplog.records] == [
            False,
            False,
            False,
            True,
        ]  # or strangers flood it
        end()
        with events.Request("mcp", "skills/get", principal=None):
            pass
    assert len(caplog.messages) == 4
