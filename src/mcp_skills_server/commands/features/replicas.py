"""Feature of several replicas: state shared in Redis, and publish/subscribe of changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import click

from mcp_skills_server.commands.features.feature import Feature
from mcp_skills_server.commands.features.services import SharedState
from mcp_skills_server.commands.fields import file, option, text
from mcp_skills_server.errors import UsageError
from mcp_skills_server.installation import missing_extra
from mcp_skills_server.telemetry.gauge import Gauge

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.commands.opening import OpenedRoots
    from mcp_skills_server.model import Changes
    from mcp_skills_server.shared.change_bus import ChangeBus, Where
    from mcp_skills_server.shared.link import Link

_PAGE_IDLE_S: Final = 12 * 3600.0
"""Seconds after which an idle session of the page ends, as in memory."""


class RedisType(click.ParamType[str]):
    """A Redis URL. The error for an invalid one does not show it, since it may hold a password."""

    name = "redis"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        from mcp_skills_server.shared.address import redis_settings

        redis_settings(value)
        return value


class Replicas(
    Feature, heading="Shared by replicas (--transport http)", example="--redis redis://cache:6379/0"
):
    """The state that replicas share in Redis. Without `--redis` none of it is imported."""

    redis: str | None = option(
        None,
        "Share sessions of the tools and the count of requests with other replicas through this "
        "Redis, and rescan when another one reports a change: redis://HOST:PORT/DB, rediss:// "
        "with TLS, unix:///PATH. Needs the extra [redis].",
        type=RedisType(),
        metavar="URL",
    )
    redis_password: str | None = text(
        "The password of Redis; meant for MCP_SKILLS_REDIS_PASSWORD.", "PASSWORD", is_secret=True
    )
    redis_prefix: str = option(
        "mcp-skills:",
        "The prefix of all keys in Redis, a different one for each server.",
        metavar="TEXT",
    )
    redis_ca: str | None = file(
        "The authorities to trust for the certificate of Redis, in PEM, instead of the system's."
    )
    _link: Link | None = None
    _bus: ChangeBus | None = None

    def share(self, opened: OpenedRoots, *, watch: bool) -> SharedState:
        """Return the state that replicas share from now on; without Redis, that of this process.

        With `watch`, the folders are scanned when another replica reports a change.
        """
        if self.redis is None:
            if self.redis_password is not None or self.redis_ca is not None:
                raise UsageError(
                    "--redis-password and --redis-ca are for Redis; give --redis URL too"
                )
            return SharedState(poll_sources=opened.poll_sources)
        if find_spec("redis") is None:
            raise missing_extra("--redis", "redis")
        from mcp_skills_server.runtime.sessions import IDLE_S
        from mcp_skills_server.runtime.shared_sessions import SharedSessions
        from mcp_skills_server.server.notify import RecentNotifications
        from mcp_skills_server.shared.address import redis_settings
        from mcp_skills_server.shared.change_bus import CLIENTS, FOLDERS, SOURCES, ChangeBus
        from mcp_skills_server.shared.link import Link
        from mcp_skills_server.shared.records import Records, SharedBucket

        registry = opened.registry
        password, prefix = self.redis_password, self.redis_prefix
        settings = redis_settings(self.redis, prefix=prefix, ca=self.redis_ca, password=password)
        link = self._link = Link(settings)
        records = Records(link, "session", ttl_s=IDLE_S)
        recent = RecentNotifications(lambda: bus.notify(CLIENTS))
        followed: dict[Where, Callable[[], object]] = {CLIENTS: recent.repeat}
        if opened.mirrors is not None:
            followed[SOURCES] = opened.poll_sources
        if watch:
            followed[FOLDERS] = lambda: _scan_folders(registry)
        bus = self._bus = ChangeBus(link, followed)
        registry.subscribe(lambda changes: _notify(bus, registry, changes))

        def poll_sources() -> int:
            bus.notify(SOURCES)
            return opened.poll_sources()

        def take(owner: str, per_minute: int, count: int) -> Awaitable[float]:
            bucket = SharedBucket(link, "requests", most=per_minute, per_second=per_minute / 60)
            return bucket.take(owner, count)

        bus.start()
        return SharedState(
            poll_sources=poll_sources,
            make_tool_sessions=partial(SharedSessions, store=records),
            page_sessions=Records(link, "page", ttl_s=_PAGE_IDLE_S),
            recent=recent,
            take_requests=take,
        )

    def stop(self) -> None:
        if self._bus is not None:
            self._bus.stop()

    def gauges(self) -> Mapping[str, Gauge]:
        if self._link is None:
            return {}
        return {"skills_redis_up": Gauge("1 if Redis responds, else 0.", self._link.is_up)}

    def state(self) -> str:
        return "" if self._link is None else self._link.state


def _scan_folders(registry: Registry) -> None:
    registry.loaded.wait()
    registry.refresh()


def _notify(bus: ChangeBus, registry: Registry, changes: Changes) -> None:
    """Publish where this replica itself found a change, so that other replicas look there."""
    if bus.is_scanning or not registry.loaded.is_set():
        return  # another replica published it, or it is the first scan
    kinds: set[Where] = {
        "sources" if registry.roots[skill.root].origin else "folders"
        for skills in (changes.before, changes.after)
        for skill in skills.values()
    }
    for kind in kinds:
        bus.notify(kind)
