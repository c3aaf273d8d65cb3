"""Logging to stderr; stdout carries the protocol or the output of a command.

A record may carry untrusted text, such as the name of a file. The formatters here make one line of
it, in which nothing controls the terminal or forges a second record (log injection). Lines that
clients cause are rate-limited to one a minute for each place in the code, or a client could fill
the disk.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from typing import Any, Final, Literal, TextIO, get_args

import click

from mcp_skills_server.commands.fields import choice, option
from mcp_skills_server.model import printable

_OURS: Final = "mcp_skills_server"
_EVERY_S: Final = 60.0
_MOST_WAITING: Final = 10_000
"""Lines in the queue to stderr; further ones are dropped and counted."""
Level = Literal["debug", "info", "warning", "error"]
Format = Literal["text", "json"]


def log_level(default: Level) -> Level:
    """Return a field for the option `--log-level`."""
    kind = click.Choice(get_args(Level))
    return option(default, "The lowest level of log lines on stderr.", type=kind, is_live=True)


def log_format() -> Format:
    """Return a field for the option `--log-format`."""
    words = (
        "The format of log lines. json: an object a line, with time, level, message and details."
    )
    return choice("text", "json", words=words)


def log_to_stderr(level: str, form: Format = "text", *, queued: bool = False) -> None:
    """Log from this level up to stderr; `queued` writes in a thread, so that no request waits."""
    handler = LineQueue(sys.stderr) if queued else logging.StreamHandler(sys.stderr)
    handler.addFilter(ClientLineRateLimit())
    handler.setFormatter(
        _Json() if form == "json" else _OneLine("mcp-skills-server: %(levelname)s: %(message)s")
    )
    logging.basicConfig(handlers=[handler])
    set_level(level)


def set_level(level: str) -> None:
    """Set the log level from now on; other packages log nothing below warnings.

    At debug the protocol's library logs whole messages, and with them bodies and session handles.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(max(logging.WARNING, number))
    logging.getLogger(_OURS).setLevel(number)


class LineQueue(QueueHandler):
    """Log handler that formats lines at once and writes them in a thread, from a bounded queue.

    A full queue drops lines; the next line that is queued follows one with their number.
    """

    def __init__(self, stream: TextIO) -> None:
        self._lines = SimpleQueue[Any]()  # reentrant, so that signal handlers can log
        super().__init__(self._lines)
        self._dropped = 0
        self._writer: QueueListener | None = QueueListener(
            self._lines, logging.StreamHandler(stream)
        )
        self._writer.start()

    def enqueue(self, record: logging.LogRecord) -> None:
        if self._lines.qsize() >= _MOST_WAITING:
            self._dropped += 1
            return
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            text = f"{dropped:,} lines of the log were dropped: the reader of stderr is too slow"
            fields = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING"}
            fields["msg"] = text
            self._lines.put_nowait(self.prepare(logging.makeLogRecord(fields)))
        self._lines.put_nowait(record)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.stop()
        super().close()


class ClientLineRateLimit(logging.Filter):
    """Rate limit of lines that clients cause: one a minute for each place in the code.

    The next line has the number of those left out. Clients cause all lines of other packages, which
    log untrusted input, and those with `extra=REPEATS` (errors.py). `now` is a monotonic clock.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._seen: dict[tuple[str, str, int], tuple[float, int]] = {}
        """By place: the time of the last record that passed, and the number suppressed since."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] == _OURS and not getattr(record, "repeats", False):
            return True
        place, now = (record.name, record.pathname, record.lineno), self._now()
        last, left_out = self._seen.get(place, (-_EVERY_S, 0))
        if now - last < _EVERY_S:
            self._seen[place] = last, left_out + 1
            return False
        self._seen[place] = now, 0
        record.left_out = left_out
        return True


class _OneLine(logging.Formatter):
    """Formatter of one line for each record; a traceback keeps its own lines, each printable."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        left_out: int = getattr(record, "left_out", 0)
        more = f" (and {left_out:,} more like it before)" if left_out else ""
        return printable(super().formatMessage(record)) + more

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return "\n".join(printable(line) for line in super().formatException(ei).split("\n"))


class _Json(logging.Formatter):
    """Formatter of one JSON object a line."""

    def __init__(self) -> None:
        super().__init__()
        from mcp_skills_server.telemetry.events import request_id

        self._request = request_id

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        left_out: int = getattr(record, "left_out", 0)
        fields: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "request": self._request.get(),
            **getattr(record, "fields", {}),
        }
        if left_out:
            fields["left_out"] = left_out
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps({key: value for key, value in fields.items() if value not in (None, "")})
