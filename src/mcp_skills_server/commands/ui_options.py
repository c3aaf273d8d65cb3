"""The option of the page to look at, and what it is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mcp_skills_server.commands.fields import Options, flag
from mcp_skills_server.commands.usage_options import UsageOptions, file_of
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_skills_server.telemetry.usage_store import Report
    from mcp_skills_server.web.ui.settings import UiSettings


class PageOptions(Options):
    """Whether there is a page to look at."""

    heading: ClassVar[str] = "Records"
    ui: bool = flag("Show the skills to people at /ui, to whom MCP is open. Needs the extra [ui].")


def make_ui(usage: UsageOptions, *, counts: bool, once: bytes | None = None) -> UiSettings:
    """The settings of the page.

    Args:
        usage: where uses are counted.
        counts: whether they are.
        once: SHA-256 of what lets in the first who brings it, for somebody's own page.

    Raises:
        UsageError: the extra is not installed.
    """
    try:
        import jinja2  # noqa: F401  # pyright: ignore[reportUnusedImport]

        from mcp_skills_server.web.ui.settings import UiSettings
    except ImportError as error:
        if error.name != "jinja2":
            raise
        raise UsageError("the page needs jinja2; install it with: pip install 'mcp-skills-server[ui]'") from None
    return UiSettings(once=once, only=once is not None, usage=_reports(usage) if counts else None)


def _reports(usage: UsageOptions) -> Callable[[], Report] | None:
    file = file_of(usage.usage)
    if file is None:
        return None
    from mcp_skills_server.telemetry.usage_store import UsageStore
    from mcp_skills_server.web.ui.look import USAGE_DAYS

    return lambda: UsageStore(file).report("skill", USAGE_DAYS)
