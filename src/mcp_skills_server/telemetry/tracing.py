"""OpenTelemetry tracing: a reader of events that records one span for each request.

Names and attributes follow OpenTelemetry's conventions for MCP (GenAI conventions 1.42, in
development). `gen_ai.skill.name` is a proposal to them; other attributes begin with `skills.`. A
span holds the name of a tool or prompt, but no other argument, content, session handle, token or
error message.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

import mcp_skills_server
from mcp_skills_server.telemetry.events import CATALOGUE, Carrier, Event, Use

logger = logging.getLogger(__name__)

NAME: Final = "mcp-skills-server"
_SDK: Final = "mcp-python-sdk"
"""The tracer of the MCP SDK, which records its own span of a request under a global provider."""
_OTHER: Final = "_OTHER"
_MAX_USES: Final = 32
_FLUSH_S: Final = 1.0
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_W3C: Final = TraceContextTextMapPropagator()
ToolOf: TypeAlias = Callable[[str], str | None]


class Tracing:
    """A recorder of spans for requests, with bounded cardinality of their names.

    A method outside of `methods` becomes "_OTHER". `tool_of` returns the canonical name of a tool,
    or None if it does not exist.
    """

    def __init__(
        self, provider: trace.TracerProvider, methods: Collection[str], tool_of: ToolOf
    ) -> None:
        self._tracer = provider.get_tracer(NAME, mcp_skills_server.__version__)
        self._methods = frozenset(methods)
        self._tool_of = tool_of

    def record(self, event: Event) -> None:
        """Record a span for the end of a request; ignore changes, starts and refused clients."""
        if event.protocol == CATALOGUE or event.outcome == "begun" or event.reason:
            return
        ambient = trace.get_current_span()
        scope = getattr(ambient, "instrumentation_scope", None)
        if scope is not None and scope.name == _SDK and ambient.is_recording():
            # The SDK's span already has name, times and outcome.
            self._describe(ambient, event)
            return
        method = _OTHER
        if event.method in self._methods:
            method = event.method
        target = self._target(event)
        parent, links = _parent_and_links(event, ambient.get_span_context())
        span = self._tracer.start_span(
            f"{method} {target}" if target else method,
            parent,
            SpanKind.SERVER,
            links=links,
            start_time=int(event.time * 1e9),
            attributes=_request_attributes(event, method, target),
        )
        if span.is_recording():
            self._describe(span, event)
            if event.outcome != "ok":
                span.set_attribute("error.type", _error_type(event))
                if event.code is not None:
                    span.set_attribute("rpc.response.status_code", str(event.code))
                span.set_status(Status(StatusCode.ERROR))
        span.end(int((event.time + event.milliseconds / 1000) * 1e9))

    def _target(self, event: Event) -> str:
        """Return the tool or prompt, if it exists: span names must have low cardinality."""
        target = event.trace.target
        if event.method == "tools/call":
            return self._tool_of(target) or ""
        if event.uses:
            return target
        return ""

    def _describe(self, span: Span, event: Event) -> None:
        """Set the attributes that OpenTelemetry's conventions lack."""
        attributes: dict[str, AttributeValue | None] = {
            "skills.outcome": event.outcome,
            "skills.protocol": event.protocol,
            "skills.principal": event.principal,
            "skills.host": event.host,
            "skills.request": event.request,
            "skills.found": event.found,
            "skills.bytes": event.bytes or None,
        }
        if event.uses:
            attributes |= _use_attributes(event.uses[0])
        span.set_attributes({key: value for key, value in attributes.items() if value is not None})
        for use in event.uses[1:_MAX_USES]:
            span.add_event("skills.use", _use_attributes(use))


def _request_attributes(event: Event, method: str, target: str) -> dict[str, AttributeValue]:
    given = event.trace
    attributes: dict[str, AttributeValue] = {"network.transport": "pipe"}
    if event.address is not None:
        attributes = {"network.transport": "tcp", "network.protocol.name": "http"}
        attributes["client.address"] = event.address
    if event.protocol == "mcp":
        attributes["mcp.method.name"] = method
        if given.version:
            attributes["mcp.protocol.version"] = given.version
        if method == "tools/call":
            attributes["gen_ai.operation.name"] = "execute_tool"
        if target:
            attributes["gen_ai.tool.name" if method == "tools/call" else "gen_ai.prompt.name"] = (
                target
            )
    elif event.protocol == "discovery":
        attributes["http.request.method"] = method
    else:
        attributes["rpc.method"] = method
    if given.id:
        attributes["jsonrpc.request.id"] = given.id
    return attributes


def _use_attributes(use: Use) -> dict[str, AttributeValue]:
    attributes = {"skills.action": use.action, "skills.digest": use.digest}
    given = {key: value for key, value in attributes.items() if value}
    return {"gen_ai.skill.name": use.skill, "skills.file": use.file, **given}


def _error_type(event: Event) -> str:
    if event.code is not None:
        return str(event.code)
    if event.method == "tools/call" and event.outcome == "refused":
        return "tool_error"
    return event.outcome


def _parent_and_links(event: Event, ambient: SpanContext) -> tuple[Context, list[Link]]:
    """Return (parent context, links) of a span; the message's trace context overrides HTTP's."""
    around, own = _context(event.trace.http), _context(event.trace.message)
    if ambient.is_valid:
        around = trace.set_span_in_context(trace.NonRecordingSpan(ambient), Context())
    if own is None:
        return around or Context(), []
    if around is None:
        return own, []
    return own, [Link(trace.get_current_span(around).get_span_context())]


def _context(carrier: Carrier) -> Context | None:
    """Return the client's trace context, or None if it is missing or invalid."""
    if not carrier:
        return None
    context = _W3C.extract(carrier, Context())
    if trace.get_current_span(context).get_span_context().is_valid:
        return context
    return None


def make_provider() -> tuple[trace.TracerProvider, Callable[[], None]]:
    """Return a provider configured by OpenTelemetry's variables, and a function that shuts it down.

    The shutdown flushes for at most a second. A global provider, as of `opentelemetry-instrument`,
    is used instead if there is one, and is not shut down.
    """
    known = trace.get_tracer_provider()
    if isinstance(known, TracerProvider):
        return known, lambda: None
    service = {"service.name": NAME, "service.version": mcp_skills_server.__version__}
    resource = Resource.create(service).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_LoggingExporter()))
    # Its exporter would log every failed retry, which `_LoggingExporter` reports once.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)

    def stop() -> None:
        ending = threading.Thread(target=provider.shutdown, name="skills-traces-end", daemon=True)
        ending.start()
        ending.join(_FLUSH_S)

    return provider, stop


class _LoggingExporter(OTLPSpanExporter):
    """An exporter that logs only the first failure and the recovery."""

    _fails = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        fails = result is not SpanExportResult.SUCCESS
        if fails and not self._fails:
            words = "traces cannot be sent and are lost (requests go on)"
            logger.error("%s: %s; check that it accepts OTLP over HTTP", _shown_endpoint(), words)
        elif self._fails and not fails:
            logger.warning("%s: traces are sent again", _shown_endpoint())
        self._fails = fails
        return result


def _shown_endpoint() -> str:
    """Return the URL to which spans are exported, without user name and password."""
    given = (os.environ.get(name) for name in _ENDPOINTS)
    parts = urlsplit(next(filter(None, given), "http://localhost:4318"))
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
