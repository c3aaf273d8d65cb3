"""OpenTelemetry spans of requests: names, parents, attributes, export."""

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
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mcp_skills_server import Registry, attach
from mcp_skills_server.dialects.runtime import canonical
from mcp_skills_server.server.eras import LEGACY
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.events import Event, Events, Trace, Use
from mcp_skills_server.telemetry.tracing import Tracing, _LoggingExporter
from tables import each_row
from web.http_wire import JSON, client, http_serving
from wire import DEADLINE, VERSIONS, write_skill

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
OTHER_PARENT = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
BODY = "The content of a skill."


def event(method: str = "skills/get", **more: Any) -> Event:
    return Event(**{"time": 1000.0, "protocol": "mcp", "method": method, "outcome": "ok", "milliseconds": 5.0, **more})


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(publisher: Events, exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    publisher.subscribe(Tracing(provider, (*LEGACY.shapes, "read_skill_file"), canonical).record)
    return provider


@pytest.fixture
def spans(publisher: Events, provider: TracerProvider, exporter: InMemorySpanExporter) -> Callable[..., Any]:
    """A function that publishes events and returns their spans."""

    def spans_of(*published: Event) -> tuple[ReadableSpan, ...]:
        exporter.clear()
        for event in published:
            publisher.emit(event)
        return exporter.get_finished_spans()

    return spans_of


@pytest.mark.anyio
@pytest.mark.parametrize(("mode", "era"), [("legacy", "legacy"), ("auto", "modern")])
async def test_request_is_one_event_and_one_span_without_content(
    tmp_path: Path, mode: Any, era: Any, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    folder = write_skill(tmp_path / "a", body=BODY)
    server, seen = Server[Any]("mine"), list[Event]()
    attachment = attach(server, Registry([tmp_path]), watch=False)
    attachment.events.subscribe(seen.append)
    attachment.events.subscribe(Tracing(provider, LEGACY.shapes, canonical).record)
    with anyio.fail_after(DEADLINE):
        async with Client(server, mode=mode) as mcp:
            await mcp.read_resource("skill://a/SKILL.md")
            with pytest.raises(MCPError):
                await mcp.read_resource("skill://none/SKILL.md")
            await mcp.get_prompt("a")
            loaded = await mcp.call_tool("skills_load", {"names": ["a"]})
            await mcp.call_tool("skills_load", {"names": ["none"]})
            with pytest.raises(MCPError):
                await mcp.call_tool("made-up", {})
    digest = attachment.registry.snapshot.skills["a"].files["SKILL.md"].digest
    size = len((folder / "SKILL.md").read_bytes())
    methods, all_spans = {"resources/read", "prompts/get", "tools/call"}, exporter.get_finished_spans()
    requests = [event for event in seen if event.method in methods]
    spans = [span for span in all_spans if span.name.split()[0] in methods]
    assert [
        (span.name, event.outcome, event.skills, event.bytes) for span, event in zip(spans, requests, strict=True)
    ] == [
        ("resources/read", "ok", ("a",), size),
        ("resources/read", "refused", (), 0),
        ("prompts/get a", "ok", ("a",), size),
        ("tools/call skills_load", "ok", ("a",), size),
        ("tools/call skills_load", "refused", (), 0),
        ("tools/call", "refused", (), 0),
    ]
    assert requests[0].uses[0][:4] == ("load", "a", "SKILL.md", digest)
    assert {(event.protocol, event.era, event.principal) for event in requests} == {("mcp", era, None)}
    assert all(event.host and event.milliseconds > 0 and event.time > 0 for event in requests)
    read, missing, prompt, load, refused, unknown = (dict(span.attributes or {}) for span in spans)
    assert (read["gen_ai.skill.name"], read["skills.digest"]) == ("a", digest)
    assert read["mcp.protocol.version"] == VERSIONS[era]
    assert (read["skills.action"], read["skills.file"], read["skills.outcome"]) == ("load", "SKILL.md", "ok")
    assert (read["mcp.method.name"], read["network.transport"]) == ("resources/read", "pipe")
    assert "jsonrpc.request.id" in read and "error.type" not in read
    assert missing["error.type"] == missing["rpc.response.status_code"] in {"-32002", "-32602"}
    assert prompt["gen_ai.prompt.name"] == "a"
    assert (load["gen_ai.operation.name"], load["gen_ai.tool.name"]) == ("execute_tool", "skills_load")
    assert refused["error.type"] == "tool_error"
    assert spans[4].status.status_code is trace.StatusCode.ERROR
    assert "gen_ai.tool.name" not in unknown
    handle = str((loaded.structured_content or {})["session"])
    assert BODY not in repr(seen)
    assert handle not in repr(seen)
    exported = "".join(span.to_json() for span in all_spans)
    assert not [text for text in (BODY, "none", "made-up", handle) if text in exported]


def test_span_has_times_attributes_and_a_bounded_name(spans: Callable[..., Any]) -> None:
    prompt = event("prompts/get", trace=Trace({}, {}, target="no-such-skill"))
    get, made_up, prompt = spans(event(), event("made/up"), prompt)
    assert (get.start_time, get.end_time, get.kind) == (10**12, 10**12 + 5 * 10**6, trace.SpanKind.SERVER)
    assert "skills.bytes" not in get.attributes and get.instrumentation_scope.name == "mcp-skills-server"
    assert (made_up.name, prompt.name) == ("_OTHER", "prompts/get")
    assert "made/up" not in made_up.to_json() and "no-such-skill" not in prompt.to_json()
    (span,) = spans(event("tools/call", uses=tuple(Use("load", f"s{n}", "SKILL.md", "") for n in range(100))))
    assert span.attributes["gen_ai.skill.name"] == "s0"
    assert len(span.events) == 31, "further skills are span events"
    second_skill = {"gen_ai.skill.name": "s1", "skills.file": "SKILL.md", "skills.action": "load"}
    assert dict(span.events[0].attributes) == second_skill
    fields: dict[str, Any] = {"principal": "token:a", "host": "h", "request": "r", "found": 0, "bytes": 5}
    (span,) = spans(event(**fields))
    assert {f"skills.{key}": value for key, value in fields.items()}.items() <= dict(span.attributes).items()
    for outcome, code, error_type in (
        ("failed", None, "failed"),
        ("refused", -32602, "-32602"),
        ("refused", None, "refused"),
    ):
        (span,) = spans(event(outcome=outcome, code=code))
        assert span.attributes["error.type"] == error_type
        assert span.status.status_code is trace.StatusCode.ERROR
    (span,) = spans(event("tools/call", outcome="failed"))
    assert span.attributes["error.type"] == "failed"
    rpc, discovery = spans(event("read_skill_file", protocol="skills-protocol"), event("GET", protocol="discovery"))
    assert rpc.attributes["rpc.method"] == "read_skill_file" and discovery.attributes["http.request.method"] == "_OTHER"


def test_message_context_is_the_parent_and_http_context_a_link(spans: Callable[..., Any]) -> None:
    for message, http, links in (
        (PARENT, {}, []),
        ({}, PARENT, []),
        (PARENT, OTHER_PARENT, ["a" * 32]),
        ({"traceparent": "00-1-2"}, PARENT, []),  # an invalid context is ignored
    ):
        (span,) = spans(event(trace=Trace(message, http)))
        assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE_ID, SPAN_ID)
        assert span.context.trace_id == span.parent.trace_id
        assert [f"{link.context.trace_id:032x}" for link in span.links] == links
    (span,) = spans(event(trace=Trace({}, {})))
    assert span.parent is None


def test_unsampled_refused_and_non_request_events_have_no_span(publisher: Events, spans: Callable[..., Any]) -> None:
    unsampled = {"traceparent": PARENT["traceparent"][:-1] + "0"}
    with publisher.serving():
        events.emit_refusal("POST", "token")
    assert not spans(
        event(trace=Trace(unsampled, {})),
        event(protocol=events.CATALOGUE, outcome="changed"),
        event("tools/call", outcome="begun"),
        event(outcome="refused", reason="token"),
    )


def test_sdk_span_is_reused_and_other_current_span_is_the_parent(
    provider: TracerProvider, exporter: InMemorySpanExporter, spans: Callable[..., Any]
) -> None:
    with provider.get_tracer("mcp-python-sdk").start_as_current_span("tools/call"):
        assert not spans(event("tools/call", uses=(Use("load", "a", "SKILL.md", "sha256:1"),)))
    (span,) = exporter.get_finished_spans()
    assert (span.name, (span.attributes or {})["gen_ai.skill.name"]) == ("tools/call", "a")
    with provider.get_tracer("a web framework").start_as_current_span("POST /mcp") as outer:
        (inner,) = spans(event(trace=Trace({}, OTHER_PARENT)))
    assert inner.parent.span_id == outer.get_span_context().span_id


@each_row(("meta", "kept"), [
    (PARENT, PARENT),
    ({**PARENT, "tracestate": "a=b", "baggage": "user=ann"}, {**PARENT, "tracestate": "a=b"}),
    ({"traceparent": "x" * 513}, {}),
    ({"traceparent": "x" * 512, "tracestate": "y" * 513}, {"traceparent": "x" * 512}),
    ({**PARENT, "tracestate": "y" * 512}, {**PARENT, "tracestate": "y" * 512}),
    ({"traceparent": 7}, {}),
    ({**PARENT, "tracestate": ["a"]}, PARENT),
    (7, {}),
    (None, {}),
])  # fmt: skip
def test_trace_context_of_message_is_bounded(meta: object, kept: dict[str, str]) -> None:
    extracted = events.trace_of("tools/call", {"_meta": meta, "name": "n" * 500}, 7)
    assert (extracted.message, extracted.id, len(extracted.target)) == (kept, "7", 200)
    for method, name in (("skills/get", "a"), ("tools/call", 7)):
        assert events.trace_of(method, {"name": name}) == Trace({}, {}, "", "", "")


@contextmanager
def collector() -> Iterator[tuple[str, SimpleQueue[ExportTraceServiceRequest]]]:
    """Run an OTLP collector over HTTP. Yield its address and a queue of the requests that it receives."""
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

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()


def spans_named(name: str, request: ExportTraceServiceRequest) -> list[Any]:
    scopes = [scope for batch in request.resource_spans for scope in batch.scope_spans]
    return [span for scope in scopes for span in scope.spans if span.name == name]


def attributes(owner: Any) -> dict[str, str]:
    return {attribute.key: attribute.value.string_value for attribute in owner.attributes}


def test_export_failure_and_recovery_are_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = _LoggingExporter()
    success, failure = SpanExportResult.SUCCESS, SpanExportResult.FAILURE
    for result, levels in (
        (success, []), (failure, ["ERROR"]), (failure, []), (success, ["WARNING"]), (success, []), (failure, ["ERROR"]),
    ):  # fmt: skip
        caplog.clear()
        monkeypatch.setattr(OTLPSpanExporter, "export", lambda *_, result=result: result)
        assert exporter.export([]) is result
        assert [record.levelname for record in caplog.records] == levels


def test_collector_receives_one_span_per_request_and_the_rest_at_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(tmp_path / "a", body=BODY)
    call = b'{"jsonrpc":"2.0","id":"r1","method":"list_skills"}'
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
    with collector() as (endpoint, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        with http_serving(tmp_path, "--traces") as server:
            with client(server, "modern") as mcp:
                mcp.request("resources/read", {"uri": "skill://a/SKILL.md", "_meta": PARENT})
            server.send("POST", "/rpc", call, JSON | OTHER_PARENT)
            assert server.signal(signal.SIGTERM) == 0
        request = received.get(timeout=DEADLINE)
    (read,) = spans_named("resources/read", request)
    (rpc,) = spans_named("list_skills", request)
    assert (read.trace_id.hex(), read.parent_span_id.hex()) == (TRACE_ID, SPAN_ID)
    of_read = attributes(read)
    assert (of_read["gen_ai.skill.name"], of_read["network.transport"]) == ("a", "tcp")
    assert of_read["mcp.protocol.version"] == VERSIONS["modern"]
    assert rpc.trace_id.hex() == "a" * 32
    assert attributes(rpc)["jsonrpc.request.id"] == "r1"
    assert {attributes(batch.resource)["service.name"] for batch in request.resource_spans} == {"mcp-skills-server"}
    assert BODY not in repr(request)


def test_silent_collector_is_logged_once_and_does_not_delay_exit(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    with socket.create_server(("127.0.0.1", 0)) as port:
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://me:secret@127.0.0.1:{port.getsockname()[1]}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "0.2",
            "OTEL_BSP_SCHEDULE_DELAY": "10",
        }
        with http_serving(tmp_path, "--traces", environment=environment) as server:
            with client(server, "modern") as mcp:
                mcp.request("skills/list")
                server.wait_for_log("traces cannot be sent")
                mcp.request("skills/list")
            assert server.signal(signal.SIGTERM) == 0
            assert server.stderr.count(f"http://127.0.0.1:{port.getsockname()[1]}: traces cannot be sent") == 1
            assert not re.search("secret|export", server.stderr)
