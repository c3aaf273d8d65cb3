"""Command that starts this program, and the tool that installed it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mcp_skills_server.errors import PROGRAM, UsageError

_PLAIN: Final = re.compile(r"[\w@+=:,./\\-]+")


def start_command() -> list[str]:
    """Return the command that starts this program from any folder.

    Links stay, since updates change their targets.
    """
    running = sys.argv[0]
    program = shutil.which(running) or running
    if Path(running).stem == PROGRAM and os.path.isfile(program):
        return [os.path.abspath(program)]
    # Hosts start it in a project, whose modules -P keeps out of `sys.path`.
    return [os.path.abspath(sys.executable), "-P", "-m", "mcp_skills_server"]


def shell_command(words: Sequence[str]) -> str:
    """Return words as a command to paste into this system's shell.

    cmd.exe and PowerShell know double quotes, and cmd.exe no others.
    """
    if sys.platform != "win32":
        return shlex.join(words)
    return " ".join(word if _PLAIN.fullmatch(word) else f'"{word}"' for word in words)


def is_temporary() -> bool:
    """Return whether this environment is in a cache that may be emptied (uvx, pipx run).

    Both tag their caches (https://bford.info/cachedir/). Lasting environments only tag themselves.
    """
    return any((folder / "CACHEDIR.TAG").exists() for folder in Path(sys.prefix).parents)


def missing_extra(what: str, extra: str) -> UsageError:
    """Return the error for a feature `what` whose optional dependencies are not installed."""
    # From the clone: the package is on no index, where anyone could register its name.
    wanted = f'".[{extra}]"'
    if is_temporary():
        remedy = f"uvx --from {wanted} {PROGRAM}, or pipx run --spec {wanted} {PROGRAM}"
    elif os.path.exists(f"{sys.prefix}/pipx_metadata.json"):
        remedy = f"pipx inject {os.path.basename(sys.prefix)} {wanted}"
    elif os.path.exists(f"{sys.prefix}/uv-receipt.toml"):
        remedy = f"uv tool install --with {wanted} . (and --with every other extra that you use)"
    else:
        remedy = f"{shell_command([sys.executable])} -m pip install {wanted}"
    return UsageError(f"the extra [{extra}] for {what} is not installed; in the clone: {remedy}")
