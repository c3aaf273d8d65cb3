"""How several rankings become one."""

from __future__ import annotations

from mcp_skills_server.runtime.search import FUSED, fused, summed


def rows(*rankings: list[tuple[int, float]]) -> list[int]:
    return [row for row, _ in fused(*map(iter, rankings))]


def test_what_several_rankings_have_comes_before_what_one_has() -> None:
    assert rows([(1, -9.0), (2, -8.0)], [(2, -5.0)]) == [2, 1]
    assert rows([(1, -9.0)], [(2, -99.0)]) == [1, 2]
    assert rows([], [(2, -1.0), (3, 0.0)]) == [2, 3]
    assert rows([]) == []


def test_rows_of_equal_rank_are_equally_good() -> None:
    scores = dict(fused(iter([(1, -9.0), (2, -9.0), (3, -8.0)])))
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


def test_ranks_of_the_same_row_are_summed() -> None:
    first = [(1, -9.0), (2, -8.0), (3, -1.0)]
    assert list(summed(first, iter([(3, -8.5), (4, -8.5)]))) == [(3, -9.5), (1, -9.0), (4, -8.5), (2, -8.0)]
    assert list(summed([], iter([(4, -1.0)]))) == [(4, -1.0)]
    assert list(summed(first, iter([]))) == first
