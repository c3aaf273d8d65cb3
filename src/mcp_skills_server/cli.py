"""The command line. Nothing heavy is imported before a command needs it: a host starts us for every conversation.

stdout carries what was asked for, and under `serve` the protocol alone; every other word goes to stderr. Exit codes:
0 fine, 1 the input has errors, 2 wrong usage.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import click

import mcp_skills_server
from mcp_skills_server.commands.fetch import fetch
from mcp_skills_server.commands.install import install
from mcp_skills_server.commands.look import list_, show, validate
from mcp_skills_server.commands.new import new
from mcp_skills_server.commands.publish import publish
from mcp_skills_server.commands.serve import serve
from mcp_skills_server.errors import UsageError

_PROGRAM: Final = "mcp-skills-server"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit. Bad usage is one line on stderr and exit code 2, never a traceback."""
    try:
        code = cli.main(arguments, prog_name=_PROGRAM, standalone_mode=False)
    except UsageError as error:
        _fail(str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else _PROGRAM
        _fail(f"{error.format_message()} See '{command} --help'.")
    except click.ClickException as error:
        _fail(error.format_message())
    except click.Abort:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> None:
    click.echo(f"{_PROGRAM}: {' '.join(message.split())}", err=True)
    sys.exit(2)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(mcp_skills_server.__version__, "-V", "--version", prog_name=_PROGRAM)
def cli() -> None:
    """Serve folders of Agent Skills (directories with a SKILL.md) to every MCP host.

    \b
    Examples:
      mcp-skills-server serve ~/skills          speak MCP on stdin and stdout
      mcp-skills-server list ~/skills           what would be served
      mcp-skills-server validate ~/skills       what is wrong, and how to mend it
      mcp-skills-server install cursor ~/skills have a host start the server
    """


for _command in (serve, list_, show, validate, fetch, publish, install, new):
    cli.add_command(_command)
