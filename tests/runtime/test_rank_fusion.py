"""How several rankings become one."""

from __future__ import annotations

from mcp_skills_server.runtime.search import FUSED, fuse


def rows(first: list[tuple[int, float]], second: list[tuple[int, float]] | None = None) -> list[int]:
    return [row for row, _ in fuse(iter(first), iter(second or []))]


def test_what_several_rankings_have_comes_before_what_one_has() -> None:
    assert rows([(1, -9.0), (2, -8.0)], [(2, -5.0)]) == [2, 1]
    assert rows([(1, -9.0)], [(2, -99.0)]) == [1, 2]
    assert rows([], [(2, -1.0), (3, 0.0)]) == [2, 3]
    assert rows([]) == []


def test_rows_of_equal_rank_are_equally_good() -> None:
    scores = dict(fuse(iter([(1, -9.0), (2, -9.0), (3, -8.0)]), iter([])))
    assert scores[1] == scores[2] < scores[3]


def test_what_is_left_of_the_first_ranking_follows_in_its_order_and_only_once() -> None:
    first = [(row, float(row)) for row in range(3 * FUSED)]
    last = first[-1][0]
    found = rows(first, [(last, -1.0)])
    assert sorted(found) == list(range(3 * FUSED))
    assert found.index(last) < FUSED + 1
    assert [row for row in found if row != last][FUSED:] == list(range(FUSED, last))


def test_many_equals_are_cut_off_and_not_lost() -> None:
    assert sorted(rows([(row, -1.0) for row in range(5_000)])) == list(range(5_000))


def test_a_weight_makes_the_first_ranking_count_more() -> None:
    rankings = [(1, -9.0), (2, -8.0)], [(2, -9.0), (3, -8.0)]
    assert [row for row, _ in fuse(iter(rankings[0]), iter(rankings[1]), 3.0)] == [2, 1, 3]
    assert [row for row, _ in fuse(iter([(1, -9.0)]), iter([(3, -9.0)]), 3.0)] == [1, 3]
