"""Features that record what happens: the audit log, usage counts, traces and metrics."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from mcp_skills_server import __version__
from mcp_skills_server.commands.features.feature import Feature, Server
from mcp_skills_server.commands.features.services import HttpServices
from mcp_skills_server.commands.fields import Options, file, flag, text
from mcp_skills_server.errors import UsageError
from mcp_skills_server.installation import missing_extra
from mcp_skills_server.model import Standing
from mcp_skills_server.telemetry.gauge import Gauge
from mcp_skills_server.web.part import Part

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.telemetry.audit import AuditLog
    from mcp_skills_server.telemetry.events import Events
    from mcp_skills_server.telemetry.metrics import Metrics
    from mcp_skills_server.telemetry.usage import Usage, UsageStore
    from mcp_skills_server.web.serving import ProbeAddress

logger = logging.getLogger(__name__)
OFF: Final = "off"
_SQLITE: Final = "sqlite:"
_USAGE: Final[Mapping[str, str]] = {
    "used": "Connections, sessions, streams and so on that are in use.",
    "limit": "The limit of each.",
    "evicted": "How many were ended early for another client.",
}
_RELOAD: Final = "skills_config_last_reload"


class AuditOptions(
    Options, heading="Audit log", example="--audit-log audit.jsonl --audit-required"
):
    audit_log: str | None = file(
        "Append a line of JSON to this file for every skill that is loaded, read or run, and for "
        "each client admitted or refused; - for stdout, over HTTP. Reopened on SIGHUP. If it "
        "cannot be written, no script runs."
    )
    audit_required: bool = flag(
        "With --audit-log: write the line before a file of a skill is sent, and refuse the "
        "request if that fails."
    )


def start_audit(options: AuditOptions, events: Events, *, stdout_is_free: bool) -> AuditLog | None:
    """Start the audit log of a server's events and return it; None without `--audit-log`."""
    if options.audit_log is None:
        if options.audit_required:
            raise UsageError("--audit-required is for the audit log; give --audit-log FILE too")
        return None
    from mcp_skills_server.telemetry.audit import STDOUT, AuditLog

    if options.audit_log == STDOUT and not stdout_is_free:
        raise UsageError("--audit-log -: stdout belongs to the protocol here; name a file")
    audit = AuditLog(options.audit_log, required=options.audit_required)
    audit.subscribe_to(events)
    return audit


class Audit(AuditOptions, Feature):
    """The audit log. If it cannot be written, no script starts."""

    log: AuditLog | None = None

    def start(self, server: Server) -> None:
        self.log = start_audit(self, server.runtime.events, stdout_is_free=server.over_http)

    def reopen(self) -> None:
        if self.log is not None:
            self.log.reopen()

    def gauges(self) -> Mapping[str, Gauge]:
        if self.log is None:
            return {}
        words = "Lines that could not be written to the audit log."
        return {"skills_audit_lost": Gauge(words, self.log.lost)}

    def state(self) -> str:
        return "" if self.log is None else self.log.state


class UsageOptions(Options, heading="Counts of uses", example="--usage sqlite:usage.db"):
    usage: str | None = text(
        "Count which skills are used: sqlite:FILE or off. By default in the user's "
        "state directory over HTTP, and off over stdio. The command 'usage' shows the counts.",
        "STORE",
        path="sqlite:(.+)",
    )
    usage_questions: bool = flag("Also keep the words of searches that found nothing.")


def store_at(store: str | None, *, make: bool = True) -> UsageStore | None:
    """Return the store that `--usage` names, by default in the user's state directory.

    None for off, and with `make=False` where there is no file yet.

    Raises:
        UsageError: the name is no store, or the store cannot be used.
    """
    if store == OFF:
        return None
    if store is None:
        from mcp_skills_server.directories import state_directory

        file = str(state_directory() / "uses.db")
        if make:
            os.makedirs(os.path.dirname(file), exist_ok=True)
    elif not store.startswith(_SQLITE) or store == _SQLITE:
        hint = "write sqlite:FILE, such as sqlite:/var/lib/skills/usage.db, or off"
        raise UsageError(f"--usage {store}: {hint}")
    else:
        file = store.removeprefix(_SQLITE)
    if not make and not os.path.exists(file):
        return None
    from mcp_skills_server.telemetry.usage import UsageStore

    return UsageStore(file)


class UsageCounts(UsageOptions, Feature):
    """Counts of uses. Without `--usage` they are kept only over HTTP."""

    store: UsageStore | None = None
    """The file of the counts; None if nothing is counted."""
    _usage: Usage | None = None
    _stop: Callable[[], None] | None = None

    def open_store(self, registry: Registry, *, over_http: bool) -> Sequence[str]:
        """Open the store if uses are counted, and return the paths of recently loaded skills.

        Over HTTP no path is returned, because it would disclose what other people load.
        """
        if self.usage is not None or over_http:
            try:
                self.store = store_at(self.usage)
            except (OSError, UsageError) as error:
                if self.usage is not None:
                    raise
                logger.warning("uses are not counted: %s", error)
                return ()
        if self.store is None:
            if self.usage_questions:
                hint = "give --usage sqlite:FILE too"
                raise UsageError(f"--usage-questions keeps words beside counts; {hint}")
            return ()
        if over_http:
            return ()
        return self.store.recently_loaded(roots=[root.address for root in registry.roots])

    def start(self, server: Server) -> None:
        if self.store is None:
            return
        from mcp_skills_server.telemetry.usage import Usage

        registry = server.opened.registry
        roots = [root.address for root in registry.roots]
        self._usage = Usage(self.store, questions=self.usage_questions, roots=roots)
        registry.subscribe(self._usage.on_changes)
        self._stop = self._usage.start(server.runtime.events)

    def stop(self) -> None:
        if self._stop is not None:
            self._stop()

    def gauges(self) -> Mapping[str, Gauge]:
        if self._usage is None:
            return {}
        return {
            "skills_usage_waiting": Gauge(
                "Different counts of uses in the queue to be written.", self._usage.waiting
            ),
            "skills_usage_lost": Gauge(
                "Uses that were not counted, because the queue was full.", self._usage.lost
            ),
        }


class Traces(Feature, heading="Traces", example="--traces"):
    """OpenTelemetry traces."""

    traces: bool = flag(
        "Send a span for each request by OTLP over HTTP, to OTEL_EXPORTER_OTLP_ENDPOINT. Needs "
        "the extra [otel]."
    )
    _stop: Callable[[], None] | None = None

    def start(self, server: Server) -> None:
        if not self.traces:
            return
        try:
            from mcp_skills_server.telemetry.tracing import Tracing, make_provider
        except ImportError:
            raise missing_extra("traces", "otel") from None
        from mcp_skills_server.dialects import runtime

        provider, self._stop = make_provider()
        server.runtime.events.subscribe(
            Tracing(provider, known_methods(), runtime.canonical).record
        )

    def stop(self) -> None:
        if self._stop is not None:
            self._stop()


def known_methods() -> frozenset[str]:
    """Return the methods of all protocols; metrics and traces do not name any other method."""
    from mcp_skills_server.dialects import skills_protocol
    from mcp_skills_server.server.eras import LEGACY, MODERN

    return frozenset((*LEGACY.shapes, *MODERN.shapes, *skills_protocol.METHODS, "GET", "HEAD"))


class PrometheusMetrics(
    Feature,
    heading="Probes and metrics (--transport http)",
    example="--metrics --probe-address 127.0.0.1:9464",
):
    """Prometheus metrics: counters of requests, and gauges of the server and all features."""

    metrics: bool = flag(
        "Show metrics for Prometheus at /metrics, to the clients that may use MCP. Needs the "
        "extra [metrics]."
    )
    probe_address: str | None = text(
        "Answer /healthz and /readyz at this address too, such as 127.0.0.1:9464, where they do "
        "not wait behind requests, and /metrics at this address only: to clients that reach it by "
        "an IP address or by a name of --allowed-host.",
        "HOST:PORT",
    )
    _server: Server
    _metrics: Metrics | None = None
    address: ProbeAddress | None = None
    """The checked `--probe-address`."""

    def start(self, server: Server) -> None:
        if not server.over_http:
            return
        self._server = server
        if self.metrics:
            try:
                from mcp_skills_server.telemetry.metrics import Metrics
            except ImportError:
                raise missing_extra("metrics", "metrics") from None
            self._metrics = Metrics(self._all_gauges, known_methods())
            server.runtime.events.subscribe(self._metrics.record)
        address = self.probe_address
        if address is None:
            return
        from mcp_skills_server.web.policy import host_name
        from mcp_skills_server.web.serving import ProbeAddress

        host, _, port = address.rpartition(":")
        if not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
            hint = "write HOST:PORT, such as 127.0.0.1:9464"
            raise UsageError(f"--probe-address {address}: {hint}")
        names = {"localhost", *map(str.lower, (host, *server.options.allowed_host))}

        def admits(header: str) -> bool:
            return _is_allowed_host(names, host_name(header))

        self.address = ProbeAddress(host.strip("[]"), int(port), admits, self._metrics)

    def part(self, server: Server, http: HttpServices) -> Part | None:  # noqa: ARG002
        if self._metrics is None or self.address is not None:
            return None
        from mcp_skills_server.web.probes import metrics_route

        return Part([metrics_route(self._metrics, server.views.is_admin)])

    def _all_gauges(self) -> Mapping[str, Gauge]:
        out: dict[str, Gauge] = {}
        for feature in self._server.features:
            out |= feature.gauges()
        return out

    def gauges(self) -> Mapping[str, Gauge]:
        from mcp_skills_server.access.tokens import SOON_S
        from mcp_skills_server.web.probes import count_failing

        server, now = self._server, time.time()
        registry, states = server.opened.registry, server.opened.source_states()
        snapshot = registry.snapshot
        served = len(snapshot.paths(Standing.LENIENT))
        tokens = () if server.http is None else server.http.tokens
        ages = {state.name: now - state.current for state in states if state.current is not None}
        expiring = sum(token.expires <= now + SOON_S for token in tokens)
        out: dict[str, Gauge] = {
            "skills_build_info": Gauge("The running version.", {__version__: 1}, "version"),
            "skills_tokens_expiring": Gauge(
                "Tokens that expire within 14 days, or have expired.", expiring
            ),
            "skills_source_age_seconds": Gauge(
                "Seconds since a source was last found to be current.", ages, "source"
            ),
            "skills_served": Gauge("Skills that are served.", served),
            "skills_left_out": Gauge("Skills that are not served.", len(snapshot.skills) - served),
            "skills_problems": Gauge(
                "Problems that a scan finds in skills and roots; validate reads every file and "
                "finds more.",
                len(snapshot.all_problems),
            ),
            "skills_sources_failing": Gauge(
                "Roots whose last poll failed.", count_failing(registry, states)
            ),
        }
        words = "Greatest lag of the event loop in the last minute."
        out["skills_event_loop_lag_seconds"] = Gauge(words, server.load.max_lag_s)
        usages = {name: usage() for name, usage in [*server.load.usage.items()]}
        for field, words in _USAGE.items():
            values = {name: getattr(usage, field) for name, usage in usages.items()}
            out[f"skills_resource_{field}"] = Gauge(words, values, "resource")
        files = server.reloader if server.reloader.has_files else None
        is_taken = float(files is None or not files.refused)
        words = "1 if the last reload was applied in full, else 0."
        out[f"{_RELOAD}_successful"] = Gauge(words, is_taken)
        if files is not None:
            words = "When configuration and tokens were last read."
            out[f"{_RELOAD}_timestamp_seconds"] = Gauge(words, files.read_at)
        return out


def _is_allowed_host(names: Container[str], name: str | None) -> bool:
    """Return True if a Host header is in `names`, or an IP address (safe from DNS rebinding)."""
    if name is None or "*" in names:
        return name is not None
    with suppress(ValueError):
        ip_address(name)
        return True
    return name in names
