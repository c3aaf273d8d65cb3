"""`serve --workers`: what is another with several processes, in the one that starts them and in each of them."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, cast

import click

from mcp_skills_server.commands.config_option import configuration_of, worker_channel
from mcp_skills_server.commands.fields import Options, option
from mcp_skills_server.commands.running import on_hangup
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.catalog.watch import Watcher
    from mcp_skills_server.runtime.runtime import Runtime
    from mcp_skills_server.web.settings import HttpSettings
    from mcp_skills_server.web.workers.channel import Channel, Post
    from mcp_skills_server.web.workers.leading import LeadingRegistry
    from mcp_skills_server.web.workers.worker import Worker

logger = logging.getLogger(__name__)

MOST: Final = 64
_DIVIDED: Final = ("max_sessions", "max_connections", "script_concurrency")
"""Options that hold for all workers together."""
_SILENT: Final = tuple(
    f"mcp_skills_server.{each}" for each in ("access.tokens", "commands.config_option", "commands.reloading")
)
"""What is said once, by the supervisor."""

_T = TypeVar("_T", bound="WorkerOptions")


class WorkerOptions(Options):
    """How many processes answer."""

    heading: ClassVar[str] = "Over HTTP (--transport http)"
    workers: int = option(
        1,
        "Processes that answer, on one socket; about as many as there are processors. One more starts them and follows "
        "the folders.",
        type=click.IntRange(1, MOST),
    )


def is_supervisor(options: WorkerOptions) -> bool:
    """Whether this process is to start workers.

    Raises:
        UsageError: this system has no way to share sockets, or a limit is too low to be divided.
    """
    if worker_channel() is not None or options.workers == 1 or vars(options)["transport"] != "http":
        return False
    if sys.platform == "win32":
        raise UsageError("--workers shares a socket in ways that Windows does not have; leave it out")
    for name in _DIVIDED:
        whole: int = getattr(options, name)
        if whole < options.workers:
            shown = name.replace("_", "-")
            raise UsageError(
                f"--{shown} {whole} cannot be divided among {options.workers} workers; allow more, or start fewer"
            )
    return True


def divided(options: _T, post: Post) -> _T:
    """The options of one worker: its share of what holds for all together."""
    for name in _SILENT:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return type(options)(**{**vars(options), **{name: post.share(getattr(options, name)) for name in _DIVIDED}})


def opened_as(channel: Channel | None, leads: bool) -> dict[str, Any]:
    """What `open_served` takes besides, for a supervisor or for a worker."""
    if channel is not None:
        from mcp_skills_server.web.workers.following import FollowingRegistry

        return {"make": FollowingRegistry, "folders": channel.post.roots}
    if leads:
        from mcp_skills_server.web.workers.leading import LeadingRegistry

        return {"make": LeadingRegistry}
    return {}


def worker_of(channel: Channel | None, registry: Registry) -> Worker | None:
    """What this process does as its supervisor says; None where it has none."""
    if channel is None:
        return None
    from mcp_skills_server.web.workers.worker import Worker

    return Worker(channel, registry)


def supervise(
    runtime: Runtime,
    watcher: Watcher | None,
    http: HttpSettings,
    count: int,
    asked: Sequence[Callable[[], object] | None],
    *,
    counts: Callable[[str], object],
) -> int:
    """Start workers and follow the folders, until SIGTERM or SIGINT; the exit code.

    Args:
        runtime: what each worker will have for itself, made to see whether it can be; it is closed here.
        watcher: follows the folders.
        http: what the operator chose.
        count: how many workers.
        asked: what is called on SIGHUP, which reaches the workers too.
        counts: called with the folder in which all of them keep their counts.

    Raises:
        UsageError: the address cannot be listened on, or there is no place for what workers share.
    """
    import asyncio

    from mcp_skills_server.web.listen import open_listener, shown_address
    from mcp_skills_server.web.ui.changes import Scans
    from mcp_skills_server.web.workers.channel import metrics_path
    from mcp_skills_server.web.workers.supervisor import Supervisor, shared_folder

    registry = cast("LeadingRegistry", runtime.registry)
    if http.ui is not None:
        registry.scans = Scans()
    runtime.close()
    configuration = configuration_of(click.get_current_context())
    listener = open_listener(http.host, http.port)

    def followed() -> None:
        if watcher is None:
            registry.load()
        else:
            watcher.start()
            watcher.armed.wait()

    with shared_folder() as paths:
        os.mkdir(metrics_path(paths))
        counts(metrics_path(paths))
        supervisor = Supervisor(
            count,
            listener,
            paths,
            registry,
            configuration=configuration.raw.decode() if configuration is not None else None,
            drain_s=http.drain,
            states=http.sites,
            look=http.refresh[1] if http.refresh is not None else int,
            shown=lambda: logger.info(
                "listening on http://%s%s, with %d workers", shown_address(listener), http.entrance, count
            ),
        )
        on_hangup(*asked, supervisor.hang_up if any(asked) else None)
        gc.freeze()
        gc.enable()
        code = asyncio.run(supervisor.run(followed))
    if watcher is not None:
        watcher.stop(timeout=0.2)
    return code
