"""Who finds which session by its handle, and when sessions end."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace as Clock
from typing import Any

import anyio
import pytest

from catalog.forest import DEADLINE, loaded, plant, skill_md
from mcp_skills_server.errors import RequestError
from mcp_skills_server.runtime.quota import QuotaError
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.session import Session
from mcp_skills_server.runtime.sessions import IDLE_S, MOST, Sessions
from runtime.support import FakeScripts

pytestmark = pytest.mark.anyio
DAY = 24 * 3600.0


@pytest.fixture
def clock() -> Clock:
    return Clock(now=1000.0)


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime(loaded(plant(tmp_path, {"a/SKILL.md": skill_md("a"), "a/scripts/wait.sh": "sleep 1\n"})))


async def opened(sessions: Sessions, owner: str | None = None) -> Session:
    session = sessions.new()
    await session.call("skills_load", {"names": ["a"]})
    assert session.active_skills == ["a"]
    sessions.store(session, owner)
    return session


def words(sessions: Sessions, handle: str, owner: str | None = None) -> str:
    """What is said of a handle that finds nothing, without the handle."""
    with pytest.raises(RequestError) as caught:
        sessions.find(handle, owner)
    assert repr(handle[:100]) in str(caught.value)
    return str(caught.value).replace(repr(handle[:100]), "it")


def is_open(sessions: Sessions, session: Session, owner: str | None = None) -> bool:
    try:
        return sessions.find(session.session_id, owner) is session
    except RequestError:
        return False


@pytest.mark.requirement("X-15", "MCP-11")
async def test_handles_are_unguessable(runtime: Runtime) -> None:
    sessions = Sessions(runtime)
    handles = [sessions.new().session_id for _ in range(1000)]
    assert len({*handles}) == 1000
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{22,}", each) for each in handles)
    # Nothing of one tells of the next: no prefix, no counter, no time.
    assert len({each[:4] for each in handles}) > 900
    assert len({each[-4:] for each in handles}) > 900


@pytest.mark.requirement("X-15", "MCP-11")
async def test_unknown_expired_and_foreign_handles_get_the_same_error(runtime: Runtime, clock: Clock) -> None:
    sessions = Sessions(runtime, now=lambda: clock.now)
    session, over, ownerless = [await opened(sessions, owner) for owner in ("alpha", "beta", None)]
    clock.now += DAY
    for each, owner in ((session, "alpha"), (ownerless, None)):
        sessions.store(each, owner)
    assert len(sessions) == 3
    clock.now += 1
    said = {words(sessions, session.session_id, owner) for owner in ("beta", None, "")}
    others = (over, ownerless, sessions.new())
    said |= {words(sessions, handle, "beta") for handle in ("made-up", "", "x" * 10_000)}
    said |= {words(sessions, each.session_id, "beta") for each in others}
    (only,) = said
    assert "skills_load" in only and len(only) < 200
    assert sessions.find(session.session_id, "alpha") is session
    assert sessions.find(ownerless.session_id, None) is ownerless


@pytest.mark.requirement("X-15")
async def test_defaults_allow_4096_sessions_idle_for_a_day(runtime: Runtime) -> None:
    assert (MOST, IDLE_S) == (4096, DAY)
    sessions = Sessions(runtime)
    for _ in range(MOST + 10):
        sessions.store(sessions.new(), None)
    assert len(sessions) == MOST


@pytest.mark.requirement("X-15")
async def test_least_recently_used_session_is_evicted_at_the_limit(runtime: Runtime) -> None:
    sessions = Sessions(runtime, most=2)
    one, two = await opened(sessions), await opened(sessions)
    sessions.find(one.session_id, None)
    three = await opened(sessions)
    assert len(sessions) == 2
    assert two.active_skills == []
    assert [is_open(sessions, each) for each in (one, two, three)] == [True, False, True]


@pytest.mark.requirement("X-15")
async def test_idle_session_expires(runtime: Runtime, clock: Clock) -> None:
    sessions = Sessions(runtime, idle_s=60, now=lambda: clock.now)
    one, two = await opened(sessions), await opened(sessions)
    clock.now += 60
    assert is_open(sessions, one)
    clock.now += 1
    assert is_open(sessions, one) and not is_open(sessions, two)
    clock.now += 61
    assert not is_open(sessions, one)
    three = await opened(sessions)
    assert len(sessions) == 1 and is_open(sessions, three)
    assert one.active_skills == two.active_skills == []


async def test_refused_session_is_stored_after_others_expire(runtime: Runtime, clock: Clock) -> None:
    sessions = Sessions(runtime, most=4, idle_s=60, now=lambda: clock.now)
    for each in "abcd":
        sessions.store(sessions.new(), None, each)
    late = sessions.new()
    await late.call("skills_load", {"names": ["a"]})
    with pytest.raises(QuotaError, match="the server's limit of 4 is reached; try again later"):
        sessions.store(late, None, "e")
    assert late.active_skills == [] and len(sessions) == 4
    clock.now += 61
    sessions.store(late, None, "e")
    assert is_open(sessions, late) and len(sessions) == 1


async def waiting(session: Session) -> None:
    result: Any = await session.call("skills_run_script", {"path": "scripts/wait.sh"})
    assert result["structuredContent"]["exit_code"] == 0


@pytest.mark.requirement("X-15")
@pytest.mark.parametrize(("most", "later"), [(1, 0.0), (2, 1.0), (100, 61.0), (1, 61.0)])
async def test_busy_session_is_neither_evicted_nor_expired(
    runtime: Runtime, clock: Clock, most: int, later: float
) -> None:
    sessions = Sessions(runtime, most=most, idle_s=60, now=lambda: clock.now)
    scripts: Any = FakeScripts(runtime.registry, waits=True)
    runtime.scripts = scripts
    busy, other, latest = await opened(sessions), sessions.new(), sessions.new()
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as group:
            group.start_soon(waiting, busy)
            await scripts.begun.wait()
            clock.now += later
            for each in (other, latest):
                with suppress(QuotaError):  # where there is one place alone, and that is in use
                    sessions.store(each, None)
            assert is_open(sessions, latest) == (most > 1)
            assert busy.active_skills == ["a"]
            assert not scripts.made[0].close.called
            assert is_open(sessions, busy)
            scripts.go.set()
    assert busy.calls == 0
    clock.now += 61
    sessions.store(other, None)
    assert not is_open(sessions, busy)
    assert scripts.made[0].close.called
    assert len(sessions) == 1


async def test_close_ends_all_sessions(runtime: Runtime) -> None:
    sessions = Sessions(runtime)
    scripts: Any = FakeScripts(runtime.registry)
    runtime.scripts = scripts
    found = [await opened(sessions, owner) for owner in (None, "alpha")]
    for session in found:
        await waiting(session)
    sessions.close()
    assert len(sessions) == 0
    assert [each.active_skills for each in found] == [[], []]
    assert [each.close.call_count for each in scripts.made] == [1, 1]
    assert scripts.close.called
    assert not is_open(sessions, found[0])
    sessions.close()
