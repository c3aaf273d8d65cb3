"""The audit log and the counts of uses: their options and their start."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from mcp_skills_server.commands.fields import Options, file, flag, option
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.telemetry.audit import AuditLog
    from mcp_skills_server.telemetry.events import Events
    from mcp_skills_server.telemetry.usage import Usage
    from mcp_skills_server.telemetry.usage_store import UsageStore

logger = logging.getLogger(__name__)
OFF: Final = "off"
_SQLITE: Final = "sqlite:"


class AuditOptions(Options):
    """The audit log."""

    heading: ClassVar[str] = "Records"
    audit_log: str | None = file(
        "Append a line of JSON to this file for every skill that is loaded, read or run, and for who was let in or "
        "refused; - for stdout, over HTTP. Opened anew on SIGHUP. Where it cannot be written, no script runs."
    )
    audit_required: bool = flag(
        "With --audit-log: write the line before a file of a skill is answered, and refuse the request where "
        "that fails."
    )


def start_audit(options: AuditOptions, events: Events, *, stdout_is_free: bool) -> AuditLog | None:
    """Start the audit log of a server's events and return it; None without `--audit-log`.

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
    audit.start(events)
    return audit


def _locate_store(store: str, folder: str) -> str:
    """Return `sqlite:FILE` with the absolute path of the file; another value as it is."""
    if not store.startswith(_SQLITE) or store == _SQLITE:
        return store
    return _SQLITE + os.path.normpath(os.path.join(folder, store.removeprefix(_SQLITE)))


class UsageOptions(Options):
    """The counts of uses."""

    heading: ClassVar[str] = "Records"
    usage: str | None = option(
        None,
        "Count which skills are used: sqlite:FILE or off. By default in the user's "
        "state directory over HTTP, and off over stdio. The command 'usage' shows the counts.",
        locate=_locate_store,
        metavar="STORE",
    )
    usage_questions: bool = flag("Keep the words of searches that found nothing, too.")


class Counting(NamedTuple):
    """Running counts of uses.

    Attributes:
        usage: the counter.
        store: its file.
        stop: writes the rest, and ends the counting.
    """

    usage: Usage
    store: UsageStore
    stop: Callable[[], None]


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
        raise UsageError(f"--usage {store}: write sqlite:FILE, such as sqlite:/var/lib/skills/usage.db, or off")
    else:
        file = store.removeprefix(_SQLITE)
    if not make and not os.path.exists(file):
        return None
    from mcp_skills_server.telemetry.usage_store import UsageStore

    return UsageStore(file)


def start_usage(options: UsageOptions, registry: Registry, events: Events, *, by_default: bool) -> Counting | None:
    """Start to count the uses of a registry's skills by a server's events; None where nothing is counted.

    Without `--usage` it depends on `by_default`, and a store that cannot be used is a warning.

    Raises:
        UsageError: the store that was named cannot be used.
    """
    store = None
    if options.usage is not None or by_default:
        try:
            store = store_at(options.usage)
        except (OSError, UsageError) as error:
            if options.usage is not None:
                raise
            logger.warning("uses are not counted: %s", error)
            return None
    if store is None:
        if options.usage_questions:
            raise UsageError("--usage-questions keeps words beside the counts; give --usage too")
        return None
    from mcp_skills_server.telemetry.usage import Usage

    usage = Usage(store, questions=options.usage_questions)
    registry.subscribe(usage.serves)
    return Counting(usage, store, usage.start(events))
