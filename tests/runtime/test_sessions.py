"""The session table: look-up by handle, ownership, eviction and expiry."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace as Clock
from typing import Any

import anyio
import pytest

from catalog.forest import DEADLINE, load_registry, skill_md, write_files
from mcp_skills_server.access.quota import Owner, QuotaError
from mcp_skills_server.errors import RequestError
from mcp_skills_server.runtime import sessions as sessions_module
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.session import Session
from mcp_skills_server.runtime.sessions import IDLE_S, MAX_SESSIONS, Sessions
from runtime.support import FakeScripts

pytestmark = pytest.mark.anyio
DAY = 24 * 3600.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of sessions, in days."""
    clock = Clock(days=1.0)
    monkeypatch.setattr(sessions_module, "time", Clock(monotonic=lambda: clock.days * DAY))
    return clock


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime(
        load_registry(write_files(tmp_path, {"a/SKILL.md": skill_md("a"), "a/scripts/wait.sh": "sleep 1\n"}))
    )


async def open_session(sessions: Sessions, owner: str | None = None) -> Session:
    session = sessions.new()
    await session.call("skills_load", {"names": ["a"]})
    assert session.active_skills == ["a"]
    sessions.store(session, owner)
    return session


def error_for(sessions: Sessions, handle: str, owner: str | None = None) -> str:
    """Return the error for an unknown handle, with "it" in place of the handle."""
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
    # No common prefix, counter or time.
    assert len({each[:4] for each in handles}) > 900
    assert len({each[-4:] for each in handles}) > 900


@pytest.mark.requirement("X-15", "MCP-11")
async def test_unknown_expired_and_foreign_handles_get_the_same_error(runtime: Runtime, clock: Clock) -> None:
    sessions = Sessions(runtime)
    session, expired, ownerless = [await open_session(sessions, owner) for owner in ("alpha", "beta", None)]
    clock.days += 1
    for each, owner in ((session, "alpha"), (ownerless, None)):
        sessions.store(each, owner)
    assert len(sessions) == 3
    clock.days += 0.1
    messages = {error_for(sessions, session.session_id, owner) for owner in ("beta", None, "")}
    messages |= {error_for(sessions, handle, "beta") for handle in ("made-up", "", "x" * 10_000)}
    others = (expired, ownerless, sessions.new())
    messages |= {error_for(sessions, each.session_id, "beta") for each in others}
    (message,) = messages
    assert "skills_load" in message
    assert len(message) < 200
    assert sessions.find(session.session_id, "alpha") is session
    assert sessions.find(ownerless.session_id, None) is ownerless


@pytest.mark.requirement("X-15")
async def test_defaults_allow_4096_sessions_idle_for_a_day(runtime: Runtime) -> None:
    assert (MAX_SESSIONS, IDLE_S) == (4096, DAY)
    sessions = Sessions(runtime)
    for _ in range(MAX_SESSIONS + 10):
        sessions.store(sessions.new(), None)
    assert len(sessions) == MAX_SESSIONS


@pytest.mark.requirement("X-15")
async def test_least_recently_used_session_is_evicted_at_the_limit(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions_module, "MAX_SESSIONS", 2)
    sessions = Sessions(runtime)
    one, two = await open_session(sessions), await open_session(sessions)
    sessions.find(one.session_id, None)
    three = await open_session(sessions)
    assert len(sessions) == 2
    assert two.active_skills == []
    assert [is_open(sessions, each) for each in (one, two, three)] == [True, False, True]


@pytest.mark.requirement("X-15")
async def test_idle_session_expires(runtime: Runtime, clock: Clock) -> None:
    sessions = Sessions(runtime)
    one, two = await open_session(sessions), await open_session(sessions)
    clock.days += 1
    assert is_open(sessions, one)
    clock.days += 0.1
    assert [is_open(sessions, each) for each in (one, two)] == [True, False]
    clock.days += 1.1
    assert not is_open(sessions, one)
    three = await open_session(sessions)
    assert len(sessions) == 1
    assert is_open(sessions, three)
    assert one.active_skills == two.active_skills == []


async def test_refused_session_is_stored_after_others_expire(
    runtime: Runtime, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions_module, "MAX_SESSIONS", 4)
    sessions = Sessions(runtime)
    for each in "abcd":
        sessions.store(sessions.new(), None, Owner(each))
    refused = sessions.new()
    await refused.call("skills_load", {"names": ["a"]})
    with pytest.raises(QuotaError, match="the server's limit of 4 is reached; try again later"):
        sessions.store(refused, None, Owner("e"))
    assert refused.active_skills == []
    assert len(sessions) == 4
    clock.days += 1.1
    sessions.store(refused, None, Owner("e"))
    assert is_open(sessions, refused)
    assert len(sessions) == 1


async def run_script(session: Session) -> None:
    result: Any = await session.call("skills_run_script", {"path": "scripts/wait.sh"})
    assert result["structuredContent"]["exit_code"] == 0


@pytest.mark.requirement("X-15")
@pytest.mark.parametrize(("most", "elapsed"), [(1, 0.0), (2, 0.1), (100, 1.1), (1, 1.1)])
async def test_busy_session_is_neither_evicted_nor_expired(
    runtime: Runtime, clock: Clock, monkeypatch: pytest.MonkeyPatch, most: int, elapsed: float
) -> None:
    monkeypatch.setattr(sessions_module, "MAX_SESSIONS", most)
    sessions = Sessions(runtime)
    scripts: Any = FakeScripts(runtime.registry, blocks=True)
    runtime.whole.scripts = scripts
    busy, other, latest = await open_session(sessions), sessions.new(), sessions.new()
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as group:
            group.start_soon(run_script, busy)
            await scripts.started.wait()
            clock.days += elapsed
            for each in (other, latest):
                with suppress(QuotaError):  # if `most` is 1
                    sessions.store(each, None)
            assert is_open(sessions, latest) == (most > 1)
            assert busy.active_skills == ["a"]
            assert not scripts.workspaces[0].close.called
            assert is_open(sessions, busy)
            scripts.release.set()
    assert busy.calls == 0
    clock.days += 1.1
    sessions.store(other, None)
    assert not is_open(sessions, busy)
    assert scripts.workspaces[0].close.called
    assert len(sessions) == 1


async def test_close_ends_all_sessions(runtime: Runtime) -> None:
    sessions = Sessions(runtime)
    scripts: Any = FakeScripts(runtime.registry)
    runtime.scripts = runtime.whole.scripts = scripts
    opened = [await open_session(sessions, owner) for owner in (None, "alpha")]
    for session in opened:
        await run_script(session)
    sessions.close()
    assert len(sessions) == 0
    assert [each.active_skills for each in opened] == [[], []]
    assert [each.close.call_count for each in scripts.workspaces] == [1, 1]
    assert scripts.close.called
    assert not is_open(sessions, opened[0])
    sessions.close()
