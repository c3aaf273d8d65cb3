"""What would help a script that failed for want of something that the operator can give."""

from __future__ import annotations

import re
from typing import Final

_MOST: Final = 16 << 10
"""Characters of the end of stderr that are looked at: errors come last."""
_NETWORK: Final = re.compile(
    r"Network is unreachable|Temporary failure in name resolution|Name or service not known|Could not resolve host"
    r"|EAI_AGAIN|ENETUNREACH|ENOTFOUND|No address associated with hostname|unable to resolve host address"
)
_MODULE: Final = re.compile(
    r"No module named '?([\w.]{1,100})|Cannot find (?:module|package) '([^'\n]{1,100})'"
    r"|cannot load such file -- (\S{1,100})|Can't locate (\S{1,100}) in @INC"
)
_PROGRAM: Final = re.compile(
    r"(?:^|: )([\w.+-]{1,64}): (?:command )?not found$|No such file or directory: '([\w.+-]{1,64})'$", re.MULTILINE
)


def advice(stderr: str, *, network_closed: bool) -> list[str]:
    """What to say below the stderr of a script that failed, a line each.

    Args:
        stderr: what it wrote.
        network_closed: whether scripts have no network here.
    """
    end = stderr[-_MOST:]
    lines: list[str] = []
    if network_closed and _NETWORK.search(end):
        lines.append("scripts have no network here; whoever runs this server can give it to them with --script-network")
    module, program = _MODULE.search(end), _PROGRAM.search(end)
    if module:
        lines.append(
            f"the package {_first(module)} is missing; whoever runs this server can name a program that has it, such "
            "as the Python of a virtual environment, with --interpreter .EXT=PROGRAM"
        )
    elif program:
        lines.append(
            f"the program {_first(program)} is not there for scripts; they see the system's programs alone, so whoever "
            "runs this server must install it for all users"
        )
    return lines


def _first(found: re.Match[str]) -> str:
    return next(each for each in found.groups() if each)
