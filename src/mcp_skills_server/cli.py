"""The command line. Nothing heavy is imported before a command needs it: a host starts us for every conversation.

stdout carries what was asked for, and under `serve` the protocol alone; everything else goes to stderr. Exit codes:
0 fine, 1 the input has errors, 2 wrong usage, 130 ended by Ctrl-C.
"""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from typing import Final, cast

import click

import mcp_skills_server
from mcp_skills_server.catalog import collector
from mcp_skills_server.errors import UsageError

_PROGRAM: Final = "mcp-skills-server"
_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
COMMANDS: Final = {
    "acp": ("acp", "acp"),
    "approve": ("approve", "approve"),
    "config": ("config", "config"),
    "diff": ("diff", "diff"),
    "fetch": ("fetch", "fetch"),
    "install": ("install", "install"),
    "list": ("look", "list_"),
    "lock": ("lock", "lock"),
    "new": ("new", "new"),
    "outdated": ("lock", "outdated"),
    "publish": ("publish", "publish"),
    "push": ("push", "push"),
    "rpc": ("rpc", "rpc"),
    "serve": ("serve", "serve"),
    "show": ("look", "show"),
    "sign": ("sign", "sign"),
    "ui": ("ui", "ui"),
    "update": ("lock", "update"),
    "usage": ("usage", "usage"),
    "validate": ("look", "validate"),
    "verify": ("sign", "verify"),
}
"""(module in `commands`, function) of each command. A new command is its file and one row here."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit. Bad usage is one line on stderr and exit code 2, never a traceback."""
    _open_standard_streams()
    try:
        code = cli.main(arguments, prog_name=_PROGRAM, standalone_mode=False)
    except UsageError as error:
        _fail(str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.BadParameter as error:
        variable = _variable(error)
        _fail(f"{variable}: {error.message}" if variable else f"{error.format_message()} {_see(error)}")
    except click.UsageError as error:
        _fail(f"{error.format_message()} {_see(error)}")
    except click.ClickException as error:
        _fail(error.format_message())
    except click.Abort:
        sys.exit(130)
    except BrokenPipeError:
        _forget_output()  # the reader (head, less) has seen enough
        sys.exit(0)
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        _forget_output()
        _fail(f"the output cannot be written ({error.strerror}); make space, or write it elsewhere")
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _open_standard_streams() -> None:
    """Put nothing where the parent closed stdin, stdout or stderr: a file opened later would take its number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing != number:
                os.dup2(nothing, number)
                os.close(nothing)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115, as Python's own


def _forget_output() -> None:
    """Python would complain once more when it flushes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _see(error: click.UsageError) -> str:
    return f"See '{error.ctx.command_path if error.ctx is not None else _PROGRAM} --help'."


def _variable(error: click.BadParameter) -> str | None:
    """The environment variable that the bad value is from, None where it is from the command line."""
    parameter, context = error.param, error.ctx
    if parameter is None or context is None or not parameter.name:
        return None
    if context.get_parameter_source(parameter.name) is not click.core.ParameterSource.ENVIRONMENT:
        return None
    from mcp_skills_server.commands.fields import variables_of

    return next((name for name in variables_of(parameter, context.auto_envvar_prefix) if os.environ.get(name)), None)


def _fail(message: str) -> None:
    from mcp_skills_server.commands.printing import remark

    remark(" ".join(message.split()))
    sys.exit(2)


class _LazyGroup(click.Group):
    """Commands that are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as click calls it
        """Their names, for the help."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of this name, if there is one."""
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        with collector.paused():
            return cast("click.Command", getattr(import_module(f"mcp_skills_server.commands.{module}"), name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, with the whole first sentence of each: click cuts it to what is left of one line."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(limit=400)) for name, each in commands if each])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(mcp_skills_server.__version__, "-V", "--version", prog_name=_PROGRAM)
def cli() -> None:
    """Serve folders of Agent Skills (directories with a SKILL.md) to every MCP host.

    \b
    Examples:
      mcp-skills-server serve ~/skills          speak MCP on stdin and stdout
      mcp-skills-server list ~/skills           what would be served
      mcp-skills-server validate ~/skills       what is wrong, and how to fix it
      mcp-skills-server install cursor ~/skills have a host start the server
    """
