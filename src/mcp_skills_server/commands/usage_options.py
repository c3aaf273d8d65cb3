"""Options of the counts of uses, shared by what counts and by what shows the counts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final

from mcp_skills_server.commands.fields import Options, flag, option
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry

logger = logging.getLogger(__name__)

OFF: Final = "off"
_SQLITE: Final = "sqlite:"


class UsageOptions(Options):
    """Whether uses are counted, and where."""

    heading: ClassVar[str] = "Records"
    usage: str | None = option(
        None,
        "Count which skills are used: sqlite:FILE, or off. By default in the user's state directory over HTTP, and off "
        "over stdio. The command 'usage' shows the counts.",
        metavar="STORE",
    )
    usage_questions: bool = flag("Keep the words of searches that found nothing, too.")


def file_of(store: str | None) -> str | None:
    """The file that a store names, of the user's own by default; None for off.

    Raises:
        UsageError: it is none.
    """
    if store is None:
        from mcp_skills_server.directories import state_directory

        return str(state_directory() / "usage.db")
    if store == OFF:
        return None
    if not store.startswith(_SQLITE) or store == _SQLITE:
        raise UsageError(f"--usage {store}: write sqlite:FILE, such as sqlite:/var/lib/skills/usage.db, or off")
    return store.removeprefix(_SQLITE)


def start_usage(options: UsageOptions, registry: Registry, *, by_default: bool) -> Callable[[], None] | None:
    """Count from now on. Returns what writes the rest; None where nothing is counted.

    Raises:
        UsageError: the file that was named cannot be used.
    """
    file = file_of(options.usage) if options.usage is not None or by_default else None
    if file is None:
        if options.usage_questions:
            raise UsageError("--usage-questions keeps words beside the counts; give --usage too")
        return None
    from pathlib import Path

    from mcp_skills_server.telemetry import events
    from mcp_skills_server.telemetry.usage import Usage
    from mcp_skills_server.telemetry.usage_store import UsageStore

    try:
        if options.usage is None:
            Path(file).parent.mkdir(parents=True, exist_ok=True)
        store = UsageStore(file)
    except (OSError, UsageError) as error:
        if options.usage is not None:
            raise
        logger.warning("uses are not counted: %s", error)
        return None
    if options.usage_questions:
        events.keep_questions()
    usage = Usage(store, questions=options.usage_questions)
    registry.subscribe(usage.serves)
    return usage.start()
