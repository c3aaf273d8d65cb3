"""Interface of a feature of `serve`: a part of the server that can be off.

A feature is a class of options in this package, and a row of `FEATURES` in `table.py`. The command
line, the environment and the configuration file give its values. `serve` starts it when the parts
of the server are there, and stops it at the end. Over HTTP it can add a part of the application.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

from mcp_skills_server.commands.fields import Options

if TYPE_CHECKING:
    from mcp_skills_server.access.quotas import QuotaSettings
    from mcp_skills_server.access.tokens import Tokens
    from mcp_skills_server.catalog.views import Views
    from mcp_skills_server.catalog.watch import Watcher
    from mcp_skills_server.commands.opening import OpenedRoots
    from mcp_skills_server.commands.reloading import Reloader
    from mcp_skills_server.commands.serve import ServeOptions
    from mcp_skills_server.runtime.runtime import Runtime
    from mcp_skills_server.server.requests import Settings
    from mcp_skills_server.telemetry.gauge import Gauge
    from mcp_skills_server.web.part import Part

_F = TypeVar("_F")


@dataclass
class Server:
    """The parts of a server, on which its features build.

    Attributes:
        options: those of no feature.
        features: all features, whether they are on or not.
        opened: the roots.
        runtime: the tools.
        settings: of MCP.
        watcher: of the folders; None without `--watch`.
        views: the skills of each principal.
        quotas: of each principal.
        reloader: follows the configuration, the tokens and the lock file; None until these are
            read.
        tokens: over HTTP those that clients bear; None until they are read.
    """

    options: ServeOptions
    features: Sequence[Feature]
    opened: OpenedRoots
    runtime: Runtime
    settings: Settings
    watcher: Watcher | None
    views: Views
    quotas: QuotaSettings
    reloader: Reloader | None = None
    tokens: Tokens | None = None

    def feature(self, kind: type[_F]) -> _F:
        """Return the feature of this class."""
        return next(each for each in self.features if isinstance(each, kind))


class Feature(Options):
    """A part of the server that can be off, with its options. It adds nothing but what it
    overrides."""

    only_http: ClassVar[bool] = True
    """Whether the feature does nothing over stdio, and is not started there."""

    def start(self, server: Server) -> None:
        """Begin, before the first request.

        Raises:
            UsageError: the feature cannot work as its options ask.
        """

    def part(self, server: Server) -> Part | None:  # noqa: ARG002
        """Return what the feature adds to the application over HTTP; None where it is off or adds
        nothing.

        Raises:
            UsageError: as for `start`.
        """
        return None

    def stop(self) -> None:
        """End, after the last request."""

    def reopen(self) -> None:
        """Open files anew, because they were rotated (SIGHUP). Reentrant."""

    def gauges(self) -> Mapping[str, Gauge]:
        """Return gauges for Prometheus, by name."""
        return {}

    def state(self) -> str:
        """Return a line on its state for `/readyz?verbose`, or ""."""
        return ""
