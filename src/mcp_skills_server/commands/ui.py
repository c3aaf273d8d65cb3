"""`ui`: show the user's own skills in a browser."""

from __future__ import annotations

import hashlib
import secrets
import threading
import webbrowser
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from mcp_skills_server.commands.features.records import UsageOptions, store_at
from mcp_skills_server.commands.fields import Grouped, option, takes
from mcp_skills_server.commands.logs import Level, log_level, log_to_stderr
from mcp_skills_server.commands.opening import make_watcher, open_served, proposals_at
from mcp_skills_server.commands.options import FollowOptions, ProposalOptions, optional_roots
from mcp_skills_server.commands.printing import remark, say
from mcp_skills_server.commands.reloading import Reloader
from mcp_skills_server.commands.running import end_on_signals, exit_now
from mcp_skills_server.commands.welcome import usual_roots
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.commands.opening import OpenedRoots
    from mcp_skills_server.server.requests import Settings
    from mcp_skills_server.telemetry.usage import UsageStore
    from mcp_skills_server.web.app import HttpApp

_HOST: Final = "127.0.0.1"


class UiOptions(FollowOptions, UsageOptions, ProposalOptions):
    port: int = option(0, "The port; 0 takes one that is free.", type=click.IntRange(0, 65535))
    open_page: bool = option(True, "Open the page in the browser.", "--open/--no-open")
    log_level: Level = log_level("warning")


# The variables are those of `serve`: MCP_SKILLS_HIDDEN for --hidden.
@click.command(cls=Grouped)
@optional_roots
@takes(UiOptions)
@click.pass_context
def ui(context: click.Context, options: UiOptions, roots: tuple[str, ...]) -> None:
    """Look at the skills below each ROOT in a browser, with their problems and what a model sees.

    The page is for you alone: it listens on this machine, and the address that is printed lets in
    once. Ctrl-C ends it. Without a ROOT it shows the usual folders that have skills.

    \b
    Examples:
      mcp-skills-server ui ~/skills
      mcp-skills-server ui ~/skills --no-open --port 8765
    """
    end_on_signals()
    log_to_stderr(options.log_level)
    secret = secrets.token_urlsafe(32)
    counts = _counts(options)
    import anyio

    from mcp_skills_server.server.requests import Settings
    from mcp_skills_server.web.serving import ListenSettings, serve_http

    if not (roots or options.optional_root or options.lock or options.frozen):
        roots = usual_roots()
    opened = open_served(roots, options)
    opened.start(options.first_load)
    settings = Settings(
        proposals=proposals_at(options.proposals, [root.path for root in opened.registry.roots])
    )
    app = _make_app(context, options, opened, settings, secret=secret, counts=counts)

    def listening(url: str) -> None:
        address = f"http://{url}/ui/enter?once={secret}"
        say(address)
        remark("this address lets in one browser, once; the page has a button for another")
        remark("Ctrl-C ends it")
        if options.open_page:
            # may block until the browser ends
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    listen = ListenSettings(_HOST, options.port, "/ui/")
    try:
        anyio.run(partial(serve_http, listening=listening), app, listen, settings.streams)
    finally:
        opened.stop()
    exit_now()


def _make_app(
    context: click.Context,
    options: UiOptions,
    opened: OpenedRoots,
    settings: Settings,
    *,
    secret: str,
    counts: UsageStore | None,
) -> HttpApp:
    """Build an application of the page alone; its one user signs in with the secret."""
    from mcp_skills_server.catalog.views import Views
    from mcp_skills_server.commands.options import index_of
    from mcp_skills_server.runtime.runtime import Runtime
    from mcp_skills_server.server.attachment import Attachment
    from mcp_skills_server.web.app import make_app, mcp_part
    from mcp_skills_server.web.front import FrontSettings
    from mcp_skills_server.web.policy import make_policy
    from mcp_skills_server.web.probes import Probes
    from mcp_skills_server.web.ui.app import WebPage
    from mcp_skills_server.web.ui.session import PageSessions

    registry = opened.registry
    # The user of the page owns the folder, whatever a configuration grants to others.
    views = Views(registry)
    Reloader(context, views, opened).start()
    front = FrontSettings(make_policy(_HOST, (), (), ()))
    runtime = Runtime(registry)
    watcher = make_watcher(registry, options)
    attachment = Attachment(registry, settings, watcher, runtime, views=views)
    secret_hash = hashlib.sha256(secret.encode()).digest()
    sessions = PageSessions(front.policy, front.limits.quotas, secret_hash=secret_hash)
    states = opened.source_states
    answers = index_of(options.cache_dir)
    page = WebPage(
        runtime, settings, views, sessions, site_states=states, counts=counts, answers=answers
    )
    probes = Probes(registry, lambda _: False, site_states=states)
    return make_app([mcp_part(attachment), page.part()], probes, front, runtime.events)


def _counts(options: UsageOptions) -> UsageStore | None:
    """Return the usage store that a server has written, or None if there is none.

    Raises:
        UsageError: the store that --usage names cannot be used.
    """
    try:
        return store_at(options.usage, make=False)
    except UsageError:
        if options.usage is not None:
            raise
        return None
