"""How file descriptors are shared out, with plain values and in processes that may have few."""

from __future__ import annotations

import sys

import pytest

from forkserver import run
from mcp_skills_server.errors import UsageError
from mcp_skills_server.web.serving import Budget, divide_descriptors
from tables import each_row
from wire import DEADLINE


def test_descriptors_are_shared_out_and_never_more_than_there_are() -> None:
    assert divide_descriptors(1000, 20_000, 10) == Budget(1000)
    for limit in range(16, 4000):
        given = divide_descriptors(1000, limit, 7)
        assert min(given.slots, given.spare, given.arriving) >= 1
        left = limit - 7 - given.slots - given.spare - given.arriving
        assert left >= 6 and (left >= 128 or given.slots <= limit // 2)


def test_the_least_that_is_told_is_enough() -> None:
    with pytest.raises(UsageError, match="at least 16 "):
        divide_descriptors(1000, 10, 7)
    assert divide_descriptors(1000, 16, 7).slots == 1


LIMITED = """
import logging, resource, sys
from mcp_skills_server.web.serving import _open_files, connection_budget
logging.basicConfig(format="%(message)s")
used = _open_files()
soft, hard = (used + int(each) for each in sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
given = connection_budget(1000)
print(given.slots, given.spare, given.arriving, *(each - used for each in resource.getrlimit(resource.RLIMIT_NOFILE)))
"""
NEEDED = 1000 + 8 + 8 + 128
"""Descriptors for 1,000 connections, beside those that are open already."""


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
@each_row(
    ("soft", "hard", "raised", "slots"),
    [
        (NEEDED + 100, NEEDED + 200, NEEDED + 100, 1000),
        (300, NEEDED, NEEDED, 1000),
        (300, NEEDED - 1, NEEDED - 1, 999),
    ],
)
def test_the_limit_of_the_process_is_raised_as_far_as_it_needs_and_may(
    soft: int, hard: int, raised: int, slots: int
) -> None:
    command = [sys.executable, "-c", LIMITED, str(soft), str(hard)]
    done = run(command, capture_output=True, check=True, text=True, timeout=DEADLINE)
    assert [int(each) for each in done.stdout.split()] == [slots, 8, 8, raised, hard]
    assert done.stderr.startswith("999 connections at once, not 1000 (--max-connections)") or slots == 1000
    assert done.stderr.count("\n") == (0 if slots == 1000 else 1)
