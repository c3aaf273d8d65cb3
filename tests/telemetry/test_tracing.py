"""Spans of requests: what they are named, what they belong to, what they hold and what not."""

from __future__ import annotations

import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mcp_skills_server import Registry, attach
from mcp_skills_server.dialects.runtime import canonical
from mcp_skills_server.server.attach import make_standalone_server
from mcp_skills_server.server.eras import LEGACY
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.events import Event, Events, Trace, Use
from mcp_skills_server.telemetry.tracing import Tracing, _LoggingExporter
from tables import each_row
from web.http_wire import JSON, client, http_serving
from wire import DEADLINE, VERSIONS, serving, write_skill

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
OTHER = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
BODY = "Only who asks for this skill may read this."


def event(method: str = "skills/get", **more: Any) -> Event:
    return Event(**{"time": 1000.0, "protocol": "mcp", "method": method, "outcome": "ok", "milliseconds": 5.0, **more})


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(publisher: Events, exporter: InMemorySpanExporter) -> TracerProvider:
    made = TracerProvider(shutdown_on_exit=False)
    made.add_span_processor(SimpleSpanProcessor(exporter))
    Tracing(made, (*LEGACY.shapes, "read_skill_file"), canonical).subscribe_to(publisher)
    return made


@pytest.fixture
def spans(publisher: Events, provider: TracerProvider, exporter: InMemorySpanExporter) -> Callable[..., Any]:

    def of(*given: Event) -> tuple[ReadableSpan, ...]:
        exporter.clear()
        for each in given:
            publisher.emit(each)
        return exporter.get_finished_spans()

    return of


@pytest.mark.anyio
@pytest.mark.parametrize(("mode", "era"), [("legacy", "legacy"), ("auto", "modern")])
async def test_a_request_is_one_event_and_one_span_and_holds_nothing_of_the_skill(
    tmp_path: Path, mode: Any, era: Any, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    folder = write_skill(tmp_path / "a", body=BODY)
    server, seen = Server[Any]("mine"), list[Event]()
    attachment = attach(server, Registry([tmp_path]), watch=False)
    attachment.events.subscribe(seen.append)
    Tracing(provider, LEGACY.shapes, canonical).subscribe_to(attachment.events)
    with anyio.fail_after(DEADLINE):
        async with Client(server, mode=mode) as one:
            await one.read_resource("skill://a/SKILL.md")
            with pytest.raises(MCPError):
                await one.read_resource("skill://none/SKILL.md")
            await one.get_prompt("a")
            loaded = await one.call_tool("skills_load", {"names": ["a"]})
            await one.call_tool("skills_load", {"names": ["none"]})
            with pytest.raises(MCPError):
                await one.call_tool("made-up", {})
    digest, size = (
        attachment.registry.snapshot.skills["a"].files["SKILL.md"].digest,
        len((folder / "SKILL.md").read_bytes()),
    )
    methods, every = {"resources/read", "prompts/get", "tools/call"}, exporter.get_finished_spans()
    requests = [each for each in seen if each.method in methods]
    found = [each for each in every if each.name.split()[0] in methods]
    assert [(span.name, each.outcome, each.skills, each.bytes) for span, each in zip(found, requests, strict=True)] == [
        ("resources/read", "ok", ("a",), size),
        ("resources/read", "refused", (), 0),
        ("prompts/get a", "ok", ("a",), size),
        ("tools/call skills_load", "ok", ("a",), size),
        ("tools/call skills_load", "refused", (), 0),
        ("tools/call", "refused", (), 0),
    ]
    assert requests[0].uses == (Use("load", "a", "SKILL.md", digest),)
    assert {(each.protocol, each.era, each.principal) for each in requests} == {("mcp", era, None)}
    assert all(each.host and each.milliseconds > 0 and each.time > 0 for each in requests)
    read, missing, prompt, load, refused, unknown = (dict(each.attributes or {}) for each in found)
    assert (read["gen_ai.skill.name"], read["skills.digest"]) == ("a", digest)
    assert read["mcp.protocol.version"] == VERSIONS[era]
    assert (read["skills.action"], read["skills.file"], read["skills.outcome"]) == ("load", "SKILL.md", "ok")
    assert (read["mcp.method.name"], read["network.transport"]) == ("resources/read", "pipe")
    assert "jsonrpc.request.id" in read and "error.type" not in read
    assert missing["error.type"] == missing["rpc.response.status_code"] in {"-32002", "-32602"}
    assert prompt["gen_ai.prompt.name"] == "a"
    assert (load["gen_ai.operation.name"], load["gen_ai.tool.name"]) == ("execute_tool", "skills_load")
    assert refused["error.type"] == "tool_error" and found[4].status.status_code is trace.StatusCode.ERROR
    assert "gen_ai.tool.name" not in unknown
    handle = str((loaded.structured_content or {})["session"])
    assert BODY not in repr(seen) and handle not in repr(seen)
    said = "".join(each.to_json() for each in every)
    assert not [each for each in (BODY, "none", "made-up", handle) if each in said]


def test_a_span_has_the_times_of_its_request_and_one_of_few_names(spans: Callable[..., Any]) -> None:
    prompt = event("prompts/get", trace=Trace({}, {}, target="no-such-skill"))
    get, made_up, prompt = spans(event(), event("made/up"), prompt)
    assert (get.start_time, get.end_time, get.kind) == (10**12, 10**12 + 5 * 10**6, trace.SpanKind.SERVER)
    assert "skills.bytes" not in get.attributes and get.instrumentation_scope.name == "mcp-skills-server"
    assert (made_up.name, prompt.name) == ("_OTHER", "prompts/get")
    assert "made/up" not in made_up.to_json() and "no-such-skill" not in prompt.to_json()
    (span,) = spans(event("tools/call", uses=tuple(Use("load", f"s{n}", "SKILL.md", "") for n in range(100))))
    assert span.attributes["gen_ai.skill.name"] == "s0" and len(span.events) == 31, "further skills are events"
    further = {"gen_ai.skill.name": "s1", "skills.file": "SKILL.md", "skills.action": "load"}
    assert dict(span.events[0].attributes) == further
    about: dict[str, Any] = {"principal": "token:a", "host": "h", "request": "r", "found": 0, "bytes": 5}
    (span,) = spans(event(**about))
    assert {f"skills.{key}": value for key, value in about.items()}.items() <= dict(span.attributes).items()
    for outcome, code, said in (
        ("failed", None, "failed"),
        ("refused", -32602, "-32602"),
        ("refused", None, "refused"),
    ):
        (span,) = spans(event(outcome=outcome, code=code))
        assert span.attributes["error.type"] == said and span.status.status_code is trace.StatusCode.ERROR
    (span,) = spans(event("tools/call", outcome="failed"))
    assert span.attributes["error.type"] == "failed"
    rpc, found = spans(event("read_skill_file", protocol="skills-protocol"), event("GET", protocol="discovery"))
    assert rpc.attributes["rpc.method"] == "read_skill_file" and found.attributes["http.request.method"] == "_OTHER"


def test_what_the_message_says_is_the_parent_and_what_http_says_a_link(spans: Callable[..., Any]) -> None:
    said = (PARENT, {}), ({}, PARENT), (PARENT, OTHER), ({"traceparent": "00-1-2"}, PARENT), ({}, {})
    *traced, neither = spans(*(event(trace=Trace(*each)) for each in said))
    for each in traced:
        assert (f"{each.parent.trace_id:032x}", f"{each.parent.span_id:016x}") == (TRACE, SPAN)
        assert each.context.trace_id == each.parent.trace_id
    assert [[f"{link.context.trace_id:032x}" for link in each.links] for each in traced] == [[], [], ["a" * 32], []]
    assert neither.parent is None


def test_no_span_is_for_an_untraced_client_nor_for_what_is_no_request_that_was_let_in(
    publisher: Events, spans: Callable[..., Any]
) -> None:
    untraced = {"traceparent": PARENT["traceparent"][:-1] + "0"}
    with publisher.serving():
        events.emit_refusal("POST", "token")
    assert not spans(
        event(trace=Trace(untraced, {})),
        event(protocol=events.CATALOGUE, outcome="changed"),
        event("tools/call", outcome="begun"),
        event(outcome="refused", reason="token"),
    )


def test_the_span_of_the_sdk_is_the_only_one_and_another_one_is_the_parent(
    provider: TracerProvider, exporter: InMemorySpanExporter, spans: Callable[..., Any]
) -> None:
    with provider.get_tracer("mcp-python-sdk").start_as_current_span("tools/call"):
        assert not spans(event("tools/call", uses=(Use("load", "a", "SKILL.md", "sha256:1"),)))
    (span,) = exporter.get_finished_spans()
    assert (span.name, (span.attributes or {})["gen_ai.skill.name"]) == ("tools/call", "a")
    with provider.get_tracer("a web framework").start_as_current_span("POST /mcp") as outer:
        (inner,) = spans(event(trace=Trace({}, OTHER)))
    assert inner.parent.span_id == outer.get_span_context().span_id


def test_the_sdk_traces_where_a_provider_is_configured_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider, traces in ((trace.ProxyTracerProvider(), False), (TracerProvider(), True)):
        monkeypatch.setattr("mcp_skills_server.server.attach.get_tracer_provider", lambda found=provider: found)
        assert bool(make_standalone_server().middleware) is traces


@each_row(
    ("meta", "kept"),
    [
        (PARENT, PARENT),
        ({**PARENT, "tracestate": "a=b", "baggage": "user=ann"}, {**PARENT, "tracestate": "a=b"}),
        ({"traceparent": "x" * 513}, {}),
        ({"traceparent": "x" * 512, "tracestate": "y" * 513}, {"traceparent": "x" * 512}),
        ({**PARENT, "tracestate": "y" * 512}, {**PARENT, "tracestate": "y" * 512}),
        ({"traceparent": 7}, {}),
        ({**PARENT, "tracestate": ["a"]}, PARENT),
        (7, {}),
        (None, {}),
    ],
)
def test_what_a_message_says_is_bounded(meta: object, kept: dict[str, str]) -> None:
    found = events.trace_of("tools/call", {"_meta": meta, "name": "n" * 500}, 7)
    assert (found.message, found.id, len(found.target)) == (kept, "7", 200)
    for method, name in (("skills/get", "a"), ("tools/call", 7)):
        assert events.trace_of(method, {"name": name}) == Trace({}, {}, "", "", "")


def test_without_a_tracer_nothing_is_looked_at(publisher: Events, published: list[Event]) -> None:
    with publisher.serving(), events.Request("mcp", "x", principal=None, trace=lambda: pytest.fail("it was looked at")):
        pass
    assert [each.trace for each in published] == [None]


@contextmanager
def collector() -> Iterator[tuple[str, Callable[[], list[tuple[dict[str, str], Any]]]]]:
    """A receiver of OTLP over HTTP: its address, and the next spans it gets, each after its resource."""
    received: SimpleQueue[ExportTraceServiceRequest] = SimpleQueue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()
            if self.path == "/v1/traces":
                received.put(ExportTraceServiceRequest.FromString(body))

        def log_message(self, *_: Any) -> None:
            pass

    def take() -> list[tuple[dict[str, str], Any]]:
        return [
            (attributes(batch.resource), span)
            for batch in received.get(timeout=DEADLINE).resource_spans
            for scope in batch.scope_spans
            for span in scope.spans
        ]

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", take
        server.shutdown()


def attributes(span: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in span.attributes}


class Exporter(InMemorySpanExporter):
    is_shut_down = False
    result = SpanExportResult.SUCCESS

    def export(self, spans: Any) -> SpanExportResult:
        return self.result

    def shutdown(self) -> None:
        self.is_shut_down = True


def test_the_first_of_several_failures_and_the_recovery_are_lines(caplog: pytest.LogCaptureFixture) -> None:
    inner = Exporter()
    outer = _LoggingExporter(inner, "http://x")
    for result, levels in (("SUCCESS", []), ("FAILURE", ["ERROR"]), ("FAILURE", []), ("SUCCESS", ["WARNING"]),
                           ("SUCCESS", []), ("FAILURE", ["ERROR"])):  # fmt: skip
        caplog.clear()
        inner.result = SpanExportResult[result]
        assert outer.export([]) is inner.result
        assert [each.levelname for each in caplog.records] == levels
    outer.shutdown()
    assert inner.is_shut_down


@each_row("era", ["legacy", "modern"])
def test_a_collector_gets_one_span_a_request_and_what_is_left_at_the_end(tmp_path: Path, era: Any) -> None:
    write_skill(tmp_path / "a", body=BODY)
    call = b'{"jsonrpc":"2.0","id":"r1","method":"list_skills"}'
    with collector() as (endpoint, take):
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "600000"}
        with http_serving(tmp_path, "--traces", environment=environment) as server:
            with client(server, era) as one:
                one.request("resources/read", {"uri": "skill://a/SKILL.md", "_meta": PARENT})
            server.send("POST", "/rpc", call, JSON | OTHER)
            assert server.signal(signal.SIGTERM)[0] == 0
        found = take()
    (read,) = [span for _, span in found if span.name == "resources/read"]
    (rpc,) = [span for _, span in found if span.name == "list_skills"]
    assert (read.trace_id.hex(), read.parent_span_id.hex()) == (TRACE, SPAN)
    said = attributes(read)
    assert (said["gen_ai.skill.name"], said["network.transport"]) == ("a", "tcp")
    assert said["mcp.protocol.version"] == VERSIONS[era]
    assert rpc.trace_id.hex() == "a" * 32 and attributes(rpc)["jsonrpc.request.id"] == "r1"
    assert {resource["service.name"] for resource, _ in found} == {"mcp-skills-server"}
    assert BODY not in repr(found)


@each_row("era", ["legacy", "modern"])
def test_over_stdio_a_span_says_which_revision_is_spoken(
    tmp_path: Path, era: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(tmp_path / "a")
    with collector() as (endpoint, take):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
        with serving(tmp_path, "--traces", era=era) as wire:
            wire.request("skills/list")
            found: list[Any] = []
            while not found:  # a collector gets them in parts
                found = [span for _, span in take() if span.name == "skills/list"]
    assert [attributes(each)["mcp.protocol.version"] for each in found] == [VERSIONS[era]]


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_collector_that_is_away_costs_a_line_and_holds_up_no_end(tmp_path: Path, is_silent: bool) -> None:
    write_skill(tmp_path / "a")
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        if is_silent:
            port.listen()
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://me:secret@127.0.0.1:{port.getsockname()[1]}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "0.2",
            "OTEL_BSP_SCHEDULE_DELAY": "10",
        }
        with http_serving(tmp_path, "--traces", environment=environment) as server:
            with client(server, "modern") as one:
                one.request("skills/list")
                server.said("traces cannot be sent")
                one.request("skills/list")
            assert server.signal(signal.SIGTERM)[0] == 0
            said = f"http://127.0.0.1:{port.getsockname()[1]}: traces cannot be sent"
            assert server.stderr.count(said) == 1 and not re.search("secret|export", server.stderr)
