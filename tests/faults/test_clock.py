"""The clock on the wall is set, forwards or back, by a minute or by years: nothing waits for it, nothing is missed."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest

import mcp_skills_server
from catalog.forest import loaded, plant, skill_md, skills
from tables import each_row

SOURCE = Path(mcp_skills_server.__file__).parent
YEAR_NS = 365 * 86_400 * 10**9


def reads_wall_clock(tree: ast.Module) -> bool:
    """Whether a module asks for the time of day, other than to show it."""
    return any(
        isinstance(node, ast.Attribute)
        and (ast.unparse(node) in ("time.time", "time.time_ns") or node.attr in ("now", "utcnow", "today"))
        and ast.unparse(node) != "keep.now"
        for node in ast.walk(tree)
    )


def test_every_reader_of_the_wall_clock_is_known() -> None:
    found = {path for path in SOURCE.rglob("*.py") if reads_wall_clock(ast.parse(path.read_bytes()))}
    # Each with its test for a clock that was set: what is settled (below and in tests/catalog/test_disk.py), how long
    # an index is fresh (tests/sources/test_index.py), and how long an artifact stays (tests/publish/test_static.py). A
    # certificate must be valid on the day that it is, and a proof of one is kept for that day
    # (tests/provenance/test_signatures.py).
    # The dates of an approval, a proposal, its commit and an event are shown and decide nothing. How old an index file
    # is decides when it is removed, and no more. When a token ends, and with it a sign-in to the page, is a matter of
    # the wall (tests/access, tests/web/ui/test_sign_in.py), and so is the day on which a use is counted
    # (tests/telemetry/test_usage.py). How many tokens end soon is shown. All else that waits, waits by time.monotonic.
    assert {path.relative_to(SOURCE).as_posix() for path in found} == {
        "catalog/disk.py",
        "catalog/index.py",
        "catalog/tree.py",
        "commands/features/metrics.py",
        "commands/options.py",
        "commands/run.py",
        "commands/reloading.py",
        "provenance/signatures.py",
        "proposals/branches.py",
        "proposals/store.py",
        "publish/static.py",
        "runtime/briefing.py",
        "sources/mirrors.py",
        "sources/records.py",
        "telemetry/events.py",
        "telemetry/usage.py",
        "web/bearer.py",
        "web/guards.py",
        "web/ui/pages/live.py",
        "web/ui/pages/history.py",
        "web/ui/session.py",
    }


@each_row("jump", [-YEAR_NS, -60 * 10**9, 60 * 10**9, YEAR_NS])
def test_an_edit_is_found_whatever_the_clock_says(jump: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = loaded(plant(tmp_path, skills("a")))
    real = time.time_ns
    for number in (2, 3):
        monkeypatch.setattr(time, "time_ns", lambda: real() + jump)
        plant(tmp_path, {"a/SKILL.md": skill_md("a", f"version: {number}")})
        assert registry.refresh()
        assert registry.snapshot.skills["a"].frontmatter["version"] == number
        monkeypatch.undo()
        assert not registry.refresh()
