"""`serve --workers`: what is another with several processes, in the one that starts them and in each of them."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import click

from mcp_skills_server.commands.fields import Options, option
from mcp_skills_server.commands.running import on_hangup
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.catalog.watch import Watcher
    from mcp_skills_server.commands.config_file import Configuration
    from mcp_skills_server.sources.mirrors import Mirrors
    from mcp_skills_server.web.app import HttpSettings
    from mcp_skills_server.web.workers.channel import Channel, Post

logger = logging.getLogger(__name__)

MOST: Final = 64
_DIVIDED: Final = ("max_sessions", "max_connections", "script_concurrency")
"""Options that hold for all workers together."""
_SILENT: Final = ("mcp_skills_server.commands.reloading", "mcp_skills_server.commands.config_option")
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


def checked(options: WorkerOptions) -> None:
    """Refuse what several workers cannot do.

    Raises:
        UsageError: this system has no way to share sockets, or a limit is too low to be divided.
    """
    if sys.platform == "win32":
        raise UsageError("--workers shares a socket in ways that Windows does not have; leave it out")
    for name in _DIVIDED:
        whole: int = getattr(options, name)
        if whole < options.workers:
            shown = name.replace("_", "-")
            raise UsageError(
                f"--{shown} {whole} cannot be divided among {options.workers} workers; allow more, or start fewer"
            )


def divided(options: _T, post: Post) -> _T:
    """The options of one worker: its share of what holds for all together."""
    for name in _SILENT:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return type(options)(**{**vars(options), **{name: post.share(getattr(options, name)) for name in _DIVIDED}})


def opened_as(channel: Channel | None, *, leads: bool) -> dict[str, Any]:
    """What `open_served` takes besides, for a supervisor or for a worker."""
    if channel is not None:
        from mcp_skills_server.web.workers.following import FollowingRegistry

        return {"make": FollowingRegistry, "folders": channel.post.roots}
    if leads:
        from mcp_skills_server.web.workers.leading import LeadingRegistry

        return {"make": LeadingRegistry}
    return {}


def supervise(
    registry: Registry,
    watcher: Watcher | None,
    mirrors: Mirrors | None,
    options: WorkerOptions,
    configuration: Configuration | None,
    http: HttpSettings,
    read_again: Callable[[], object] | None,
) -> int:
    """Start workers and follow the folders, until SIGTERM or SIGINT; the exit code.

    Raises:
        UsageError: the address cannot be listened on.
    """
    import asyncio

    from mcp_skills_server.web.listen import open_listener, shown_address
    from mcp_skills_server.web.workers.leading import LeadingRegistry
    from mcp_skills_server.web.workers.supervisor import Supervisor

    assert isinstance(registry, LeadingRegistry)
    listener = open_listener(http.host, http.port)

    def followed() -> None:
        if watcher is None:
            registry.load()
        else:
            watcher.start()
            watcher.armed.wait()

    supervisor = Supervisor(
        options.workers,
        listener,
        registry,
        configuration=configuration.raw.decode() if configuration is not None else None,
        states=mirrors.states if mirrors is not None else list,
        look=mirrors.look if mirrors is not None else int,
        shown=lambda: logger.info(
            "listening on http://%s%s, with %d workers", shown_address(listener), http.entrance, options.workers
        ),
    )

    def hang_up() -> None:
        if read_again is not None:
            read_again()
            supervisor.hang_up()

    on_hangup(hang_up if read_again is not None else None)
    gc.freeze()
    gc.enable()
    code = asyncio.run(supervisor.run(followed))
    if watcher is not None:
        watcher.stop(timeout=0.2)
    return code
