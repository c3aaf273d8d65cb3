"""Places for connections, with plain values: who gets one, and who gives way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.web.connections import Slot, Slots, State, client_to_evict


class Crowd:
    """Connections to so many slots, and which of them were closed."""

    def __init__(self, limit: int, spare: int = 2) -> None:
        self.closed: list[Slot] = []
        self.slots = Slots(limit, spare)

    def come(self, owner: str, state: State = State.SILENT, *, known: bool | None = None) -> Slot:
        """A connection; unless told otherwise it was let in if it has sent anything."""
        slot = Slot(self.slots, owner, lambda: self.closed.append(slot))
        self.slots.enter(slot)
        slot.is_admitted = state is not State.SILENT if known is None else known
        self.slots.set_state(slot, state)
        return slot


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9)),
    st.sampled_from("abcde"),
    st.sets(st.sampled_from("abcd")),
)
def test_nobody_loses_a_place_to_who_holds_as_many(held: dict[str, int], newcomer: str, able: set[str]) -> None:
    gives = client_to_evict(held, newcomer, able & held.keys())
    may = {owner for owner in able & held.keys() if owner == newcomer or held[owner] > held.get(newcomer, 0)}
    if gives is None:
        assert not may
    else:
        assert gives in may and held[gives] == max(held[owner] for owner in may)


def test_a_silent_one_of_who_holds_most_goes_before_who_has_been_let_in() -> None:
    crowd = Crowd(5)
    crowd.come("good", State.RESTING)
    crowd.come("good", State.RESTING)
    crowd.come("good", State.RESTING)
    first, second = crowd.come("bad"), crowd.come("bad")
    newcomer = crowd.come("new")
    assert crowd.closed == [first] and not newcomer.is_spare
    crowd.come("bad")  # who has two now, and gives one of its own
    assert crowd.closed == [first, second]


def test_who_comes_back_with_more_and_more_displaces_only_itself() -> None:
    crowd = Crowd(10)
    good = [crowd.come("good", State.RESTING), crowd.come("good")]
    for _ in range(100):
        crowd.come("bad")
    assert len(crowd.closed) == 92 and not set(good) & set(crowd.closed)
    assert not good[0].is_spare


def test_the_longest_idle_goes_and_not_the_oldest() -> None:
    crowd = Crowd(2)
    first, second = crowd.come("a", State.RESTING), crowd.come("a", State.RESTING)
    crowd.slots.set_state(first, State.BUSY)
    crowd.slots.set_state(first, State.RESTING)
    crowd.come("a")
    assert crowd.closed == [second]


def test_a_request_that_let_nobody_in_leaves_a_connection_among_the_silent() -> None:
    crowd = Crowd(2)
    stranger = crowd.come("a", State.BUSY, known=False)
    guest = crowd.come("a", State.RESTING)
    crowd.slots.set_state(stranger, State.RESTING)  # it was answered with 401
    crowd.come("a")
    assert crowd.closed == [stranger] and not guest.is_spare


def test_where_all_are_busy_a_newcomer_is_refused_and_nobody_is_closed() -> None:
    crowd = Crowd(2)
    crowd.come("a", State.BUSY)
    leaving = crowd.come("b", State.BUSY)
    newcomer = crowd.come("c", State.BUSY)
    assert newcomer.is_spare and not newcomer.admit(None) and not crowd.closed
    crowd.slots.leave(leaving)
    assert newcomer.admit(None) and not newcomer.is_spare
    assert crowd.come("d").is_spare


def test_who_moves_from_a_spare_place_to_another_leaves_the_spare_one_free() -> None:
    crowd = Crowd(1, spare=1)
    leaving = crowd.come("a", State.BUSY)
    moving = crowd.come("b", State.BUSY)
    crowd.slots.leave(leaving)
    assert moving.is_spare and moving.admit(None) and not moving.is_spare
    for owner in "cd":  # the second of them takes the spare place of the first
        newcomer = crowd.come(owner)
        assert newcomer.is_spare and moving not in crowd.closed
    assert len(crowd.closed) == 1


def test_who_holds_more_than_half_gives_even_a_busy_one_but_only_to_who_was_let_in() -> None:
    crowd = Crowd(4, spare=4)
    hog = [crowd.come("hog", State.BUSY) for _ in range(4)]
    stranger = crowd.come("stranger")
    assert stranger.is_spare and not crowd.closed  # it has shown nothing yet
    guests = [crowd.come(f"guest {number}", State.BUSY) for number in range(3)]
    assert [guest.admit(None) for guest in guests] == [True, True, False]
    assert crowd.closed == hog[:2]


def test_a_bearer_is_counted_by_the_token_wherever_it_comes_from() -> None:
    crowd = Crowd(3)
    bearer = crowd.come("here", State.BUSY)
    assert bearer.admit("token x")
    crowd.slots.set_state(bearer, State.RESTING)
    crowd.come("here", State.BUSY), crowd.come("here", State.BUSY)
    newcomer = crowd.come("here")  # holds two by then, and token x one: nothing of another's goes
    assert newcomer.is_spare and not crowd.closed


def test_a_silent_one_on_a_spare_place_gives_way_to_the_next() -> None:
    crowd = Crowd(1, spare=2)
    crowd.come("a", State.BUSY)
    probe = crowd.come("probe", State.BUSY)
    silent = [crowd.come("b") for _ in range(50)]
    assert crowd.closed == silent[:-1] and probe.is_spare


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(State), st.integers(0, 3)), max_size=60))
def test_there_are_never_more_than_the_limit_and_none_is_counted_twice(steps: list[tuple[str, State, int]]) -> None:
    crowd = Crowd(4, spare=2)
    there: list[Slot] = []
    for owner, state, what in steps:
        place = crowd.come(owner, state)
        there.append(place)
        there = [each for each in there if each not in crowd.closed]
        if what == 1:
            place.admit(f"token {owner}")
        elif what == 2:
            there.remove(place)
            crowd.slots.leave(place)
            crowd.slots.leave(place)
        there = [each for each in there if each not in crowd.closed]
        assert len([each for each in there if not each.is_spare]) <= 4
        assert len([each for each in there if each.is_spare]) <= 2
        assert len(set(crowd.closed)) == len(crowd.closed)
