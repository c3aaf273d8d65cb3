"""Features that read events: the audit log, usage counts and traces."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from mcp_skills_server.commands.features.feature import Feature, Server
from mcp_skills_server.commands.fields import Options, file, flag, text
from mcp_skills_server.errors import UsageError, missing_extra
from mcp_skills_server.telemetry.gauge import Gauge

if TYPE_CHECKING:
    from mcp_skills_server.telemetry.audit import AuditLog
    from mcp_skills_server.telemetry.events import Events
    from mcp_skills_server.telemetry.usage import Usage, UsageStore

logger = logging.getLogger(__name__)
OFF: Final = "off"
_SQLITE: Final = "sqlite:"


class AuditOptions(
    Options, heading="Audit log", example="--audit-log audit.jsonl --audit-required"
):
    audit_log: str | None = file(
        "Append a line of JSON to this file for every skill that is loaded, read or run, and for "
        "each client admitted or refused; - for stdout, over HTTP. Reopened on SIGHUP. If it "
        "cannot be written, no script runs."
    )
    audit_required: bool = flag(
        "With --audit-log: write the line before a file of a skill is sent, and refuse the "
        "request if that fails."
    )


def start_audit(options: AuditOptions, events: Events, *, stdout_is_free: bool) -> AuditLog | None:
    """Start the audit log of a server's events and return it; None without `--audit-log`."""
    if options.audit_log is None:
        if options.audit_required:
            raise UsageError("--audit-required is for the audit log; give --audit-log FILE too")
        return None
    from mcp_skills_server.telemetry.audit import STDOUT, AuditLog

    if options.audit_log == STDOUT and not stdout_is_free:
        raise UsageError("--audit-log -: stdout belongs to the protocol here; name a file")
    audit = AuditLog(options.audit_log, required=options.audit_required)
    audit.subscribe_to(events)
    return audit


class Audit(AuditOptions, Feature):
    """The audit log. If it cannot be written, no script starts."""

    only_http = False
    log: AuditLog | None = None

    def start(self, server: Server) -> None:
        self.log = start_audit(self, server.runtime.events, stdout_is_free=server.over_http)

    def reopen(self) -> None:
        if self.log is not None:
            self.log.reopen()

    def gauges(self) -> Mapping[str, Gauge]:
        if self.log is None:
            return {}
        words = "Lines that could not be written to the audit log."
        return {"skills_audit_lost": Gauge(words, self.log.lost)}

    def state(self) -> str:
        return "" if self.log is None else self.log.state


class UsageOptions(Options, heading="Counts of uses", example="--usage sqlite:usage.db"):
    usage: str | None = text(
        "Count which skills are used: sqlite:FILE or off. By default in the user's "
        "state directory over HTTP, and off over stdio. The command 'usage' shows the counts.",
        "STORE",
        path="sqlite:(.+)",
    )
    usage_questions: bool = flag("Also keep the words of searches that found nothing.")


def store_at(store: str | None, *, make: bool = True) -> UsageStore | None:
    """Return the store that `--usage` names, by default in the user's state directory.

    None for off, and with `make=False` where there is no file yet.

    Raises:
        UsageError: the name is no store, or the store cannot be used.
    """
    if store == OFF:
        return None
    if store is None:
        from mcp_skills_server.directories import state_directory

        file = str(state_directory() / "usage.db")
        if make:
            os.makedirs(os.path.dirname(file), exist_ok=True)
    elif not store.startswith(_SQLITE) or store == _SQLITE:
        hint = "write sqlite:FILE, such as sqlite:/var/lib/skills/usage.db, or off"
        raise UsageError(f"--usage {store}: {hint}")
    else:
        file = store.removeprefix(_SQLITE)
    if not make and not os.path.exists(file):
        return None
    from mcp_skills_server.telemetry.usage import UsageStore

    return UsageStore(file)


class UsageCounts(UsageOptions, Feature):
    """Counts of uses. Without `--usage` they are kept only over HTTP."""

    only_http = False
    store: UsageStore | None = None
    """The file of the counts; None if nothing is counted."""
    _usage: Usage | None = None
    _stop: Callable[[], None] | None = None

    def start(self, server: Server) -> None:
        if self.usage is not None or server.over_http:
            try:
                self.store = store_at(self.usage)
            except (OSError, UsageError) as error:
                if self.usage is not None:
                    raise
                logger.warning("uses are not counted: %s", error)
                return
        if self.store is None:
            if self.usage_questions:
                hint = "give --usage sqlite:FILE too"
                raise UsageError(f"--usage-questions keeps words beside counts; {hint}")
            return
        from mcp_skills_server.telemetry.usage import Usage

        self._usage = Usage(self.store, questions=self.usage_questions)
        server.opened.registry.subscribe(self._usage.on_changes)
        self._stop = self._usage.start(server.runtime.events)
        if not server.over_http:  # over HTTP this would disclose what other people load
            server.runtime.briefing.prefer(self.store.recently_loaded())

    def stop(self) -> None:
        if self._stop is not None:
            self._stop()

    def gauges(self) -> Mapping[str, Gauge]:
        if self._usage is None:
            return {}
        return {
            "skills_usage_waiting": Gauge(
                "Different counts of uses in the queue to be written.", self._usage.waiting
            ),
            "skills_usage_lost": Gauge(
                "Uses that were not counted, because the queue was full.", self._usage.lost
            ),
        }


class Traces(Feature, heading="Traces", example="--traces"):
    """OpenTelemetry traces."""

    traces: bool = flag(
        "Send a span for each request by OTLP over HTTP, to OTEL_EXPORTER_OTLP_ENDPOINT. Needs "
        "the extra [otel]."
    )
    only_http = False
    _stop: Callable[[], None] | None = None

    def start(self, server: Server) -> None:
        if not self.traces:
            return
        try:
            from mcp_skills_server.telemetry.tracing import Tracing, make_provider
        except ImportError:
            raise missing_extra("traces", "otel") from None
        from mcp_skills_server.dialects import runtime

        provider, self._stop = make_provider()
        server.runtime.events.subscribe(
            Tracing(provider, known_methods(), runtime.canonical).record
        )

    def stop(self) -> None:
        if self._stop is not None:
            self._stop()


def known_methods() -> frozenset[str]:
    """Return the methods of all protocols; metrics and traces do not name any other method."""
    from mcp_skills_server.dialects import skills_protocol
    from mcp_skills_server.server.eras import LEGACY, MODERN

    return frozenset((*LEGACY.shapes, *MODERN.shapes, *skills_protocol.METHODS, "GET", "HEAD"))
