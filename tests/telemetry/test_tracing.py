"""Spans of requests: what they are named, what they belong to, what they hold and what not."""

from __future__ import annotations

import signal
import socket
import threading
from contextlib import ExitStack
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
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mcp_skills_server import Registry, attach
from mcp_skills_server.dialects.runtime import canonical
from mcp_skills_server.server.eras import LEGACY
from mcp_skills_server.telemetry import events, tracing
from mcp_skills_server.telemetry.events import Event, Events, Trace, Use
from mcp_skills_server.telemetry.tracing import Tracing
from tables import each_row
from web.http_wire import client, http_serving
from wire import DEADLINE, serving, write_skill

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
OTHER = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
BODY = "Only who asks for this skill may read this."


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def provider() -> tuple[TracerProvider, InMemorySpanExporter]:
    made, exporter = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    made.add_span_processor(SimpleSpanProcessor(exporter))
    return made, exporter


@pytest.fixture
def server() -> Events:
    return Events()


@pytest.fixture
def tracer(provider: tuple[TracerProvider, InMemorySpanExporter], server: Events) -> InMemorySpanExporter:
    """The spans of a server."""
    Tracing(provider[0], (*LEGACY.shapes, "read_skill_file"), canonical).subscribe_to(server)
    return provider[1]


def spans(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    return list(exporter.get_finished_spans())


def event(method: str = "skills/get", **more: Any) -> Event:
    return Event(**{"time": 1000.0, "protocol": "mcp", "method": method, "outcome": "ok", "milliseconds": 5.0, **more})


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_request_is_one_span_and_holds_nothing_of_the_skill(
    tmp_path: Path, mode: Any, provider: tuple[TracerProvider, InMemorySpanExporter]
) -> None:
    write_skill(tmp_path / "a", body=BODY)
    server = Server[Any]("mine")
    attachment = attach(server, Registry([tmp_path]), watch=False)
    Tracing(provider[0], LEGACY.shapes, canonical).subscribe_to(attachment.events)
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
    found = [
        each for each in spans(provider[1]) if each.name.split()[0] in {"resources/read", "prompts/get", "tools/call"}
    ]
    assert [each.name for each in found] == [
        "resources/read",
        "resources/read",
        "prompts/get a",
        "tools/call skills_load",
        "tools/call skills_load",
        "tools/call",
    ]
    read, missing, prompt, load, refused, unknown = (dict(each.attributes or {}) for each in found)
    assert read["gen_ai.skill.name"] == "a" and str(read["skills.digest"]).startswith("sha256:")
    assert (read["skills.action"], read["skills.file"], read["skills.outcome"]) == ("load", "SKILL.md", "ok")
    assert (read["mcp.method.name"], read["network.transport"]) == ("resources/read", "pipe")
    assert read["mcp.protocol.version"] == {"legacy": "2025-11-25", "auto": "2026-07-28"}[mode]
    assert "jsonrpc.request.id" in read and "error.type" not in read
    assert missing["error.type"] == missing["rpc.response.status_code"] in {"-32002", "-32602"}
    assert prompt["gen_ai.prompt.name"] == "a"
    assert (load["gen_ai.operation.name"], load["gen_ai.tool.name"]) == ("execute_tool", "skills_load")
    assert refused["error.type"] == "tool_error" and found[4].status.status_code is trace.StatusCode.ERROR
    assert "gen_ai.tool.name" not in unknown
    said = "".join(each.to_json() for each in spans(provider[1]))
    assert BODY not in said and "none" not in said and "made-up" not in said
    assert str((loaded.structured_content or {})["session"]) not in said


def test_times_are_those_of_the_request(server: Events, tracer: InMemorySpanExporter) -> None:
    server.emit(event())
    (span,) = spans(tracer)
    assert (span.start_time, span.end_time, span.kind) == (10**12, 10**12 + 5 * 10**6, trace.SpanKind.SERVER)


def test_what_the_message_says_is_the_parent_and_what_http_says_a_link(
    server: Events, tracer: InMemorySpanExporter
) -> None:
    for message, http in ((PARENT, {}), ({}, PARENT), (PARENT, OTHER), ({}, {}), ({"traceparent": "00-1-2"}, PARENT)):
        server.emit(event(trace=Trace(message, http)))
    by_message, by_http, both, neither, torn = spans(tracer)
    for each in (by_message, by_http, both, torn):
        assert each.parent is not None and each.context is not None
        assert (f"{each.parent.trace_id:032x}", f"{each.parent.span_id:016x}") == (TRACE, SPAN)
        assert each.context.trace_id == each.parent.trace_id
    assert [f"{each.context.trace_id:032x}" for each in both.links] == ["a" * 32]
    assert neither.parent is None and not by_message.links and not by_http.links


def test_a_client_that_is_not_traced_has_no_span(server: Events, tracer: InMemorySpanExporter) -> None:
    server.emit(event(trace=Trace({"traceparent": PARENT["traceparent"][:-1] + "0"}, {})))
    assert spans(tracer) == []


def test_what_is_no_request_that_was_let_in_has_no_span(server: Events, tracer: InMemorySpanExporter) -> None:
    server.emit(event(protocol=events.CATALOGUE, outcome="changed"))
    server.emit(event("tools/call", outcome="begun"))
    with server.serving():
        events.emit_refusal("POST", "token")
    assert spans(tracer) == []


def test_names_of_spans_are_few(server: Events, tracer: InMemorySpanExporter) -> None:
    server.emit(event("made/up"))
    server.emit(event("prompts/get", trace=Trace({}, {}, target="no-such-skill")))
    assert [each.name for each in spans(tracer)] == ["_OTHER", "prompts/get"]
    assert "made/up" not in spans(tracer)[0].to_json() and "no-such-skill" not in spans(tracer)[1].to_json()


def test_further_skills_are_events_of_the_span_and_bounded(server: Events, tracer: InMemorySpanExporter) -> None:
    server.emit(event("tools/call", uses=tuple(Use("load", f"s{n}", "SKILL.md", "") for n in range(100))))
    (span,) = spans(tracer)
    assert (span.attributes or {})["gen_ai.skill.name"] == "s0" and len(span.events) == 31
    assert dict(span.events[0].attributes or {}) == {
        "gen_ai.skill.name": "s1",
        "skills.file": "SKILL.md",
        "skills.action": "load",
    }


def test_the_span_of_the_sdk_is_the_only_one_and_has_the_skill(
    provider: tuple[TracerProvider, InMemorySpanExporter], server: Events, tracer: InMemorySpanExporter
) -> None:
    with provider[0].get_tracer("mcp-python-sdk").start_as_current_span("tools/call"):
        server.emit(event("tools/call", uses=(Use("load", "a", "SKILL.md", "sha256:1"),)))
    (span,) = spans(tracer)
    assert (span.name, (span.attributes or {})["gen_ai.skill.name"]) == ("tools/call", "a")


def test_another_span_around_it_is_the_parent(
    provider: tuple[TracerProvider, InMemorySpanExporter], server: Events, tracer: InMemorySpanExporter
) -> None:
    with provider[0].get_tracer("a web framework").start_as_current_span("POST /mcp") as outer:
        server.emit(event(trace=Trace({}, OTHER)))
    inner, _ = spans(tracer)
    assert inner.parent is not None and inner.parent.span_id == outer.get_span_context().span_id


@each_row(
    ("meta", "kept"),
    [
        (PARENT, PARENT),
        ({**PARENT, "tracestate": "a=b", "baggage": "user=ann"}, {**PARENT, "tracestate": "a=b"}),
        ({"traceparent": "x" * 513}, {}),
        ({"traceparent": 7}, {}),
        ({**PARENT, "tracestate": ["a"]}, PARENT),
        (7, {}),
        (None, {}),
    ],
)
def test_what_a_message_says_is_bounded(meta: object, kept: dict[str, str]) -> None:
    found = events.trace_of("tools/call", {"_meta": meta, "name": "n" * 500}, 7)
    assert (found.message, found.id, len(found.target)) == (kept, "7", 200)
    assert events.trace_of("skills/get", {"name": "a"}) == Trace({}, {})


def test_without_a_tracer_nothing_is_looked_at(server: Events) -> None:
    seen: list[Event] = []
    server.subscribe(seen.append)
    with server.serving(), events.Request("mcp", "x", principal=None, trace=lambda: pytest.fail("it was looked at")):
        pass
    assert [each.trace for each in seen] == [None]


def test_an_address_is_shown_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:secret@collector:4318/x")
    assert tracing._shown_endpoint() == "http://collector:4318/x"  # pyright: ignore[reportPrivateUsage]


class Collector:
    """A receiver of OTLP over HTTP."""

    def __init__(self) -> None:
        self.received: SimpleQueue[ExportTraceServiceRequest] = SimpleQueue()
        received = self.received

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

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(DEADLINE)


def attributes(span: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in span.attributes}


def test_a_collector_gets_one_span_a_request_and_what_is_left_at_the_end(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", body=BODY)
    with Collector() as collector:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "600000"}
        with http_serving(tmp_path, "--traces", environment=environment) as server:
            with client(server, "modern") as one:
                message = one.message("resources/read", {"uri": "skill://a/SKILL.md"})
                message["params"]["_meta"] |= PARENT
                one.post(message)
            server.send(
                "POST",
                "/rpc",
                b'{"jsonrpc":"2.0","id":"r1","method":"list_skills"}',
                {"Content-Type": "application/json", **OTHER},
            )
            code, _ = server.signal(signal.SIGTERM)
        assert code == 0
        found = [
            ({each.key: each.value.string_value for each in batch.resource.attributes}, span)
            for batch in collector.received.get(timeout=DEADLINE).resource_spans
            for scope in batch.scope_spans
            for span in scope.spans
        ]
    reads = [span for _, span in found if span.name == "resources/read"]
    (rpc,) = [span for _, span in found if span.name == "list_skills"]
    assert [span.trace_id.hex() for span in reads] == [TRACE] and reads[0].parent_span_id.hex() == SPAN
    assert attributes(reads[0])["gen_ai.skill.name"] == "a" and attributes(reads[0])["network.transport"] == "tcp"
    assert rpc.trace_id.hex() == "a" * 32 and attributes(rpc)["jsonrpc.request.id"] == "r1"
    assert {resource["service.name"] for resource, _ in found} == {"mcp-skills-server"}
    assert BODY not in repr(found)


@each_row(
    ("transport", "era", "version"),
    [
        ("stdio", "legacy", "2025-11-25"),
        ("stdio", "modern", "2026-07-28"),
        ("http", "legacy", "2025-11-25"),
        ("http", "modern", "2026-07-28"),
    ],
)
def test_a_span_says_which_revision_of_the_protocol_is_spoken(
    tmp_path: Path, transport: str, era: Any, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(tmp_path / "a")
    with Collector() as collector:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "10"}
        with ExitStack() as stack:
            if transport == "stdio":
                for name, value in environment.items():
                    monkeypatch.setenv(name, value)
                one: Any = stack.enter_context(serving(tmp_path, "--traces", era=era))
            else:
                server = stack.enter_context(http_serving(tmp_path, "--traces", environment=environment))
                one = stack.enter_context(client(server, era))
            one.request("skills/list")
            found: list[Any] = []
            while not found:  # a collector gets them in parts
                batches = collector.received.get(timeout=DEADLINE).resource_spans
                every = [span for batch in batches for scope in batch.scope_spans for span in scope.spans]
                found = [each for each in every if each.name == "skills/list"]
    assert [attributes(each)["mcp.protocol.version"] for each in found] == [version]


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
            code, _ = server.signal(signal.SIGTERM)
            assert code == 0 and server.stderr.count("traces cannot be sent") == 1
            assert "Traceback" not in server.stderr and "secret" not in server.stderr
