"""`serve --transport http`: the settings of HTTP, metrics, and the state that replicas share."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Awaitable, Callable
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
from mcp_skills_server.commands.fields import traits_of, variables_of
from mcp_skills_server.commands.logs import request_level
from mcp_skills_server.commands.options import configuration_of, oauth_of, tokens_of
from mcp_skills_server.commands.reloading import Reloader
from mcp_skills_server.commands.running import collect_from_now_on, on_hangup
from mcp_skills_server.commands.serve import RedisOptions, known_methods
from mcp_skills_server.dialects.aicatalog import ARD, CATALOG
from mcp_skills_server.errors import UsageError, missing_extra
from mcp_skills_server.model import Standing
from mcp_skills_server.runtime.sessions import Sessions
from mcp_skills_server.web.discovery import PREFIXES
from mcp_skills_server.web.forwarded import checked_prefix, trusted_networks
from mcp_skills_server.web.guards import host_name, make_policy
from mcp_skills_server.web.refresh import PATH, checked_secret
from mcp_skills_server.web.settings import HttpSettings, UiSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.commands.config_file import Configuration
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
_RELOAD: Final = "skills_config_last_reload"
_PAGE_IDLE_S: Final = 12 * 3600.0
"""A session of the page ends after so many seconds without a request, as in memory."""


def serve_over_http(service: Service, options: ServeOptions) -> None:
    """Serve until a signal ends the process.

    Raises:
        UsageError: the options cannot be served.
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
    collect_from_now_on()
    anyio.run(serve_http, service.runtime, service.settings, http, service.watcher, service.views)
    if shared is not None:
        shared.stop()


def _http_settings(
    service: Service, options: ServeOptions, shared: Shared | None
) -> tuple[HttpSettings, Callable[[], object]]:
    """Return the settings of HTTP, and the function that requests a reload of the files.

    Raises:
        UsageError: the options cannot be served.
    """
    views, counting = service.views, service.counting
    context = click.get_current_context()
    for parameter in context.command.params:
        variable, wanted = variables_of(parameter)[0], traits_of(parameter).if_empty
        if wanted and os.environ.get(variable) == "":
            raise UsageError(f"{variable} is set but empty; give {wanted}, or unset it for a server without")
    tokens = Tokens(tokens_of(options.token_file, options.tokens))
    issuer, oauth = None, oauth_of(context)
    if oauth is not None:
        from mcp_skills_server.access.oauth import ResourceServer
        from mcp_skills_server.web.issuer_fetch import fetch

        issuer = ResourceServer(oauth, fetch)
    if not tokens and issuer is None:
        _refuse_principals(configuration_of(context))
    rates = Rates(service.quotas)
    reloader = Reloader(
        context,
        views,
        service.opened,
        tokens,
        rates=rates,
        events=service.runtime.events,
        request_level=request_level(options.transport),
    )
    reloader.start()
    policy = make_policy(options.host, options.allowed_host, options.allowed_origin, tokens, issuer)
    sources = service.opened.mirrors
    refresh = _refresh(sources, options, shared)
    if refresh is not None:
        policy = replace(policy, open_below=(PATH,))  # it has a proof of its own
    if options.publish_open:
        policy = replace(policy, open_below=(*policy.open_below, *PREFIXES), open_at=policy.open_at | {ARD, CATALOG})
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
        rpc=options.rpc,
        rpc_code=options.allow_code,
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
    """Return the secret of webhooks and the function that polls the sources; None without `--refresh-secret`.

    Raises:
        UsageError: the secret is too weak.
    """
    if options.refresh_secret is None:
        return None
    secret = checked_secret(options.refresh_secret)
    if sources is None:
        logger.warning("--refresh-secret: every ROOT is a folder, which is watched; %s has nothing to fetch", PATH)
        return secret, int
    if shared is not None:
        return secret, shared.look
    return secret, sources.look


def _refuse_principals(configuration: Configuration | None) -> None:
    """Refuse grants to principals where no client can authenticate, for there are neither tokens nor an issuer.

    Raises:
        UsageError: a grant names a principal.
    """
    if configuration is None or configuration.grants is None:
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
    """Start the metrics and return them; None without `--metrics` and `--metrics-address`.

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
    metrics.start(service.runtime.events)
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
    """Tell whether a Host header is an IP address, which DNS rebinding cannot forge, or one of these names."""
    name = host_name(header)
    if name is None or "*" in names:
        return name is not None
    with suppress(ValueError):
        ip_address(name)
        return True
    return name in names


class Shared(NamedTuple):
    """The state that replicas share by Redis.

    Attributes:
        link: the connection to Redis.
        sessions: makes the store of the tools' sessions.
        page_sessions: the store of the page's sessions.
        recent: repeats notifications when another replica has caught up.
        take: takes a token of an owner's bucket, of so many a minute.
        look: polls all sources, here and at other replicas, and returns how many there are.
        start: subscribes to the changes that other replicas see.
        stop: ends the subscription.
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
    """Return the shared state, not yet started; None without `--redis`, and then nothing of it is imported.

    Args:
        options: of Redis.
        registry: its changes are published to other replicas.
        mirrors: the remote roots, if there are any.
        follows: whether folders are watched.
        runtime_sessions: sessions of the tools that one owner may have; None for a quarter of those of one replica.

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
    """Publish where this replica has found a change by itself, so that others look there."""
    if looking.is_looking or not registry.loaded.is_set():
        return  # another replica published it, or it is the first scan
    where: set[Where] = {
        "sources" if registry.roots[skill.root].origin else "folders"
        for skills in (changes.before, changes.after)
        for skill in skills.values()
    }
    for each in where:
        looking.say(each)


def _state(mirrors: Mirrors) -> str:
    """Return a digest of the revisions that are served."""
    served = sorted(f"{each.name} {each.revision}" for each in mirrors.states() if each.revision)
    return hashlib.sha256("\n".join(served).encode()).hexdigest()
