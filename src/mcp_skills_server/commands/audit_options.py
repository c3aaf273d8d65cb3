"""The option of the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import click

from mcp_skills_server.commands.fields import Options, flag, option
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.telemetry.audit import AuditLog


class AuditOptions(Options):
    """What is recorded for whoever answers for the server."""

    heading: ClassVar[str] = "Records"
    audit_log: str | None = option(
        None,
        "Append a line of JSON to this file for every skill that is loaded, read or run, and for who was let in or "
        "refused; - for stdout, over HTTP. Opened anew on SIGHUP. Where it cannot be written, no script runs.",
        type=click.Path(dir_okay=False),
        metavar="FILE",
    )
    audit_required: bool = flag(
        "With --audit-log: write the line before a file of a skill is answered, and refuse the request where "
        "that fails."
    )


def start_audit(options: AuditOptions, *, stdout_is_free: bool) -> AuditLog | None:
    """Record from now on. Return the audit log; None where nothing is recorded.

    Raises:
        UsageError: the file cannot be written, or stdout is the protocol's.
    """
    if options.audit_log is None:
        if options.audit_required:
            raise UsageError("--audit-required is for the audit log; give --audit-log FILE too")
        return None
    from mcp_skills_server.telemetry.audit import STDOUT, AuditLog

    if options.audit_log == STDOUT and not stdout_is_free:
        raise UsageError("--audit-log -: stdout belongs to the protocol here; name a file")
    audit = AuditLog(options.audit_log, required=options.audit_required)
    audit.start()
    return audit
