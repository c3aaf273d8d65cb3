"""What the operator reads in the log: what is served, and each skill that is not, with the reason."""

from __future__ import annotations

import logging
from typing import Final

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.format.frontmatter import IS_FAST
from mcp_skills_server.model import Changes, Standing

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 20


def report_to_log(registry: Registry) -> None:
    """Log a summary of the first scan, and from then on every error that an edit brings."""
    first = True

    def report(changes: Changes) -> None:
        nonlocal first
        snapshot = registry.snapshot
        errors = [
            problem for skill in changes.after.values() for problem in skill.problems if problem.severity == "error"
        ]
        if first:
            first = False
            shown = ", ".join(root.shown for root in registry.roots)
            logger.info("serving %d skills from %s", len(snapshot.paths(Standing.VALID)), shown)
            errors += snapshot.problems
        for problem in errors[:_AT_ONCE]:
            logger.warning("%s", problem)
        if len(errors) > _AT_ONCE:
            logger.warning("and %d more; 'mcp-skills-server validate' tells all", len(errors) - _AT_ONCE)

    if not IS_FAST:
        logger.warning(
            "PyYAML lacks its C parser; large folders are read slowly. Install a PyYAML wheel for this platform"
        )
    registry.subscribe(report)
