"""The option of traces, and what makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mcp_skills_server.commands.fields import Options, flag
from mcp_skills_server.errors import missing_extra

if TYPE_CHECKING:
    from collections.abc import Callable


class TracingOptions(Options):
    """Whether traces are sent."""

    heading: ClassVar[str] = "Records"
    traces: bool = flag(
        "Send a span for each request by OTLP over HTTP, to where OTEL_EXPORTER_OTLP_ENDPOINT says. Needs the extra "
        "[otel]."
    )


def start_tracing(options: TracingOptions) -> Callable[[], None] | None:
    """Trace from now on. Returns what sends the rest within a second; None where nothing is traced.

    Raises:
        UsageError: the extra is not installed.
    """
    if not options.traces:
        return None
    try:
        from mcp_skills_server.telemetry.tracing import Tracing, make_provider
    except ImportError:
        raise missing_extra("traces", "otel") from None
    from mcp_skills_server.commands.metrics_options import known_methods
    from mcp_skills_server.dialects import runtime

    provider, stop = make_provider()
    Tracing(provider, known_methods(), runtime.canonical).start()
    return stop
