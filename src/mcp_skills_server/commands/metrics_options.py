"""Options of metrics, and what they are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mcp_skills_server.commands.fields import Options, flag, option
from mcp_skills_server.errors import UsageError, missing_extra
from mcp_skills_server.model import Standing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.sources.follower import SourceState
    from mcp_skills_server.telemetry.metrics import Metrics
    from mcp_skills_server.telemetry.usage import Usage


class MetricsOptions(Options):
    """Whether and where metrics are shown."""

    heading: ClassVar[str] = "Over HTTP (--transport http)"
    metrics: bool = flag("Show metrics for Prometheus at /metrics, to whom MCP is open. Needs the extra [metrics].")
    metrics_address: str | None = option(
        None,
        "Show metrics at this address instead, such as 127.0.0.1:9464, to whoever reaches it.",
        metavar="HOST:PORT",
    )


def known_methods() -> frozenset[str]:
    """The methods of all protocols; what clients call beside them is not named in metrics and traces."""
    from mcp_skills_server.dialects import skills_protocol
    from mcp_skills_server.server.front.eras import LEGACY, MODERN

    return frozenset((*LEGACY.fits, *MODERN.fits, *skills_protocol.METHODS, "GET", "HEAD"))


def make_metrics(
    options: MetricsOptions,
    registry: Registry,
    sources: Callable[[], Sequence[SourceState]],
    *,
    usage: Usage | None = None,
) -> Metrics | None:
    """The metrics, counted from now on; None where none are wanted.

    Args:
        options: what the operator chose.
        registry: what is served.
        sources: the state of what is fetched.
        usage: what counts uses, None where nothing does.

    Raises:
        UsageError: the extra is not installed, or the address cannot be listened on.
    """
    if not options.metrics and options.metrics_address is None:
        return None
    try:
        from mcp_skills_server.telemetry.metrics import Metrics, show_at
    except ImportError:
        raise missing_extra("metrics", "metrics") from None

    def gauges() -> dict[str, tuple[str, float]]:
        snapshot, states = registry.snapshot, sources()
        served = len(snapshot.paths(Standing.LENIENT))
        counting = (
            {}
            if usage is None
            else {
                "skills_usage_waiting": ("Different counts of uses that wait to be written.", usage.waiting),
                "skills_usage_lost": ("Uses that were not counted, because too many waited.", usage.lost),
            }
        )
        return {
            **counting,
            "skills_served": ("Skills that are served.", served),
            "skills_left_out": ("Skills that cannot be used.", len(snapshot.skills) - served),
            "skills_problems": (
                "What a scan finds wrong with skills and roots; validate reads every file and finds more.",
                len(snapshot.all_problems),
            ),
            "skills_sources_failing": ("Sources whose last look failed.", sum(bool(each.trouble) for each in states)),
        }

    metrics = Metrics(gauges, known_methods())
    metrics.start()
    if options.metrics_address is not None:
        host, colon, port = options.metrics_address.rpartition(":")
        if not colon or not host or not port.isdigit() or int(port) > 65535:
            raise UsageError(f"--metrics-address {options.metrics_address}: write HOST:PORT, such as 127.0.0.1:9464")
        try:
            show_at(metrics, host.strip("[]"), int(port))
        except OSError as error:
            reason = error.strerror or str(error)
            raise UsageError(f"--metrics-address {options.metrics_address}: cannot be listened on ({reason})") from None
    return metrics
