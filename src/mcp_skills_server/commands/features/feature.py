"""Interface of a feature of `serve`: an optional part of the server.

A feature is a class of options in this package, and a row of `FEATURES` in `table.py`. The command
line, the environment and the configuration file give its values. `serve` starts it once the parts
of the server exist, and stops it at the end. Over HTTP it can add a part of the application.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from mcp_skills_server.commands.features.services import HttpServices
from mcp_skills_server.commands.fields import Options
from mcp_skills_server.telemetry.load import Load

if TYPE_CHECKING:
    from mcp_skills_server.catalog.views import Views
    from mcp_skills_server.catalog.watch import Watcher
    from mcp_skills_server.commands.opening import OpenedRoots
    from mcp_skills_server.commands.reloading import Reloader
    from mcp_skills_server.commands.serve_options import ServeOptions
    from mcp_skills_server.runtime.runtime import Runtime
    from mcp_skills_server.server.requests import Settings
    from mcp_skills_server.telemetry.gauge import Gauge
    from mcp_skills_server.web.part import Part

_F = TypeVar("_F")


@dataclass(frozen=True, slots=True)
class Server:
    """The services of a server, on which its features build."""

    options: ServeOptions
    """The options that belong to no feature."""
    features: Sequence[Feature]
    """All features, whether they are on or not."""
    opened: OpenedRoots
    runtime: Runtime
    settings: Settings
    watcher: Watcher | None
    """The watcher of the folders; None without `--watch`."""
    views: Views
    reloader: Reloader
    """Follows the configuration, the tokens and the lock file."""
    http: HttpServices | None
    """What only a server over HTTP has."""
    load: Load = field(default_factory=Load)

    @property
    def over_http(self) -> bool:
        """Return True over HTTP, False over stdio."""
        return self.http is not None

    def feature(self, kind: type[_F]) -> _F:
        """Return the feature of this class."""
        return feature_of(self.features, kind)

    def states(self) -> list[str]:
        """Return a line on the state of each dependency beside the roots."""
        lines = [self.reloader.state(), *(feature.state() for feature in self.features)]
        return [line for line in lines if line]


def feature_of(features: Sequence[Feature], kind: type[_F]) -> _F:
    """Return the feature of this class."""
    return next(feature for feature in features if isinstance(feature, kind))


class Feature(Options):
    """An optional part of the server, with its options; it adds only what it overrides."""

    def start(self, server: Server) -> None:
        """Start the feature, before the first request.

        Raises:
            UsageError: the feature cannot work with its options.
        """

    def part(self, server: Server, http: HttpServices) -> Part | None:  # noqa: ARG002
        """Return the feature's part of the HTTP application, or None if it adds none.

        Raises:
            UsageError: as for `start`.
        """
        return None

    def stop(self) -> None:
        """Stop the feature, after the last request."""

    def reopen(self) -> None:
        """Reopen files after log rotation (SIGHUP). Must be reentrant."""

    def gauges(self) -> Mapping[str, Gauge]:
        """Return gauges for Prometheus, by name."""
        return {}

    def state(self) -> str:
        """Return a line on the feature's state for `/readyz?verbose`; "" by default."""
        return ""
