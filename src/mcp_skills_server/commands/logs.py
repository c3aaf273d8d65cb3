"""What is logged on stderr; stdout belongs to the protocol or to the answer.

A record may carry foreign text, such as a file's name. It becomes one line here, and here alone, in which nothing
moves a terminal's cursor or begins a second record.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from mcp_skills_server.model import printable

_F = TypeVar("_F", bound=Callable[..., Any])
_OURS: Final = "mcp_skills_server"


def log_level(default: str) -> Callable[[_F], _F]:
    """The option for what is logged on stderr."""
    levels = click.Choice(["debug", "info", "warning", "error"])
    return click.option("--log-level", type=levels, default=default, help="What is logged on stderr.")


def log_to_stderr(level: str) -> None:
    """Log what is of this level or above to stderr; of other packages never less than warnings.

    What the protocol's library says at debug holds whole messages, and with them bodies and session handles.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("mcp-skills-server: %(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()]))
    logging.getLogger(_OURS).setLevel(level.upper())


class _OneLine(logging.Formatter):
    """One line for each record; a traceback keeps its own lines, each of them printable."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return "\n".join(printable(line) for line in super().formatException(ei).split("\n"))
