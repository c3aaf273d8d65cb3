"""What is logged on stderr; stdout belongs to the protocol or to the answer.

A record may carry foreign text, such as a file's name. It becomes one line here, and here alone, in which nothing
moves a terminal's cursor or begins a second record. What clients can cause as often as they like is said once a
minute, or a stranger would fill the disk.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from mcp_skills_server.model import printable

_F = TypeVar("_F", bound=Callable[..., Any])
_OURS: Final = "mcp_skills_server"
_EVERY_S: Final = 60.0


def log_level(default: str) -> Callable[[_F], _F]:
    """The option for what is logged on stderr."""
    levels = click.Choice(["debug", "info", "warning", "error"])
    return click.option("--log-level", type=levels, default=default, help="What is logged on stderr.")


def log_to_stderr(level: str) -> None:
    """Log what is of this level or above to stderr; of other packages never less than warnings.

    What the protocol's library says at debug holds whole messages, and with them bodies and session handles.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(Seldom())
    handler.setFormatter(_OneLine("mcp-skills-server: %(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()]))
    logging.getLogger(_OURS).setLevel(level.upper())


class Seldom(logging.Filter):
    """Lets through, of each place in the code whose lines clients cause, one record a minute with a count of the rest.

    Those are all places of other packages, which log foreign input as it comes, and of ours those that say so by
    `extra=REPEATS` (errors.py).

    Args:
        now: seconds of a clock that never goes back.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._told: dict[tuple[str, str, int], tuple[float, int]] = {}
        """By place: when it was last heard, and how often it was not since."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is said. One that is learns how many were not."""
        if record.name.partition(".")[0] == _OURS and not getattr(record, "repeats", False):
            return True
        place, now = (record.name, record.pathname, record.lineno), self._now()
        last, unsaid = self._told.get(place, (-_EVERY_S, 0))
        if now - last < _EVERY_S:
            self._told[place] = last, unsaid + 1
            return False
        self._told[place] = now, 0
        record.unsaid = unsaid
        return True


class _OneLine(logging.Formatter):
    """One line for each record; a traceback keeps its own lines, each of them printable."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        unsaid: int = getattr(record, "unsaid", 0)
        return printable(super().formatMessage(record)) + (f" (and {unsaid:,} more like it before)" if unsaid else "")

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return "\n".join(printable(line) for line in super().formatException(ei).split("\n"))
