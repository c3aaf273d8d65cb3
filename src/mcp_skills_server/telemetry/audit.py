"""Audit log: JSON lines for uses of skills, admitted and refused clients, and decisions.

A line has the principal, address, skill and digest, but no content, argument, token or search text.
Several processes may append to one file, because one system call writes a whole line.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from mcp_skills_server.errors import UsageError
from mcp_skills_server.telemetry.events import CATALOGUE, Event, Events, NotRecordedError, Use

logger = logging.getLogger(__name__)

STDOUT: Final = "-"
_ADMITTING: Final = frozenset(("initialize", "server/discover"))
_RECORDED: Final = frozenset((
    "load", "read", "run", "propose", "approve", "reject", "switch-on", "switch-off",
))  # fmt: skip
_MAX_LINES: Final = 20
"""Most lines in a minute for one address without a principal and one reason; others are counted."""
_PERIOD_S: Final = 60.0
_MAX_STRANGERS: Final = 10_000
_UNRECORDED: Final = (
    "Nothing was run or read: the audit log of this server cannot be written. "
    "Ask its operator to repair it"
)


@dataclass(slots=True)
class _Rate:
    """The lines since a time, and those not written since the last line."""

    since: float
    lines: int = 0
    left_out: int = 0


class AuditLog:
    """An append-only log of events in a file, created with mode 0600, or on stdout for "-".

    With `required`, a line is written before the content of a file is sent, and the request is
    refused if writing fails. `lost` counts the lines that could not be written. UsageError says
    that the file cannot be opened.
    """

    def __init__(self, file: str, *, required: bool = False) -> None:
        self._file = file
        self._required = required
        self.lost = 0
        self._lock = threading.Lock()
        self._reopens = False
        self._is_torn = False
        self._trouble = ""
        self._strangers: OrderedDict[tuple[str | None, str], _Rate] = OrderedDict()
        try:
            self._descriptor = self._open()
        except OSError as error:
            reason = f"cannot be written ({error.strerror}); name a file that can"
            raise UsageError(f"--audit-log {file}: {reason}") from None

    def subscribe_to(self, events: Events) -> None:
        """Subscribe to the events of a server."""
        events.subscribe(self.record, begun_reads=self._required)

    @property
    def state(self) -> str:
        """Return the state of the log in one line for the operator."""
        state = f"audit log {self._file}: written"
        if self._trouble:
            state = f"audit log {self._file}: cannot be written ({self._trouble})"
        if self.lost:
            state += f"; {self.lost:,} lines were lost"
        return state

    def reopen(self) -> None:
        """Reopen the file before the next line, after log rotation; safe in a signal handler."""
        self._reopens = self._file != STDOUT

    def record(self, event: Event) -> None:
        """Write the lines of an event, if it is of a recorded kind.

        Raises:
            NotRecordedError: the lines cannot be written, and their run or read is about to begin.
        """
        left_out = self._left_out(event)
        if left_out is None:
            return
        recorded = _RECORDED
        if self._required and event.outcome != "begun":
            recorded = _RECORDED - {"load", "read"}  # recorded already by their "begun" events
        lines = _lines(event, left_out, recorded)
        if not lines:
            return
        is_begun = event.outcome == "begun"
        is_run = is_begun and event.runs_script
        with self._lock:
            try:
                self._write(b"".join(lines), durably=is_run)
            except OSError as error:
                if not self._trouble:
                    words = (
                        "%s: the audit log cannot be written (%s); no script runs until it can, %s"
                    )
                    reads = "reads are served unrecorded"
                    if self._required:
                        reads = "and no file is read"
                    logger.error(words, self._file, error.strerror, reads)
                self._trouble = error.strerror or str(error)
                if is_begun:
                    raise NotRecordedError(_UNRECORDED) from None
                self.lost += len(lines) + left_out
                return
            if self._trouble:
                self._trouble, lost = "", f"{self.lost:,} lines were lost"
                logger.warning("%s: the audit log is written again; %s", self._file, lost)

    def _left_out(self, event: Event) -> int | None:
        """Return the number of similar lines left out before this one; None to leave it out too.

        The rate limit keeps refused clients without a principal from filling the disk, since runs
        need the log.
        """
        if not event.reason or event.principal is not None:
            return 0
        with self._lock:
            key = event.address, event.reason
            rate = self._strangers.setdefault(key, _Rate(event.time))
            self._strangers.move_to_end(key)
            if len(self._strangers) > _MAX_STRANGERS:
                self._strangers.popitem(last=False)
            if not 0 <= event.time - rate.since < _PERIOD_S:
                rate.since, rate.lines = event.time, 0
            rate.lines += 1
            if rate.lines > _MAX_LINES:
                rate.left_out += 1
                return None
            left_out, rate.left_out = rate.left_out, 0
            return left_out

    def _open(self) -> int:
        if self._file == STDOUT:
            return sys.stdout.fileno()
        return os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _write(self, lines: bytes, *, durably: bool) -> None:
        if self._reopens:
            self._reopens = False
            try:
                opened = self._open()
            except OSError:
                self._reopens = True
                raise
            os.close(self._descriptor)
            self._descriptor = opened
        if self._is_torn:
            lines = b"\n" + lines
        while lines:
            lines = lines[os.write(self._descriptor, lines) :]
            self._is_torn = bool(lines)
        if durably and self._file != STDOUT:
            os.fsync(self._descriptor)


def _lines(event: Event, left_out: int, recorded: Collection[str]) -> list[bytes]:
    if event.protocol == CATALOGUE:
        return []
    if event.outcome == "refused" and not event.runs_script:  # a script that failed was not refused
        return [_line(event, "refuse", next(iter(event.uses), None), left_out)]
    if event.method in _ADMITTING and event.outcome == "ok":
        return [_line(event, "admit", None)]
    return [_line(event, use.action, use) for use in event.uses if use.action in recorded]


def _line(event: Event, what: str, use: Use | None, left_out: int = 0) -> bytes:
    moment = datetime.fromtimestamp(event.time, UTC).isoformat(timespec="milliseconds")
    fields: dict[str, Any] = {
        "time": moment.replace("+00:00", "Z"),
        "event": what,
        "outcome": event.outcome,
        "principal": event.principal,
        "label": event.label,
        "address": event.address,
        "host": event.host,
        "protocol": event.protocol,
        "method": event.method,
        "reason": event.reason,
        "left_out": left_out,
        "proposer": event.proposer,
    }
    if use is not None:
        fields |= {"skill": use.skill, "file": use.file, "digest": use.digest}
        fields["skill_digest"] = use.whole
    given = {key: value for key, value in fields.items() if value}
    return f"{json.dumps(given, separators=(',', ':'))}\n".encode()
