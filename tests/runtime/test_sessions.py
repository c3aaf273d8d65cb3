"""Who finds which session by its handle, and when sessions end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from catalog.forest import DEADLINE, loaded, plant, skill_md
from mcp_skills_server.errors import RequestError
from mcp_skills_server.runtime.quota import QuotaError
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.session import Session
from mcp_skills_server.runtime.sessions import IDLE_S, MOST, Sessions
from runtime.workshop import Scripts

DAY = 24 * 3600.0


class Clock:
    """Tells the time that a test says it is."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    """What sessions over one small skill share."""
    return Runtime(loaded(plant(tmp_path, {"a/SKILL.md": skill_md("a"), "a/scripts/wait.sh": "sleep 1\n"})))


def opened(sessions: Sessions, owner: str | None = None) -> Session:
    """A session that holds something and is kept."""
    session = sessions.new()
    load(session)
    sessions.store(session, owner)
    return session


def load(session: Session) -> None:
    """Load the skill in it."""
    result: Any = anyio.run(session.call, "skills_load", {"names": ["a"]})
    assert "isError" not in result


def words(sessions: Sessions, handle: str, owner: str | None = None) -> str:
    """What is said of a handle that finds nothing, without the handle."""
    with pytest.raises(RequestError) as caught:
        sessions.find(handle, owner)
    assert repr(handle[:100]) in str(caught.value)
    return str(caught.value).replace(repr(handle[:100]), "it")


def is_open(sessions: Sessions, session: Session, owner: str | None = None) -> bool:
    """Whether the session is found. That it was asked for keeps it open."""
    try:
        return sessions.find(session.session_id, owner) is session
    except RequestError:
        return False


@contextmanager
def none_left(sessions: Sessions) -> Iterator[None]:
    """Afterwards no session is open."""
    yield
    assert len(sessions) == 0


# Handles


@pytest.mark.requirement("X-15", "MCP-11")
def test_handles_cannot_be_guessed(runtime: Runtime) -> None:
    sessions = Sessions(runtime)
    handles = [sessions.new().session_id for _ in range(1000)]
    assert len({*handles}) == 1000
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{22,}", each) for each in handles)
    # Nothing of one tells of the next: no prefix, no counter, no time.
    assert len({each[:4] for each in handles}) > 900
    assert len({each[-4:] for each in handles}) > 900


@pytest.mark.requirement("X-15")
@pytest.mark.parametrize("owner", [None, "alpha"])
def test_a_kept_session_is_found_by_its_handle(runtime: Runtime, owner: str | None) -> None:
    sessions = Sessions(runtime)
    session = opened(sessions, owner)
    sessions.store(session, owner)
    assert len(sessions) == 1
    assert sessions.find(session.session_id, owner) is session
    assert session.active_skills == ["a"]


@pytest.mark.requirement("X-15", "MCP-11")
def test_unknown_ended_and_others_handles_are_told_in_the_same_words(runtime: Runtime, clock: Clock) -> None:
    sessions = Sessions(runtime, now=clock)
    session, over = opened(sessions, "alpha"), opened(sessions, "beta")
    clock.now += DAY
    sessions.store(session, "alpha")
    clock.now += 1
    said = {
        words(sessions, "made-up", "beta"),
        words(sessions, "", "beta"),
        words(sessions, "x" * 10_000, "beta"),
        words(sessions, session.session_id, "beta"),
        words(sessions, session.session_id, None),
        words(sessions, session.session_id, ""),
        words(sessions, over.session_id, "beta"),
        words(sessions, opened(sessions, None).session_id, "beta"),
        words(sessions, sessions.new().session_id, "beta"),
    }
    assert len(said) == 1
    (only,) = said
    assert "skills_load" in only and len(only) < 200
    assert sessions.find(session.session_id, "alpha") is session


# Bounds


@pytest.mark.requirement("X-15")
def test_there_is_room_for_many_sessions_for_a_day(runtime: Runtime) -> None:
    assert (MOST, IDLE_S) == (4096, DAY)
    sessions = Sessions(runtime)
    for _ in range(MOST + 10):
        sessions.store(sessions.new(), None)
    assert len(sessions) == MOST


@pytest.mark.requirement("X-15")
def test_beyond_the_bound_the_one_unused_the_longest_ends(runtime: Runtime) -> None:
    sessions = Sessions(runtime, most=2)
    one, two = opened(sessions), opened(sessions)
    sessions.find(one.session_id, None)
    three = opened(sessions)
    assert len(sessions) == 2
    assert two.active_skills == []
    assert [is_open(sessions, each) for each in (one, two, three)] == [True, False, True]


@pytest.mark.requirement("X-15")
def test_a_session_that_is_unused_for_too_long_ends(runtime: Runtime, clock: Clock) -> None:
    sessions = Sessions(runtime, idle_s=60, now=clock)
    one, two = opened(sessions), opened(sessions)
    clock.now += 60
    assert is_open(sessions, one)
    clock.now += 1
    assert is_open(sessions, one)
    assert not is_open(sessions, two)
    clock.now += 61
    assert not is_open(sessions, one)
    three = opened(sessions)
    assert len(sessions) == 1
    assert one.active_skills == two.active_skills == []
    assert is_open(sessions, three)


def test_who_finds_all_places_taken_is_told_and_gets_one_when_another_has_been_idle(
    runtime: Runtime, clock: Clock
) -> None:
    sessions = Sessions(runtime, most=4, idle_s=60, now=clock)
    for each in "abcd":
        sessions.store(sessions.new(), None, each)
    late = sessions.new()
    load(late)
    with pytest.raises(QuotaError, match="the server's limit of 4 is reached; try again later"):
        sessions.store(late, None, "e")
    assert late.active_skills == []
    assert len(sessions) == 4
    clock.now += 61
    sessions.store(late, None, "e")
    assert is_open(sessions, late)
    assert len(sessions) == 1


# Sessions that are busy


async def waiting(session: Session) -> None:
    """Call a script in it, and wait for its end."""
    result: Any = await session.call("skills_run_script", {"path": "scripts/wait.sh"})
    assert result["structuredContent"]["exit_code"] == 0


async def check_busy(sessions: Sessions, session: Session, other: Session, later: float, clock: Clock) -> None:
    """Nothing ends the session while a script of it runs; afterwards it is one like the others."""
    scripts: Any = sessions.runtime.scripts
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as group:
            group.start_soon(waiting, session)
            await scripts.begun.wait()
            clock.now += later
            latest = sessions.new()
            for each in (other, latest):
                with suppress(QuotaError):  # where there is one place alone, and that is in use
                    sessions.store(each, None)
            assert is_open(sessions, latest) == (sessions._quota.total > 1)
            assert session.active_skills == ["a"]
            assert not scripts.made[0].closed
            assert sessions.find(session.session_id, None) is session
            scripts.go.set()


@pytest.mark.requirement("X-15")
@pytest.mark.parametrize(("most", "later"), [(1, 0.0), (2, 1.0), (100, 61.0), (1, 61.0)])
def test_a_session_is_not_ended_while_it_works(runtime: Runtime, clock: Clock, most: int, later: float) -> None:
    sessions = Sessions(runtime, most=most, idle_s=60, now=clock)
    scripts = Scripts(runtime.registry, waits=True)
    runtime.scripts = scripts  # pyright: ignore[reportAttributeAccessIssue]
    other = sessions.new()
    busy = opened(sessions)
    anyio.run(check_busy, sessions, busy, other, later, clock)
    assert busy.calls == 0
    clock.now += 61
    sessions.store(other, None)
    assert not is_open(sessions, busy)
    assert scripts.made[0].closed
    assert len(sessions) == 1


# The end


def test_closing_ends_them_all(runtime: Runtime) -> None:
    sessions = Sessions(runtime)
    scripts = Scripts(runtime.registry)
    runtime.scripts = scripts  # pyright: ignore[reportAttributeAccessIssue]
    found = [opened(sessions, owner) for owner in (None, "alpha")]
    for session in found:
        anyio.run(waiting, session)
    with none_left(sessions):
        sessions.close()
    assert [each.active_skills for each in found] == [[], []]
    assert [each.closed for each in scripts.made] == [1, 1]
    assert scripts.closed
    assert not is_open(sessions, found[0])
    sessions.close()
