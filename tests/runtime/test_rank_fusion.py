"""How several rankings become one."""

from __future__ import annotations

from mcp_skills_server.runtime.search import FUSED, fuse
from tables import each_row


def rows(first: list[tuple[int, float]], second: list[tuple[int, float]], weight: float = 1.0) -> list[int]:
    return [row for row, _ in fuse(iter(first), iter(second), weight)]


@each_row(
    ("first", "second", "weight", "order"),
    [
        ([(1, -9.0), (2, -8.0)], [(2, -5.0)], 1.0, [2, 1]),  # what both have comes before what one has
        ([(1, -9.0), (2, -8.0)], [(2, -9.0), (3, -8.0)], 3.0, [2, 1, 3]),
        ([(1, -9.0)], [(2, -99.0)], 1.0, [1, 2]),  # places count, not ranks
        ([(3, -9.0)], [(1, -9.0)], 3.0, [3, 1]),
        ([], [(2, -1.0), (3, 0.0)], 1.0, [2, 3]),
        ([], [], 1.0, []),
    ],
)
def test_rankings_are_fused_by_place_and_weight(
    first: list[tuple[int, float]], second: list[tuple[int, float]], weight: float, order: list[int]
) -> None:
    assert rows(first, second, weight) == order


def test_rows_of_equal_rank_are_equally_good_and_many_equals_are_cut_off_and_not_lost() -> None:
    scores = dict(fuse(iter([(1, -9.0), (2, -9.0), (3, -8.0)]), iter([])))
    assert scores[1] == scores[2] < scores[3]
    assert sorted(rows([(row, -1.0) for row in range(5_000)], [])) == list(range(5_000))


def test_what_is_left_of_the_first_ranking_follows_in_its_order_and_only_once() -> None:
    first = [(row, float(row)) for row in range(3 * FUSED)]
    last = first[-1][0]
    found = rows(first, [(last, -1.0)])
    assert sorted(found) == list(range(3 * FUSED))
    assert found.index(last) < FUSED + 1
    assert [row for row in found if row != last][FUSED:] == list(range(FUSED, last))
