"""`serve --transport http`: what the operator chose for HTTP."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
import click

from mcp_skills_server import __version__
from mcp_skills_server.access.grants import EVERYBODY, LOCAL
from mcp_skills_server.access.quotas import Rates
from mcp_skills_server.access.tokens import SOON_S, Tokens
from mcp_skills_server.commands.config_option import configuration_of, follow_configuration, issuer_of, tokens_of
from mcp_skills_server.commands.logs import request_level
from mcp_skills_server.commands.running import collecting, on_hangup
from mcp_skills_server.commands.serve import RedisOptions, known_methods
from mcp_skills_server.errors import UsageError, missing_extra
from mcp_skills_server.model import Standing
from mcp_skills_server.rpc.methods import ExecutionSettings
from mcp_skills_server.runtime.sessions import Sessions
from mcp_skills_server.web.discovery import PREFIXES
from mcp_skills_server.web.forwarded import checked_prefix, trusted_networks
from mcp_skills_server.web.guards import host_name, make_policy
from mcp_skills_server.web.refresh import PATH, checked_secret
from mcp_skills_server.web.settings import HttpSettings
from mcp_skills_server.web.ui.settings import UiSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Mapping

    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.commands.config_file import Configuration
    from mcp_skills_server.commands.reloading import Reloader
    from mcp_skills_server.commands.serve import ServeOptions, Service
    from mcp_skills_server.model import Changes
    from mcp_skills_server.runtime.runtime import Runtime
    from mcp_skills_server.runtime.sessions import Sessions
    from mcp_skills_server.server.notify import RecentNotifications
    from mcp_skills_server.shared.link import Link
    from mcp_skills_server.shared.look_again import LookAgain, Where
    from mcp_skills_server.shared.records import Records
    from mcp_skills_server.sources.mirrors import Mirrors
    from mcp_skills_server.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)
_NEVER_EMPTY: Final = {
    "MCP_SKILLS_TOKEN_FILE": "tokens",
    "MCP_SKILLS_TOKENS": "tokens",
    "MCP_SKILLS_OAUTH_ISSUER": "an issuer",
    "MCP_SKILLS_OAUTH_AUDIENCE": "an audience",
}
"""What is set where a server is not for everybody, and what it is to have."""
_RELOAD: Final = "skills_config_last_reload"
_PAGE_IDLE_S: Final = 12 * 3600.0
"""A session of the page ends after so many seconds without a request, as in memory."""


def serve_over_http(service: Service, options: ServeOptions) -> None:
    """Serve until the end.

    Raises:
        UsageError: it cannot be served so.
    """
    shared = make_shared(
        options,
        service.opened.registry,
        service.opened.mirrors,
        follows=options.watch,
        runtime_sessions=service.quotas.runtime_sessions,
    )
    http, read_again = _http_settings(service, options, shared)
    if shared is not None:
        shared.start()
    service.opened.fetch(options.first_load)
    from mcp_skills_server.web.serving import serve_http

    on_hangup(read_again, service.audit and service.audit.reopen)
    anyio.run(collecting, serve_http, service.runtime, service.settings, http, service.watcher, service.views)
    if shared is not None:
        shared.stop()


def _http_settings(
    service: Service, options: ServeOptions, shared: Shared | None
) -> tuple[HttpSettings, Callable[[], object]]:
    """Return the settings of HTTP, and the function that has tokens, configuration and lock file read again.

    Raises:
        UsageError: it cannot be served so.
    """
    views, counting = service.views, service.counting
    # An empty value is a mistake in a deployment, and must not open the server.
    for variable, what in _NEVER_EMPTY.items():
        if os.environ.get(variable) == "":
            raise UsageError(f"{variable} is set but empty; give {what}, or unset it for a server without")
    tokens = Tokens(tokens_of(options.token_file, options.tokens))
    context = click.get_current_context()
    issuer = issuer_of(context)
    _check_grants(configuration_of(context), [*tokens, *([] if issuer is None else [issuer])])
    rates = Rates(service.quotas)
    reloader = follow_configuration(
        context, views, service.opened, tokens, rates=rates, request_level=request_level(options.transport)
    )
    policy = make_policy(options.host, options.allowed_host, options.allowed_origin, tokens, issuer)
    sources = service.opened.mirrors
    refresh = _refresh(sources, options, shared)
    if refresh is not None:
        policy = replace(policy, open_below=(PATH,))  # it has a proof of its own
    if options.publish_open:
        policy = replace(policy, open_below=(*policy.open_below, *PREFIXES))
    sites = sources.states if sources is not None else list
    metrics = _make_metrics(service, options, reloader, tokens, shared)

    def states() -> list[str]:
        beside = [each.state for each in (shared and shared.link, service.audit) if each is not None]
        return [reloader.last.line, *beside] if reloader.has_files else beside

    http = HttpSettings(
        host=options.host,
        port=options.port,
        policy=policy,
        session_idle=options.session_idle,
        max_sessions=options.max_sessions,
        max_body=options.max_body,
        max_connections=options.max_connections,
        request_timeout=options.request_timeout,
        publish=options.publish,
        publish_only=options.publish_only,
        publish_grace=options.publish_grace,
        rpc=ExecutionSettings(code=options.allow_code) if options.rpc else None,
        sites=sites,
        metrics=metrics if options.metrics else None,
        refresh=refresh,
        root_path=checked_prefix(options.root_path),
        proxies=trusted_networks(options.trusted_proxy),
        keep_alive=options.keep_alive,
        drain=options.drain,
        quotas=service.quotas,
        rates=rates,
        sessions=partial(Sessions, share=service.quotas.runtime_sessions),
        allow_empty=options.allow_empty,
        ui=UiSettings(counts=counting and counting.store) if options.ui else None,
        states=states,
    )
    if shared is not None:
        http = replace(
            http,
            sessions=shared.sessions,
            page_sessions=shared.page_sessions,
            recent=shared.recent,
            take_shared=shared.take,
        )
    return http, reloader.ask


def _refresh(
    sources: Mirrors | None, options: ServeOptions, shared: Shared | None
) -> tuple[bytes, Callable[[], int]] | None:
    """Return the secret of webhooks, and what polls the sources for them; None where there are no webhooks.

    Raises:
        UsageError: the secret is none.
    """
    if options.refresh_secret is None:
        return None
    secret = checked_secret(options.refresh_secret)
    if sources is None:
        logger.warning("--refresh-secret: every ROOT is a folder, which is watched; %s has nothing to fetch", PATH)
        return secret, int
    return secret, sources.look if shared is None else shared.look


def _check_grants(configuration: Configuration | None, tokens: Collection[object]) -> None:
    """Prove that somebody can be who the grants name, of a server that listens on the network.

    Args:
        configuration: what the file says.
        tokens: what proves who a client is; nothing where nobody has to prove anything.

    Raises:
        UsageError: a grant names principals, and no client can prove to be one.
    """
    if configuration is None or configuration.grants is None or tokens:
        return
    for grant, line in zip(configuration.grants, configuration.grant_lines, strict=True):
        if not {EVERYBODY, LOCAL}.issuperset(grant.who):
            raise UsageError(
                f"{configuration.file}:{line}: grant.who: no client can prove who it is; give token-file or [oauth], "
                f'or write who = ["{EVERYBODY}"]'
            )


def _make_metrics(
    service: Service, options: ServeOptions, reloader: Reloader, tokens: Tokens, shared: Shared | None
) -> Metrics | None:
    """Return the metrics, counted from now on; None where none are wanted.

    Raises:
        UsageError: the extra is not installed, or the address cannot be listened on.
    """
    if not options.metrics and options.metrics_address is None:
        return None
    try:
        from mcp_skills_server.telemetry.metrics import Metrics, show_at
        from mcp_skills_server.web.probes import count_failing
    except ImportError:
        raise missing_extra("metrics", "metrics") from None
    registry, mirrors, audit = service.opened.registry, service.opened.mirrors, service.audit
    usage = None if service.counting is None else service.counting.usage

    def gauges() -> Mapping[str, tuple[str, float] | tuple[str, str, Mapping[str, float]]]:
        snapshot, now = registry.snapshot, time.time()
        states = mirrors.states() if mirrors is not None else []
        served = len(snapshot.paths(Standing.LENIENT))
        ages = {each.name: now - each.current for each in states if each.current is not None}
        expiring = sum(each.expires <= now + SOON_S for each in tokens)
        out: dict[str, tuple[str, float] | tuple[str, str, Mapping[str, float]]] = {}
        if usage is not None:
            out["skills_usage_waiting"] = ("Different counts of uses that wait to be written.", usage.waiting)
            out["skills_usage_lost"] = ("Uses that were not counted, because too many waited.", usage.lost)
        if shared is not None:
            out["skills_redis_up"] = ("Whether Redis answers.", shared.link.is_up)
        if audit is not None:
            out["skills_audit_lost"] = ("Lines that the audit log could not take.", audit.lost)
        taken = not reloader.has_files or not reloader.last.error
        out[f"{_RELOAD}_successful"] = ("Whether all of configuration and tokens was taken.", float(taken))
        if reloader.has_files:
            last = ("When configuration and tokens were last read.", reloader.last.at)
            out[f"{_RELOAD}_timestamp_seconds"] = last
        return out | {
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
            names = {"localhost", *map(str.lower, (host, *options.allowed_host))}
            show_at(metrics, host.strip("[]"), int(port), partial(_names_us, names))
        except OSError as error:
            reason = error.strerror or str(error)
            raise UsageError(f"--metrics-address {options.metrics_address}: cannot be listened on ({reason})") from None
    return metrics


def _names_us(names: Container[str], header: str) -> bool:
    """Tell whether a Host header is an IP address, which no DNS rebinding has, or one of these names."""
    name = host_name(header)
    if name is None or "*" in names:
        return name is not None
    with suppress(ValueError):
        ip_address(name)
        return True
    return name in names


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


def make_shared(
    options: RedisOptions,
    registry: Registry,
    mirrors: Mirrors | None,
    *,
    follows: bool,
    runtime_sessions: int | None = None,
) -> Shared | None:
    """Return what is shared, not yet started; None where nothing is, and then nothing of it is imported.

    Args:
        options: where Redis is.
        registry: whose changes other replicas hear of.
        mirrors: what is fetched, if anything is.
        follows: changes of folders are followed.
        runtime_sessions: sessions of the tools that one owner may have; None for a quarter of what one replica keeps.

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
    from mcp_skills_server.runtime.sessions import IDLE_S, MOST
    from mcp_skills_server.runtime.shared_sessions import sharing
    from mcp_skills_server.server.notify import RecentNotifications
    from mcp_skills_server.shared.address import redis_settings
    from mcp_skills_server.shared.link import Link
    from mcp_skills_server.shared.look_again import CLIENTS, FOLDERS, SOURCES, LookAgain
    from mcp_skills_server.shared.records import Records, SharedBucket

    link = Link(
        redis_settings(options.redis, prefix=options.redis_prefix, ca=options.redis_ca, password=options.redis_password)
    )
    records = Records(link, "session", ttl_s=IDLE_S, share=runtime_sessions or MOST // 4)
    page_sessions = Records(link, "page", ttl_s=_PAGE_IDLE_S, share=1)
    recent = RecentNotifications(lambda: looking.say(CLIENTS))
    followed: dict[Where, Callable[[], object]] = {CLIENTS: recent.repeat}
    if mirrors is not None:
        followed[SOURCES] = mirrors.look
    if follows:
        followed[FOLDERS] = lambda: _look_at_folders(registry)
    looking = LookAgain(link, followed, state=lambda: "" if mirrors is None else _state(mirrors))
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
