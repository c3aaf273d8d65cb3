"""Command line interface, with lazily imported commands: a host starts it for every conversation.

stdout has the requested output, under `serve` only the protocol; all else goes to stderr. Exit
codes: 0 success, 1 errors in the input, 2 wrong usage, 130 Ctrl-C.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterable
from importlib import import_module
from io import TextIOWrapper
from typing import Final, NoReturn, cast

import click

import mcp_skills_server
from mcp_skills_server.errors import PROGRAM, SkillsServerError, UsageError

_QUOTED: Final = re.compile(r"^'([^']*)'")
"""Matches the quoted value at the start of click's error messages."""
_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
HEADINGS: Final = {
    "Write and check": {
        "new": "welcome.new",
        "list": "look.list_",
        "show": "look.show",
        "validate": "validate.validate",
        "evaluate": "evaluate.evaluate",
        "context": "evaluate.context",
        "freshness": "freshness.freshness",
        "probe": "probe.probe",
        "scripts": "scripts.scripts",
        "ui": "ui.ui",
    },
    "Serve": {
        "serve": "serve.serve",
        "install": "install.install",
        "doctor": "install.doctor",
        "config": "config.config",
        "token": "token.token",
        "proposals": "proposals.proposals",
        "usage": "usage.usage",
        "recall": "recall.recall",
        "completion": "welcome.completion",
    },
    "Fetch and pin": {
        "fetch": "fetch.fetch",
        "lock": "lock.lock",
        "update": "lock.update",
        "diff": "lock.diff",
        "verify": "sign.verify",
    },
    "Publish": {
        "publish": "publish.publish",
        "push": "publish.push",
        "package": "publish.package",
        "sign": "sign.sign",
    },
    "Other protocols": {"rpc": "rpc.rpc", "acp": "acp.acp"},
}
"""The commands below each heading of the help, as `module.function` in `commands`."""
COMMANDS: Final = {name: module for below in HEADINGS.values() for name, module in below.items()}

_MOVED: Final = {
    "approve": "'scripts approve'",
    "bundle": "'package --output NAME.mcpb'",
    "outdated": "'update --check'",
    "overlap": "a part of 'validate'",
    "plugin": "'package'",
    "rules": "'validate --rules' and 'validate --explain CODE'",
    "run": "'scripts run'",
    "try": "'evaluate --prompt TEXT'",
    **{
        f"--{key}": f"the key {key} of a file that --config names"
        for key in ("max-skill-md", "max-files", "max-bytes", "max-depth")
    },
}
"""What former commands, and former options of the commands that do not serve, are now."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit; report usage errors in one line, with exit code 2."""
    _open_standard_streams()
    try:
        code = cli.main(arguments, prog_name=PROGRAM, standalone_mode=False)
    except SkillsServerError as error:
        _fail(str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.BadParameter as error:
        if variable := _source_variable(error):
            _fail(f"{variable}: {error.message}")
        _fail(f"{error.format_message()}{_choice(error)} {_help_hint(error)}")
    except click.NoSuchOption as error:
        if error.option_name in _MOVED:
            _fail(f"{error.option_name} is now {_MOVED[error.option_name]}.")
        _fail(f"{error.format_message()} {_help_hint(error)}")
    except click.UsageError as error:
        _fail(f"{error.format_message()} {_help_hint(error)}")
    except click.ClickException as error:
        _fail(error.format_message())
    except click.Abort:
        sys.exit(130)
    except OSError as error:
        if error.filename is None and error.errno == errno.ENOENT:  # of os.getcwd
            _fail("the current folder no longer exists; change to one that does")
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        from mcp_skills_server.commands.printing import forget_output

        forget_output()
        _fail(f"the output cannot be written ({error.strerror}); make space, or write it elsewhere")
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _open_standard_streams() -> None:
    """Open /dev/null for closed standard streams, whose numbers other files would get."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing != number:
                os.dup2(nothing, number)
                os.close(nothing)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115, as Python's own
    out: object = sys.stdout
    if isinstance(out, TextIOWrapper) and out.encoding.lower() != "utf-8":
        out.reconfigure(errors="backslashreplace")  # Python's own default for stderr


def _help_hint(error: click.UsageError) -> str:
    return f"See '{error.ctx.command_path if error.ctx else PROGRAM} --help'."


def _hint(wanted: str, names: Iterable[str]) -> str:
    """Return " Did you mean ...?" with the nearest names, or "" if none is near."""
    from mcp_skills_server.format.nearest import nearest

    near = nearest(wanted, names)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _choice(error: click.BadParameter) -> str:
    """Return `_hint` for an invalid choice, or ""."""
    parameter = error.param
    if parameter is None or not isinstance(parameter.type, click.Choice):
        return ""
    match = _QUOTED.search(error.message)
    names: Iterable[str] = cast("Iterable[str]", parameter.type.choices)
    return _hint(match[1], names) if match else ""


def _source_variable(error: click.BadParameter) -> str | None:
    """Return the environment variable with the bad value; None if from the command line."""
    parameter, context = error.param, error.ctx
    if parameter is None or context is None or not parameter.name:
        return None
    if context.get_parameter_source(parameter.name) is not click.core.ParameterSource.ENVIRONMENT:
        return None
    from mcp_skills_server.commands.fields import variable_of

    return variable_of(parameter)


def _fail(message: str) -> NoReturn:
    from mcp_skills_server.commands.printing import remark
    from mcp_skills_server.format.uris import redact

    remark(redact(" ".join(message.split())))
    sys.exit(2)


class _LazyGroup(click.Group):
    """A group that imports each command on its first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as click calls it
        """Return the names of all commands, for the help."""
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return the command of this name, or None."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(".")
        return getattr(import_module(f"mcp_skills_server.commands.{module}"), name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command named by the first argument, or raise with the nearest name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            if args[0] in _MOVED:
                raise UsageError(f"{args[0]!r} is now {_MOVED[args[0]]}.")
            raise click.UsageError(f"No such command {args[0]!r}.{_hint(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write commands below headings, with full first sentences, which click would truncate."""
        for heading, names in HEADINGS.items():
            commands = {name: self.get_command(ctx, name) for name in names}
            rows = [
                (name, command.get_short_help_str(limit=400))
                for name, command in commands.items()
                if command is not None
            ]
            with formatter.section(heading):
                formatter.write_dl(rows)


@click.group(
    cls=_LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(mcp_skills_server.__version__, "-V", "--version", prog_name=PROGRAM)
@click.pass_context
def cli(context: click.Context) -> None:
    """Serve folders of Agent Skills (directories with a SKILL.md) to every MCP host.

    \b
    Examples:
      mcp-skills-server serve ~/skills          # speak MCP on stdin and stdout
      mcp-skills-server list ~/skills           # what would be served
      mcp-skills-server validate ~/skills       # what is wrong, and how to fix it
      mcp-skills-server install cursor ~/skills # have a host start the server
    """
    if context.invoked_subcommand is None:
        from mcp_skills_server.commands.welcome import welcome

        welcome()
        context.exit(2)
