"""The options of what replicas share through Redis, and what is made of them."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

import click

from mcp_skills_server.commands.fields import Options, option
from mcp_skills_server.errors import UsageError, missing_extra

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.model import Changes
    from mcp_skills_server.runtime.runtime import Runtime
    from mcp_skills_server.runtime.sessions import Sessions
    from mcp_skills_server.server.notify import RecentNotifications
    from mcp_skills_server.shared.link import Link
    from mcp_skills_server.shared.look_again import LookAgain, Where
    from mcp_skills_server.shared.records import Records
    from mcp_skills_server.sources.mirrors import Mirrors

_PAGE_IDLE_S: Final = 12 * 3600.0
"""A session of the page ends after so many seconds without a request, as in memory."""


class RedisType(click.ParamType[str]):
    """An address of Redis. What is none is refused before anybody shows it: it may hold a password."""

    name = "redis"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        """The address as it is."""
        from mcp_skills_server.shared.address import redis_settings

        redis_settings(value)
        return value


class RedisOptions(Options):
    """What replicas share."""

    heading: ClassVar[str] = "Shared by replicas (--transport http)"
    redis: str | None = option(
        None,
        "Share sessions of the tools and the count of requests with other "
        "replicas through this Redis, and look again when another one has seen a change: "
        "redis://HOST:PORT/DB, rediss:// with TLS, unix:///PATH. Needs the extra "
        "[redis].",
        type=RedisType(),
        metavar="URL",
    )
    redis_password: str | None = option(
        None, "Its password; meant for MCP_SKILLS_REDIS_PASSWORD.", metavar="PASSWORD", secret=True
    )
    redis_prefix: str = option("mcp-skills:", "What its keys begin with, another one for each server.", metavar="TEXT")
    redis_ca: str | None = option(
        None,
        "The authorities that its certificate must be from, in PEM, instead of those of the system.",
        type=click.Path(dir_okay=False),
        metavar="FILE",
    )


class Shared(NamedTuple):
    """What a server shares with its replicas.

    Attributes:
        link: the way to Redis.
        sessions: makes what keeps the sessions of the tools.
        page_sessions: where replicas share who is signed in at the page.
        recent: repeats notifications when another replica has caught up.
        take: counts a request of an owner, of so many a minute, at all replicas.
        look: has all sources looked at, here and elsewhere, and returns how many there are.
        start: begins to hear of what other replicas see.
        stop: ends that.
    """

    link: Link
    sessions: Callable[[Runtime], Sessions]
    page_sessions: Records
    recent: RecentNotifications
    take: Callable[[str, int], Awaitable[float]]
    look: Callable[[], int]
    start: Callable[[], None]
    stop: Callable[[], None]


def make_link(options: RedisOptions) -> Link | None:
    """The way to Redis, not yet started; None where none is given, and then nothing of it is imported.

    Raises:
        UsageError: options contradict each other, or the extra is not installed.
    """
    if options.redis is None:
        for name, value in (("--redis-password", options.redis_password), ("--redis-ca", options.redis_ca)):
            if value is not None:
                raise UsageError(f"{name} is for Redis; give --redis URL too")
        return None
    from importlib.util import find_spec

    if find_spec("redis") is None:
        raise missing_extra("--redis", "redis")
    from mcp_skills_server.shared.address import redis_settings
    from mcp_skills_server.shared.link import Link

    return Link(
        redis_settings(options.redis, prefix=options.redis_prefix, ca=options.redis_ca, password=options.redis_password)
    )


def make_shared(
    options: RedisOptions,
    registry: Registry,
    mirrors: Mirrors | None,
    *,
    follows: bool,
    runtime_sessions: int | None = None,
) -> Shared | None:
    """What is shared, not yet started; None where nothing is, and then nothing of it is imported.

    Args:
        options: where Redis is.
        registry: whose changes other replicas hear of.
        mirrors: what is fetched, if anything is.
        follows: changes of folders are followed.
        runtime_sessions: sessions of the tools that one owner may have; None for a quarter of what one replica keeps.

    Raises:
        UsageError: options contradict each other, or the extra is not installed.
    """
    link = make_link(options)
    if link is None:
        return None
    from mcp_skills_server.runtime.sessions import IDLE_S, MOST
    from mcp_skills_server.runtime.shared_sessions import sharing
    from mcp_skills_server.server.notify import RecentNotifications
    from mcp_skills_server.shared.bucket import SharedBucket
    from mcp_skills_server.shared.look_again import CLIENTS, SOURCES, LookAgain
    from mcp_skills_server.shared.records import Records

    records = Records(link, "session", ttl_s=IDLE_S, share=runtime_sessions or MOST // 4)
    page_sessions = Records(link, "page", ttl_s=_PAGE_IDLE_S, share=1)
    recent = RecentNotifications(lambda: looking.say(CLIENTS))
    looking = LookAgain(
        link,
        clients=recent.repeat,
        sources=mirrors.look if mirrors is not None else None,
        folders=(lambda: _look_at_folders(registry)) if follows else None,
        state=(lambda: _state(mirrors)) if mirrors is not None else str,
    )
    registry.subscribe(lambda changes: _say(looking, registry, changes))

    def look() -> int:
        looking.say(SOURCES, whatever=True)
        return mirrors.look() if mirrors is not None else 0

    def take(owner: str, per_minute: int) -> Awaitable[float]:
        return SharedBucket(link, "requests", most=per_minute, per_second=per_minute / 60).take(owner)

    return Shared(
        link, sharing(records, runtime_sessions), page_sessions, recent, take, look, looking.start, looking.stop
    )


def _look_at_folders(registry: Registry) -> None:
    registry.loaded.wait()
    registry.refresh()


def _say(looking: LookAgain, registry: Registry, changes: Changes) -> None:
    """Have the other replicas look where this one has found a change by itself."""
    if looking.is_looking or not registry.loaded.is_set():
        return  # another one has said so, or it is the first scan
    where: set[Where] = {
        "sources" if registry.roots[skill.root].origin else "folders"
        for skills in (changes.before, changes.after)
        for skill in skills.values()
    }
    for each in where:
        looking.say(each)


def _state(mirrors: Mirrors) -> str:
    """Another text for each set of revisions that are served."""
    served = sorted(f"{each.name} {each.revision}" for each in mirrors.states() if each.revision)
    return hashlib.sha256("\n".join(served).encode()).hexdigest()
