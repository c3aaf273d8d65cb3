"""`rpc`: the Skills Protocol on stdin and stdout."""

from __future__ import annotations

import click

from mcp_skills_server.commands.features.records import AuditOptions, start_audit
from mcp_skills_server.commands.fields import Grouped, takes
from mcp_skills_server.commands.logs import Format, Level, log_format, log_level, log_to_stderr
from mcp_skills_server.commands.opening import make_views, open_served
from mcp_skills_server.commands.options import FollowOptions, optional_roots
from mcp_skills_server.commands.reloading import Reloader
from mcp_skills_server.commands.running import (
    end_on_signals,
    exit_now,
    on_hangup,
    print_waiting_hint,
)
from mcp_skills_server.commands.runtime_options import RuntimeOptions, script_settings
from mcp_skills_server.installation import shell_command


class RpcOptions(FollowOptions, RuntimeOptions, AuditOptions):
    log_level: Level = log_level("warning")
    log_format: Format = log_format()


@click.command(cls=Grouped)
@optional_roots
@takes(RpcOptions)
def rpc(options: RpcOptions, roots: tuple[str, ...]) -> None:
    """Answer the Skills Protocol for the skills below each ROOT, on stdin and stdout.

    One JSON-RPC 2.0 message, or one batch, a line; one answer a line. The same as POST /rpc of
    `serve --transport http`.

    \b
    Example:
      echo '{"jsonrpc":"2.0","id":1,"method":"list_skills"}' | mcp-skills-server rpc ~/skills
    """
    end_on_signals()
    log_to_stderr(options.log_level, options.log_format, queued=True)
    import anyio

    from mcp_skills_server.rpc.methods import Methods
    from mcp_skills_server.rpc.server import Rpc, serve
    from mcp_skills_server.runtime.runtime import Runtime
    from mcp_skills_server.telemetry.log import log_requests

    context = click.get_current_context()
    opened = open_served(roots, options)
    scripts = script_settings(options, roots=opened.scripts)
    runtime = Runtime(opened.registry, scripts=scripts)
    log_requests(runtime.events)
    views = make_views(opened.registry, options.config, local=True)
    methods = Methods(runtime, options.allow_code, views=views)
    print_waiting_hint(
        "a client of the Skills Protocol",
        'type {"jsonrpc":"2.0","id":1,"method":"list_skills"}',
        f"mcp-skills-server list {shell_command(roots)} (what it serves)",
    )
    reloader = Reloader(context, views, opened)
    reloader.start()
    audit = start_audit(options, runtime.events, stdout_is_free=False)
    on_hangup(reloader.request_reload, audit and audit.reopen)
    opened.load_and_follow(options)  # the first call waits until the skills are there
    try:
        with runtime.events.serving():
            anyio.run(serve, Rpc(methods))
    finally:
        runtime.close()
        opened.stop()
    exit_now()
