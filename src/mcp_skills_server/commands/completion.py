"""`completion`: what a shell runs so that it completes commands and options of this program."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from mcp_skills_server.commands.printing import say_lines

_VARIABLE = "_MCP_SKILLS_SERVER_COMPLETE"
"""Click looks for this variable of the name of the program."""


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what SHELL reads to complete commands and options of this program.

    \b
    Examples:
      mcp-skills-server completion bash > ~/.local/share/bash-completion/completions/mcp-skills-server
      mcp-skills-server completion zsh > ~/.zfunc/_mcp-skills-server
      mcp-skills-server completion fish > ~/.config/fish/completions/mcp-skills-server.fish
    """
    root = context.find_root()
    complete = get_completion_class(shell)
    if complete is not None:
        say_lines(complete(root.command, {}, root.info_name or "mcp-skills-server", _VARIABLE).source())
