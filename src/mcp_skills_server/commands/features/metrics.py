"""Feature of Prometheus metrics, at `/metrics` or at a separate address."""

from __future__ import annotations

import re
import time
from collections.abc import Container, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from mcp_skills_server import __version__
from mcp_skills_server.commands.features.feature import Feature, Server
from mcp_skills_server.commands.features.records import known_methods
from mcp_skills_server.commands.fields import flag, text
from mcp_skills_server.errors import UsageError, missing_extra
from mcp_skills_server.model import Standing
from mcp_skills_server.telemetry.gauge import Gauge
from mcp_skills_server.web.part import Part, Routes

if TYPE_CHECKING:
    from mcp_skills_server.telemetry.metrics import Metrics

_RELOAD: Final = "skills_config_last_reload"


class PrometheusMetrics(
    Feature, heading="Metrics (--transport http)", example="--metrics-address 127.0.0.1:9464"
):
    """Prometheus metrics: counters of requests, and gauges of the server and all features."""

    metrics: bool = flag(
        "Show metrics for Prometheus at /metrics, to the clients that may use MCP. Needs the "
        "extra [metrics]."
    )
    metrics_address: str | None = text(
        "Show metrics at this address instead, such as 127.0.0.1:9464, to clients that reach it by "
        "an IP address or by a name of --allowed-host.",
        "HOST:PORT",
    )
    _server: Server
    _metrics: Metrics | None = None

    def start(self, server: Server) -> None:
        self._server = server
        address = self.metrics_address
        if not self.metrics and address is None:
            return
        try:
            from mcp_skills_server.telemetry.metrics import Metrics, serve_metrics
        except ImportError:
            raise missing_extra("metrics", "metrics") from None
        self._metrics = Metrics(self._all_gauges, known_methods())
        server.runtime.events.subscribe(self._metrics.record)
        if address is None:
            return
        from mcp_skills_server.web.guards import host_name

        host, _, port = address.rpartition(":")
        if not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
            hint = "write HOST:PORT, such as 127.0.0.1:9464"
            raise UsageError(f"--metrics-address {address}: {hint}")
        names = {"localhost", *map(str.lower, (host, *server.options.allowed_host))}

        def is_allowed(header: str) -> bool:
            return _is_allowed_host(names, host_name(header))

        try:
            serve_metrics(self._metrics, host.strip("[]"), int(port), is_allowed)
        except OSError as error:
            reason = f"cannot be listened on ({error.strerror or error})"
            raise UsageError(f"--metrics-address {address}: {reason}") from None

    def part(self, server: Server) -> Part | None:
        metrics = self._metrics
        if metrics is None or not self.metrics:
            return None
        from mcp_skills_server.web.probes import metrics_route

        return Routes(lambda _: [metrics_route(metrics, server.views.is_admin)])

    def _all_gauges(self) -> Mapping[str, Gauge]:
        out: dict[str, Gauge] = {}
        for each in self._server.features:
            out |= each.gauges()
        return out

    def gauges(self) -> Mapping[str, Gauge]:
        from mcp_skills_server.access.tokens import SOON_S
        from mcp_skills_server.web.probes import count_failing

        server, now = self._server, time.time()
        registry, mirrors, reloader = server.opened.registry, server.opened.mirrors, server.reloader
        snapshot = registry.snapshot
        states = mirrors.states() if mirrors is not None else []
        served = len(snapshot.paths(Standing.LENIENT))
        ages = {each.name: now - each.current for each in states if each.current is not None}
        expiring = sum(each.expires <= now + SOON_S for each in server.tokens or ())
        out: dict[str, Gauge] = {
            "skills_build_info": Gauge("The running version.", {__version__: 1}, "version"),
            "skills_tokens_expiring": Gauge(
                "Tokens that expire within 14 days, or have expired.", expiring
            ),
            "skills_source_age_seconds": Gauge(
                "Seconds since a source was last found to be current.", ages, "source"
            ),
            "skills_served": Gauge("Skills that are served.", served),
            "skills_left_out": Gauge("Skills that cannot be used.", len(snapshot.skills) - served),
            "skills_problems": Gauge(
                "Problems that a scan finds in skills and roots; validate reads every file and "
                "finds more.",
                len(snapshot.all_problems),
            ),
            "skills_sources_failing": Gauge(
                "Roots whose last poll failed.", count_failing(registry, states)
            ),
        }
        files = reloader if reloader is not None and reloader.has_files else None
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
