"""The settings of the listening sockets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mcp_skills_server.telemetry.metrics import Metrics


class ProbeAddress(NamedTuple):
    """The address of the listener for probes, the hosts it admits, and its metrics, if any."""

    host: str
    port: int
    admits: Callable[[str], bool]
    metrics: Metrics | None


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """The listening sockets, and the limits of their connections."""

    host: str
    port: int  # 0 for any that is free
    start_path: str  # in the log line at startup
    max_connections: int = 1000  # at once, if there are enough file descriptors
    request_timeout: float = 30  # seconds for the head of a request, and again for its body
    keep_alive: int = 5  # seconds that an idle connection stays open
    probes: ProbeAddress | None = None
