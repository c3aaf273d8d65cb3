"""Options of metrics, and what they are made of."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, ClassVar, Final

from mcp_skills_server import __version__
from mcp_skills_server.commands.fields import Options, flag, option
from mcp_skills_server.errors import UsageError, missing_extra
from mcp_skills_server.model import Standing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Mapping, Sequence

    from mcp_skills_server.access.tokens import Token
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.commands.reloading import Reloader
    from mcp_skills_server.shared.link import Link
    from mcp_skills_server.sources.follower import SourceState
    from mcp_skills_server.telemetry.audit import AuditLog
    from mcp_skills_server.telemetry.metrics import Metrics
    from mcp_skills_server.telemetry.usage import Usage

_RELOAD: Final = "skills_config_last_reload"


class MetricsOptions(Options):
    """Whether and where metrics are shown."""

    heading: ClassVar[str] = "Over HTTP (--transport http)"
    metrics: bool = flag("Show metrics for Prometheus at /metrics, to whom MCP is open. Needs the extra [metrics].")
    metrics_address: str | None = option(
        None,
        "Show metrics at this address instead, such as 127.0.0.1:9464, to whoever reaches it by an IP address or by a "
        "name of --allowed-host.",
        metavar="HOST:PORT",
    )


def known_methods() -> frozenset[str]:
    """The methods of all protocols; what clients call beside them is not named in metrics and traces."""
    from mcp_skills_server.dialects import skills_protocol
    from mcp_skills_server.server.eras import LEGACY, MODERN

    return frozenset((*LEGACY.shapes, *MODERN.shapes, *skills_protocol.METHODS, "GET", "HEAD"))


def make_metrics(
    options: MetricsOptions,
    registry: Registry,
    sources: Callable[[], Sequence[SourceState]],
    *,
    usage: Usage | None = None,
    reloader: Reloader | None = None,
    allowed_hosts: Sequence[str] = (),
    tokens: Collection[Token] = (),
    audit: AuditLog | None = None,
    link: Link | None = None,
) -> Metrics | None:
    """The metrics, counted from now on; None where none are wanted.

    Args:
        options: what the operator chose.
        registry: what is served.
        sources: the state of what is fetched.
        usage: what counts uses, None where nothing does.
        reloader: what reads configuration and tokens again, None where there are none.
        allowed_hosts: names that the Host header at an address of their own may have, beside any IP address.
        tokens: those in force.
        audit: the audit log, None where there is none.
        link: the way to Redis, None where there is none.

    Raises:
        UsageError: the extra is not installed, or the address cannot be listened on.
    """
    if not options.metrics and options.metrics_address is None:
        return None
    from mcp_skills_server.access.tokens import SOON_S

    try:
        from mcp_skills_server.telemetry.metrics import Metrics, show_at
        from mcp_skills_server.web.probes import count_failing
    except ImportError:
        raise missing_extra("metrics", "metrics") from None

    def gauges() -> dict[str, tuple[str, float] | tuple[str, str, Mapping[str, float]]]:
        snapshot, states, now = registry.snapshot, sources(), time.time()
        served = len(snapshot.paths(Standing.LENIENT))
        counting = (
            {}
            if usage is None
            else {
                "skills_usage_waiting": ("Different counts of uses that wait to be written.", usage.waiting),
                "skills_usage_lost": ("Uses that were not counted, because too many waited.", usage.lost),
            }
        )
        last = None if reloader is None else reloader.last
        taken = last is None or not last.error
        reload = {f"{_RELOAD}_successful": ("Whether all of configuration and tokens was taken.", float(taken))}
        if last is not None:
            reload[f"{_RELOAD}_timestamp_seconds"] = ("When configuration and tokens were last read.", last.at)
        if link is not None:
            counting["skills_redis_up"] = ("Whether Redis answers.", link.is_up)
        if audit is not None:
            counting["skills_audit_lost"] = ("Lines that the audit log could not take.", audit.lost)
        expiring = sum(each.expires <= now + SOON_S for each in tokens)
        ages = {each.name: now - each.current for each in states if each.current is not None}
        return {
            **counting,
            **reload,
            "skills_build_info": ("The version that runs.", "version", {__version__: 1}),
            "skills_tokens_expiring": ("Tokens that expire within 14 days, or have expired.", expiring),
            "skills_source_age_seconds": ("Seconds since a source was last found to be current.", "source", ages),
            "skills_served": ("Skills that are served.", served),
            "skills_left_out": ("Skills that cannot be used.", len(snapshot.skills) - served),
            "skills_problems": (
                "What a scan finds wrong with skills and roots; validate reads every file and finds more.",
                len(snapshot.all_problems),
            ),
            "skills_sources_failing": ("Roots whose last look failed.", count_failing(registry, states)),
        }

    metrics = Metrics(gauges, known_methods())
    metrics.start()
    if options.metrics_address is not None:
        host, colon, port = options.metrics_address.rpartition(":")
        if not colon or not host or not port.isdigit() or int(port) > 65535:
            raise UsageError(f"--metrics-address {options.metrics_address}: write HOST:PORT, such as 127.0.0.1:9464")
        try:
            names = {"localhost", *map(str.lower, (host, *allowed_hosts))}
            show_at(metrics, host.strip("[]"), int(port), partial(_names_us, names))
        except OSError as error:
            reason = error.strerror or str(error)
            raise UsageError(f"--metrics-address {options.metrics_address}: cannot be listened on ({reason})") from None
    return metrics


def _names_us(names: Container[str], header: str) -> bool:
    """Tell whether a Host header is an IP address, which no DNS rebinding has, or one of these names."""
    from mcp_skills_server.web.guards import host_name

    name = host_name(header)
    if name is None or "*" in names:
        return name is not None
    with suppress(ValueError):
        ip_address(name)
        return True
    return name in names
