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
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any, Final, Literal, TextIO, get_args

import click

from mcp_skills_server.commands.fields import choice, option
from mcp_skills_server.model import printable

_OURS: Final = "mcp_skills_server"
_EVERY_S: Final = 60.0
_PAUSE_S: Final = 0.01
_MAX_WAITING: Final = 10_000
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
    if form == "json":
        handler.addFilter(_note_request())
        handler.setFormatter(_Json())
    else:
        handler.setFormatter(_OneLine("mcp-skills-server: %(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[handler])
    set_level(level)


def set_level(level: str) -> None:
    """Set the log level from now on; other packages log nothing below warnings.

    At debug the protocol's library logs whole messages, and with them bodies and session handles.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(max(logging.WARNING, number))
    logging.getLogger(_OURS).setLevel(number)


class LineQueue(logging.Handler):
    """Log handler that formats and writes lines in a thread, from a bounded queue.

    The thread writes all that is queued at once, and then pauses: to wake it for each line would
    take longer than to write the line. A full queue drops lines; the next line that is queued
    follows one with their number.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._records = SimpleQueue[logging.LogRecord | None]()  # signal handlers can log, too
        self._stream = stream
        self._dropped = 0
        self._writer: threading.Thread | None = threading.Thread(
            target=self._write, name="skills-log", daemon=True
        )
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._records.qsize() >= _MAX_WAITING:
            self._dropped += 1
            return
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            text = f"{dropped:,} lines of the log were dropped: the reader of stderr is too slow"
            fields = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING"}
            fields["msg"] = text
            self._records.put_nowait(logging.makeLogRecord(fields))
        self._records.put_nowait(record)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            self._records.put_nowait(None)
            writer.join()
        super().close()

    def _write(self) -> None:
        is_open = True
        while is_open:
            records = [self._records.get()]
            while not self._records.empty():
                records.append(self._records.get())
            text = "".join(self._line(record) for record in records if record is not None)
            with suppress(OSError, ValueError):  # nobody reads stderr
                self._stream.write(text)
                self._stream.flush()
            is_open = None not in records
            if is_open:
                time.sleep(_PAUSE_S)

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return f"{self.format(record)}\n"
        except Exception:  # a mistake at the place that logs
            self.handleError(record)
            return ""


class ClientLineRateLimit(logging.Filter):
    """Rate limit of lines that clients cause: one a minute for each place in the code.

    The next line has the number of those dropped. Clients cause all lines of other packages, which
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
        call_site, now = (record.name, record.pathname, record.lineno), self._now()
        last, left_out = self._seen.get(call_site, (-_EVERY_S, 0))
        if now - last < _EVERY_S:
            self._seen[call_site] = last, left_out + 1
            return False
        self._seen[call_site] = now, 0
        record.left_out = left_out
        return True


def _note_request() -> Callable[[logging.LogRecord], bool]:
    """Return a filter that notes the id of the current HTTP request in each record."""
    from mcp_skills_server.telemetry.events import request_id

    def note(record: logging.LogRecord) -> bool:
        record.request = request_id.get()
        return True

    return note


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

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        left_out: int = getattr(record, "left_out", 0)
        fields: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "request": getattr(record, "request", None),
            **getattr(record.msg, "fields", {}),
        }
        if left_out:
            fields["left_out"] = left_out
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps({key: value for key, value in fields.items() if value not in (None, "")})
