"""What happens is one event each, whichever protocol it came by, and costs nothing where nobody reads it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from mcp.client import Client
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from opentelemetry.sdk.trace import TracerProvider

from catalog.forest import loaded, plant, skill_md
from mcp_skills_server import Registry, Runtime, attach
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog.views import View, retry_when_stale
from mcp_skills_server.errors import StaleFileError
from mcp_skills_server.rpc.methods import Methods
from mcp_skills_server.rpc.server import Rpc
from mcp_skills_server.server.attach import make_server
from mcp_skills_server.server.entrance import principal
from mcp_skills_server.server.eras import MODERN
from mcp_skills_server.server.stdio import Connection
from mcp_skills_server.server.stdio import PendingRequest as McpRequest
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.audit import AuditLog
from mcp_skills_server.telemetry.events import Event, Events, Use
from mcp_skills_server.telemetry.log import log_requests
from mcp_skills_server.telemetry.metrics import Metrics
from mcp_skills_server.telemetry.tracing import Tracing
from mcp_skills_server.telemetry.usage import Usage, UsageStore
from mcp_skills_server.web.ui.pages.operation import Activity
from web.http_wire import MODERN_META
from wire import DEADLINE, write_skill

pytestmark = pytest.mark.anyio
BODY = "Only who asks for this skill may read this."


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def server() -> Events:
    """The events of a server."""
    return Events()


@pytest.fixture
def seen(server: Events) -> list[Event]:
    """What its readers are given."""
    found: list[Event] = []
    server.subscribe(found.append)
    return found


@pytest.mark.parametrize(("mode", "era"), [("legacy", "legacy"), ("auto", "modern")])
async def test_a_request_of_mcp_is_one_event(tmp_path: Path, mode: Any, era: str) -> None:
    folder = write_skill(tmp_path / "a", body=BODY)
    server, seen = Server[Any]("mine"), list[Event]()
    attachment = attach(server, Registry([tmp_path]), watch=False)
    attachment.events.subscribe(seen.append)
    with anyio.fail_after(DEADLINE):
        async with Client(server, mode=mode) as client:
            await client.read_resource("skill://a/SKILL.md")
            with pytest.raises(MCPError):
                await client.read_resource("skill://none/SKILL.md")
            await client.get_prompt("a")
            loaded = await client.call_tool("skills_load", {"names": ["a"]})
            await client.call_tool("skills_load", {"names": ["none"]})
    requests = [each for each in seen if each.method not in {"initialize", "server/discover", "tools/list"}]
    assert [(each.method, each.outcome, each.skills) for each in requests] == [
        ("resources/read", "ok", ("a",)),
        ("resources/read", "refused", ()),
        ("prompts/get", "ok", ("a",)),
        ("tools/call", "ok", ("a",)),
        ("tools/call", "refused", ()),
    ]
    skill = attachment.registry.snapshot.skills["a"]
    size = (folder / "SKILL.md").stat().st_size
    assert [each.bytes for each in requests] == [size, 0, size, size, 0]
    assert requests[0].uses == (Use("load", "a", "SKILL.md", skill.files["SKILL.md"].digest or ""),)
    assert {(each.protocol, each.era, each.principal) for each in requests} == {("mcp", era, None)}
    assert all(each.host and each.milliseconds > 0 and each.time > 0 for each in requests)
    handle = cast("dict[str, Any]", loaded.structured_content)["session"]
    assert BODY not in repr(seen) and handle not in repr(seen)


async def test_a_bug_is_told_from_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_skill(tmp_path / "a")
    server, registry, seen = Server[Any]("mine"), Registry([tmp_path]), list[Event]()
    attach(server, registry, watch=False).events.subscribe(seen.append)

    def broken(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(registry, "body", broken)
    async with Client(server, mode="legacy") as client:
        with pytest.raises(MCPError):
            await client.get_prompt("a")
    assert [(each.method, each.outcome) for each in seen][-1] == ("prompts/get", "failed")


async def test_a_call_of_the_skills_protocol_is_one_event(tmp_path: Path, server: Events, seen: list[Event]) -> None:
    write_skill(tmp_path / "a", body=BODY)
    rpc = Rpc(Methods(Runtime(loaded(tmp_path))))
    with server.serving():
        names = [each["name"] for each in (await ask(rpc, "list_skills"))["result"]["skills"]]
        name = next(each for each in names if each.endswith("a") and "guide" not in each)
        await ask(rpc, "read_skill_file", name=name, path="SKILL.md")
        await ask(rpc, "no_such_method")
    last = seen[-2:]
    assert [(each.protocol, each.outcome, each.skills) for each in last] == [
        ("skills-protocol", "ok", ("a",)),
        ("skills-protocol", "refused", ()),
    ]
    assert last[0].principal == "token:alice" and last[0].era is None and last[0].host is None
    assert len(seen) == 3


async def ask(rpc: Rpc, method: str, **params: Any) -> Any:
    raw = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    return json.loads(await rpc.answer(raw, "token:alice", Principal("token", "alice")) or b"")


def test_a_principal_is_a_name_and_no_token() -> None:
    user = AuthenticatedUser(AccessToken(token="a-secret", client_id="alice", scopes=[]))
    assert principal({"user": user}) == Principal("user", "alice")
    assert principal({}) is principal({"user": SimpleNamespace()}) is None


def test_each_difference_of_the_catalogue_is_one_event(tmp_path: Path) -> None:
    plant(tmp_path, {f"{name}/SKILL.md": skill_md(name) for name in ("gone", "edited", "same")})
    registry, seen = Registry([tmp_path]), list[Event]()
    Runtime(registry).events.subscribe(seen.append)
    registry.load()
    assert seen == []  # what the first scan finds is no difference
    (tmp_path / "gone" / "SKILL.md").unlink()
    plant(tmp_path, {"new/SKILL.md": skill_md("new"), "edited/SKILL.md": skill_md("edited", body="Other.")})
    plant(tmp_path, {"torn/SKILL.md": "---\nname: [\n---\n"})
    registry.refresh()
    assert [(each.protocol, each.outcome, each.skills) for each in seen if each.outcome != "vanished"] == [
        ("catalogue", "changed", ("edited",)),
        ("catalogue", "appeared", ("new",)),
        ("catalogue", "appeared", ("torn",)),
    ]


async def test_what_was_read_before_a_retry_is_not_counted(tmp_path: Path, server: Events, seen: list[Event]) -> None:
    plant(tmp_path, {"a/SKILL.md": skill_md("a")})
    registry = loaded(tmp_path)
    tries: list[bytes] = []

    async def handler(view: View) -> bytes:
        raw = await view.read(view.snapshot.skills["a"], "SKILL.md")
        tries.append(raw)
        if len(tries) == 1:
            raise StaleFileError(str(tmp_path / "a" / "SKILL.md"))
        return raw

    with server.serving(), events.Request("mcp", "x", principal=None):
        raw = await retry_when_stale(registry, handler)
    assert [each.bytes for each in seen] == [len(raw)] and tries == [raw, raw]


async def test_a_request_that_is_taken_back_is_cancelled(server: Events, seen: list[Event]) -> None:
    request = events.Request
    with server.serving(), anyio.CancelScope() as scope, request("mcp", "x" * 500, principal=None, host="y" * 500):
        scope.cancel()
        await anyio.lowlevel.checkpoint()
    (event,) = seen
    assert event.outcome == "cancelled" and len(event.method) == 200 and len(event.host or "") == 200


def test_a_run_that_no_request_caused_is_an_event_too(server: Events, seen: list[Event]) -> None:
    with server.serving():
        events.record_run("a", "scripts/x.py", "sha256:0")
    assert [(each.protocol, each.outcome, each.uses) for each in seen] == [
        (events.LIBRARY, "begun", (Use("run", "a", "scripts/x.py", "sha256:0"),))
    ]


def test_without_a_reader_nothing_is_gathered(server: Events) -> None:
    for each in (events.observe("mcp", "x"), server.serving()):
        with each, events.observe("mcp", "x") as request:
            assert request is None


def test_a_bug_of_a_reader_costs_neither_the_others_nor_the_request(
    server: Events, seen: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Event) -> None:
        raise KeyError("a bug")

    end = server.subscribe(broken)
    last: list[Event] = []
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
        request.code = -32000
    events.request_id.reset(token)
    (found,) = seen
    assert (found.request, found.principal, found.found, found.code) == ("first", "token:ann", 2, -32000)
    assert found.question == question and found.milliseconds < 10_000


async def test_two_servers_in_one_process_share_no_reader(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Invariant 9 of the architecture: no log, audit, metric, usage, trace or activity."""
    caplog.set_level(logging.DEBUG, logger="mcp_skills_server.telemetry.log")
    server, quiet = Server[Any]("read"), Server[Any]("not read")
    attachments = []
    for each, name in ((server, "a"), (quiet, "b")):
        write_skill(tmp_path / name / name)
        attachments.append(attach(each, Registry([tmp_path / name]), watch=False))
    metrics, activity, seen = Metrics(dict, ("resources/read",)), Activity(), list[Event]()
    usage = Usage(UsageStore(str(tmp_path / "usage.db")), questions=True)
    own = attachments[0].events
    AuditLog(str(tmp_path / "audit"), required=True).subscribe_to(own)
    metrics.subscribe_to(own)
    own.subscribe(activity.take)
    Tracing(TracerProvider(shutdown_on_exit=False), (), lambda _: None).subscribe_to(own)
    log_requests(own)
    stop = usage.start(own)
    attachments[1].events.subscribe(seen.append)
    with anyio.fail_after(DEADLINE):
        async with Client(server) as one, Client(quiet) as other:
            await one.read_resource("skill://a/SKILL.md")
            await other.read_resource("skill://b/SKILL.md")
            await other.call_tool("skills_search", {"query": "qqqqqq"})
            await one.call_tool("skills_search", {"query": "qqqqqq"})
    write_skill(tmp_path / "b" / "c")
    attachments[1].registry.refresh()
    stop()
    assert [each.skills for each in seen if each.uses] == [("b",), ("c",)]
    assert all(each.question == "" and each.trace is None for each in seen)
    lines = (tmp_path / "audit").read_text().splitlines()
    assert {json.loads(each).get("skill") for each in lines} == {None, "a"}
    (line,) = (each for each in caplog.messages if "resources/read" in each)
    assert line.startswith("resources/read of a: ok")
    assert {each.labels.get("skill") for family in metrics.registry.collect() for each in family.samples} == {None, "a"}
    assert sum(each.requests for each in activity.clients()) == len(caplog.messages)
    report = UsageStore(str(tmp_path / "usage.db")).report("skill", 2)
    assert [each.name for each in report.lines if each.name] == ["a"]


def test_the_log_has_a_line_for_each_request_at_debug_alone(server: Events, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="mcp_skills_server")
    end = log_requests(server)
    with server.serving(), events.observe("mcp", "skills/get"):
        pass
    assert not caplog.messages
    caplog.set_level(logging.DEBUG, logger="mcp_skills_server")
    principal = Principal("token", "alice")
    with server.serving():
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
        end()
        with events.observe("mcp", "skills/get"):
            pass
        assert len(caplog.messages) == 2


async def test_a_request_over_stdio_is_one_event(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", body=BODY)
    attachment, seen = attach(make_server(), loaded(tmp_path), watch=False), list[Event]()
    attachment.events.subscribe(seen.append)
    await attachment.ready()
    unused_pipes: Any = None
    connection = Connection(unused_pipes, attachment)
    with anyio.fail_after(DEADLINE), attachment.events.serving():
        for method, params, outcome, uses in (
            ("skills/get", {"uri": "skill://a/SKILL.md"}, "ok", 1),
            ("skills/get", {"uri": "skill://none/SKILL.md"}, "refused", 0),
            ("resources/read", {"uri": "skill://a/SKILL.md"}, "ok", 1),
            ("tools/call", {"name": "skills_load", "arguments": {"names": ["none"]}}, "refused", 0),
            ("resources/read", {}, "refused", 0),
            ("none", {}, "refused", 0),
        ):
            seen.clear()
            await connection.answer(McpRequest(1, method, {**params, "_meta": MODERN_META}, MODERN))
            assert [(each.method, each.outcome, len(each.uses)) for each in seen] == [(method, outcome, uses)]
            assert [each.host for each in seen] == ["wire"]
