"""How file descriptors are shared out, with plain values."""

from __future__ import annotations

import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.web.listen import Budget, budget


def test_descriptors_are_shared_out_and_never_more_than_there_are() -> None:
    assert budget(1000, 20_000, 10) == Budget(1000, 8, 16)
    for limit in range(16, 4000):
        given = budget(1000, limit, 7)
        assert min(given.places, given.spare, given.arriving) >= 1
        left = limit - 7 - given.places - given.spare - given.arriving
        assert left >= 6 and (left >= 128 or given.places <= limit // 2)


def test_the_least_that_is_told_is_enough() -> None:
    with pytest.raises(UsageError, match="at least 16 "):
        budget(1000, 10, 7)
    assert budget(1000, 16, 7).places == 1
