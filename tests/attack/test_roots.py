"""A skill that nobody is served must not take another one out of service."""

from __future__ import annotations

from pathlib import Path

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model import Standing
from mcp_skills_server.provenance.lock import Pins
from provenance.test_pins import locked
from wire import write_skill


def test_a_broken_skill_that_is_not_locked_hides_no_locked_one(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write_skill(first / "own")
    write_skill(second / "refunds")
    gate = Pins(locked(first, second), {})
    (first / "refunds").mkdir()
    (first / "refunds" / "SKILL.md").write_text("no frontmatter\n")
    with Registry([first, second], gate=gate) as registry:
        assert "refunds" in registry.snapshot.paths(Standing.LENIENT)
