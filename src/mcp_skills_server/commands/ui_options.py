"""The option of the page to look at, and what it is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mcp_skills_server.commands.fields import Options, flag

if TYPE_CHECKING:
    from mcp_skills_server.telemetry.usage_store import UsageStore
    from mcp_skills_server.web.ui.settings import UiSettings


class PageOptions(Options):
    """Whether there is a page to look at."""

    heading: ClassVar[str] = "Over HTTP (--transport http)"
    ui: bool = flag("Show the skills to people at /ui, to whom MCP is open.")


def make_ui(counts: UsageStore | None, *, once: bytes | None = None) -> UiSettings:
    """The settings of the page.

    Args:
        counts: where uses are counted, None where they are not.
        once: SHA-256 of what lets in the first who brings it, for somebody's own page.
    """
    from mcp_skills_server.web.ui.settings import UiSettings

    if counts is None:
        return UiSettings(once=once, only=once is not None)
    from mcp_skills_server.web.ui.look import USAGE_DAYS

    return UiSettings(once=once, only=once is not None, usage=lambda by: counts.report(by, USAGE_DAYS))
