"""Jumps of the wall clock: no wait depends on it, and no edit is missed."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest

import mcp_skills_server
from catalog.forest import load_registry, skill_md, skills, write_files
from tables import each_row

SOURCE = Path(mcp_skills_server.__file__).parent
YEAR_NS = 365 * 86_400 * 10**9


def reads_wall_clock(tree: ast.Module) -> bool:
    """Return whether a module reads the wall clock."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        is_function = ast.unparse(node) in ("time.time", "time.time_ns")
        if is_function or node.attr in ("now", "utcnow", "today"):
            return True
    return False


def test_modules_that_read_wall_clock_are_known() -> None:
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        if reads_wall_clock(ast.parse(path.read_bytes())):
            found.add(path.relative_to(SOURCE).as_posix())
    # Tests of clock jumps: unchanged files (below, tests/catalog/test_disk.py), freshness of an
    # index (tests/sources/test_site.py), retention of artifacts (tests/publish/test_static.py),
    # and validity of certificates (tests/provenance/test_signatures.py).
    # The expiry of tokens and sign-ins (tests/access, tests/web/ui/test_sign_in.py) and the day of
    # a use (tests/telemetry/test_usage.py) depend on the wall clock by definition.
    # Replicas exchange times by the wall clock (tests/runtime/test_shared_sessions.py), and processes the age of a
    # session (tests/runtime/test_session_tickets.py).
    # Other dates are only shown, or decide when an old index file is removed. All waits use
    # time.monotonic.
    assert found == {
        "catalog/disk.py",
        "catalog/index.py",
        "catalog/tree.py",
        "commands/features/records.py",
        "commands/options.py",
        "commands/run.py",
        "commands/reloading.py",
        "provenance/signatures.py",
        "proposals/branches.py",
        "proposals/store.py",
        "publish/static.py",
        "runtime/session_tickets.py",
        "runtime/shared_sessions.py",
        "sources/mirrors.py",
        "sources/site.py",
        "telemetry/events.py",
        "telemetry/usage.py",
        "web/bearer.py",
        "web/front.py",
        "web/ui/pages/live.py",
        "web/ui/pages/history.py",
        "web/ui/session.py",
    }


@each_row("jump", [-YEAR_NS, -60 * 10**9, 60 * 10**9, YEAR_NS])
def test_edit_is_found_after_clock_jump(jump: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = load_registry(write_files(tmp_path, skills("a")))
    real = time.time_ns
    for number in (2, 3):
        monkeypatch.setattr(time, "time_ns", lambda: real() + jump)
        write_files(tmp_path, {"a/SKILL.md": skill_md("a", f"version: {number}")})
        assert registry.refresh()
        assert registry.snapshot.skills["a"].frontmatter["version"] == number
        monkeypatch.undo()
        assert not registry.refresh()
