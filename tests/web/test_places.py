"""Places for connections, with plain values: who gets one, and who gives way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.web.counted import Counted
from mcp_skills_server.web.places import Place, Places, State


class Crowd:
    """Connections to so many places: which were closed, and what was told."""

    def __init__(self, limit: int, spare: int = 2) -> None:
        self.told: list[str] = []
        self.closed: list[Place] = []
        self.places = Places(limit, spare, Counted(lambda _, words: self.told.append(words), lambda *_: None))

    def come(self, owner: str, state: State = State.SILENT, *, known: bool | None = None) -> Place:
        """A connection; unless told otherwise it was let in if it has sent anything."""
        place = Place()
        self.places.enter(place, owner, lambda: self.closed.append(place))
        place.known = state is not State.SILENT if known is None else known
        place.is_(state)
        return place


def test_a_silent_one_of_who_holds_most_goes_before_who_has_been_let_in() -> None:
    crowd = Crowd(5)
    crowd.come("good", State.RESTING)
    crowd.come("good", State.RESTING)
    crowd.come("good", State.RESTING)
    first, second = crowd.come("bad"), crowd.come("bad")
    newcomer = crowd.come("new")
    assert crowd.closed == [first] and not newcomer.spare
    crowd.come("bad")  # who has two now, and gives one of its own
    assert crowd.closed == [first, second]


def test_who_comes_back_with_more_and_more_displaces_only_itself() -> None:
    crowd = Crowd(10)
    good = [crowd.come("good", State.RESTING), crowd.come("good")]
    for _ in range(100):
        crowd.come("bad")
    assert len(crowd.closed) == 92 and not set(good) & set(crowd.closed)
    assert not good[0].spare


def test_the_longest_idle_goes_and_not_the_oldest() -> None:
    crowd = Crowd(2)
    first, second = crowd.come("a", State.RESTING), crowd.come("a", State.RESTING)
    first.is_(State.BUSY)
    first.is_(State.RESTING)
    crowd.come("a")
    assert crowd.closed == [second]


def test_a_request_that_let_nobody_in_leaves_a_connection_among_the_silent() -> None:
    crowd = Crowd(2)
    stranger = crowd.come("a", State.BUSY, known=False)
    guest = crowd.come("a", State.RESTING)
    stranger.is_(State.RESTING)  # it was answered with 401
    crowd.come("a")
    assert crowd.closed == [stranger] and not guest.spare


def test_where_all_are_busy_a_newcomer_is_refused_and_nobody_is_closed() -> None:
    crowd = Crowd(2)
    crowd.come("a", State.BUSY)
    leaving = crowd.come("b", State.BUSY)
    newcomer = crowd.come("c", State.BUSY)
    assert newcomer.spare and not newcomer.admitted(None) and not crowd.closed
    leaving.leave()
    assert newcomer.admitted(None) and not newcomer.spare
    assert crowd.come("d").spare


def test_who_moves_from_a_spare_place_to_another_leaves_the_spare_one_free() -> None:
    crowd = Crowd(1, spare=1)
    leaving = crowd.come("a", State.BUSY)
    moving = crowd.come("b", State.BUSY)
    leaving.leave()
    assert moving.spare and moving.admitted(None) and not moving.spare
    for owner in "cd":  # the second of them takes the spare place of the first
        newcomer = crowd.come(owner)
        assert newcomer.spare and moving not in crowd.closed
    assert len(crowd.closed) == 1


def test_who_holds_more_than_half_gives_even_a_busy_one_but_only_to_who_was_let_in() -> None:
    crowd = Crowd(4, spare=4)
    hog = [crowd.come("hog", State.BUSY) for _ in range(4)]
    stranger = crowd.come("stranger")
    assert stranger.spare and not crowd.closed  # it has shown nothing yet
    guests = [crowd.come(f"guest {number}", State.BUSY) for number in range(3)]
    assert [guest.admitted(None) for guest in guests] == [True, True, False]
    assert crowd.closed == hog[:2]


def test_a_bearer_is_counted_by_the_token_wherever_it_comes_from() -> None:
    crowd = Crowd(3)
    bearer = crowd.come("here", State.BUSY)
    assert bearer.admitted("token x")
    bearer.is_(State.RESTING)
    crowd.come("here", State.BUSY), crowd.come("here", State.BUSY)
    newcomer = crowd.come("here")  # holds two by then, and token x one: nothing of another's goes
    assert newcomer.spare and not crowd.closed


def test_a_silent_one_on_a_spare_place_gives_way_to_the_next() -> None:
    crowd = Crowd(1, spare=2)
    crowd.come("a", State.BUSY)
    probe = crowd.come("probe", State.BUSY)
    silent = [crowd.come("b") for _ in range(50)]
    assert crowd.closed == silent[:-1] and probe.spare


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(State), st.integers(0, 3)), max_size=60))
def test_there_are_never_more_than_the_limit_and_none_is_counted_twice(steps: list[tuple[str, State, int]]) -> None:
    crowd = Crowd(4, spare=2)
    there: list[Place] = []
    for owner, state, what in steps:
        place = crowd.come(owner, state)
        there.append(place)
        there = [each for each in there if each not in crowd.closed]
        if what == 1:
            place.admitted(f"token {owner}")
        elif what == 2:
            there.remove(place)
            place.leave()
            place.leave()
        there = [each for each in there if each not in crowd.closed]
        assert len([each for each in there if not each.spare]) <= 4
        assert len([each for each in there if each.spare]) <= 2
        assert len(set(crowd.closed)) == len(crowd.closed)
