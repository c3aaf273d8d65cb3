"""What the operator chose for the page."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_skills_server.telemetry.usage_store import UsageStore


@dataclass(frozen=True, slots=True)
class UiSettings:
    """What the operator chose for the page.

    Attributes:
        once: SHA-256 of what lets the first who brings it in; None where the server's own policy says who may look.
        only: serve the page and nothing else.
        counts: of uses; None where nothing is counted.
    """

    once: bytes | None = None
    only: bool = False
    counts: UsageStore | None = None
