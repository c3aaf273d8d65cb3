"""A lone edit is over soon; a burst when it has been quiet for a while; nothing waits for ever."""

from __future__ import annotations

import pytest

from mcp_skills_server.catalog.watch.watcher import Burst
from tables import each_row

STEP, QUIET, LONGEST = 0.04, 0.25, 3.0


def wait(*paths: str) -> float:
    """Seconds that such events wait when they come at once and alone."""
    return round(Burst(paths, 100.0).deadline() - 100.0, 6)


@each_row(
    "paths",
    [
        ["/r/one/SKILL.md"],
        ["/r/one/SKILL.md", "/r/one/SKILL.md.tmp", "/r/one/SKILL.md.bak"],
        ["/r/one", "/r/one/SKILL.md", "/r/one/references", "/r/one/references/a.md"],
        ["/r/old", "/r/new"],
    ],
)
def test_a_save_a_small_skill_or_a_rename_is_lone(paths: list[str]) -> None:
    assert wait(*paths) == STEP


@each_row(
    "paths",
    [
        ["/r/one/SKILL.md", "/r/two/SKILL.md"],
        ["/r/one/SKILL.md", "/q/one/SKILL.md"],
        [f"/r/one/{number}.md" for number in range(4)],
        ["/r/one", *(f"/r/one/{number}.md" for number in range(8))],
    ],
)
def test_more_than_that_waits_for_quiet(paths: list[str]) -> None:
    assert wait(*paths) == QUIET


def test_each_event_begins_the_quiet_anew_and_nothing_does_not() -> None:
    burst = Burst(["/r/one/SKILL.md"], 100.0)
    burst.add([], 100.03)
    assert burst.deadline() == pytest.approx(100.0 + STEP)
    burst.add(["/r/one/SKILL.md"], 100.03)
    assert burst.deadline() == pytest.approx(100.03 + STEP)
    burst.add(["/r/two/SKILL.md"], 100.05)
    assert burst.deadline() == pytest.approx(100.05 + QUIET)


def test_what_was_a_burst_stays_one() -> None:
    """Its top directory may come last, and then all of it would look like one directory."""
    burst = Burst(["/r/a/one/SKILL.md", "/r/a/two/SKILL.md"], 100.0)
    assert burst.deadline() == pytest.approx(100.0 + QUIET)
    burst.add(["/r/a"], 100.0)
    assert burst.deadline() == pytest.approx(100.0 + QUIET)


def test_what_follows_closely_on_a_report_is_no_lone_edit() -> None:
    assert Burst(["/r/one/SKILL.md"], 100.0, lone=False).deadline() == pytest.approx(100.0 + QUIET)


def test_a_burst_without_end_is_cut() -> None:
    burst = Burst(["/r/one/SKILL.md"], 100.0)
    now = 100.0
    while burst.deadline() > now and now < 200.0:
        now += 0.01
        burst.add(["/r/one/SKILL.md", "/r/two/SKILL.md"], now)
    assert now == pytest.approx(100.0 + LONGEST, abs=0.02)
