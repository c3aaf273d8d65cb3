"""Legacy sessions in one process: who may use one, and when it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from mcp_skills_server.access.tokens import read_tokens
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.telemetry import events
from mcp_skills_server.telemetry.events import Event
from scripted import two_skills
from web.posts import SESSION, Post, ask, headers_of, look, open_session, serving

TOKENS: Final = read_tokens(
    "alpha=made-up-token-of-alpha-000001\nbeta=made-up-token-of-beta-0000002\n", "tokens"
).checked()
ALPHA: Final = (b"authorization", b"Bearer made-up-token-of-alpha-000001")
BETA: Final = (b"authorization", b"Bearer made-up-token-of-beta-0000002")


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Two skills, read."""
    return two_skills(tmp_path)


async def warm(app: Any, session: bytes, *headers: tuple[bytes, bytes]) -> None:
    """Wait until the handshake and the first scan are over for certain, as the SDK does."""
    assert (await ask(app, look(session, *headers), stays=True)).status == 200


@pytest.mark.anyio
async def test_a_session_is_for_who_opened_it_alone(registry: Registry) -> None:
    async with serving(registry, Settings(), tokens=TOKENS) as (app, _):
        session = await open_session(app, ALPHA)
        await warm(app, session, ALPHA)
        assert (await ask(app, look(session, ALPHA), stays=True)).status == 200
        assert (await ask(app, look(session, BETA), stays=True)).status == 404
        assert (await ask(app, look(session), stays=True)).status == 401


@pytest.mark.anyio
async def test_a_session_that_was_ended_is_not_found(registry: Registry) -> None:
    async with serving(registry, Settings()) as (app, _):
        session = await open_session(app)
        await warm(app, session)
        gone = Post((*headers_of(None)[:3], (SESSION, session)), b"", "DELETE")
        assert (await ask(app, look(session), stays=True)).status == 200
        assert (await ask(app, gone, stays=True)).status == 200
        assert (await ask(app, look(session), stays=True)).status == 404


@pytest.mark.anyio
async def test_a_session_that_is_used_is_not_the_one_left_alone_longest(registry: Registry) -> None:
    async with serving(registry, Settings(), max_sessions=2) as (app, _):
        first, second = await open_session(app), await open_session(app)
        for each in (second, first):
            await warm(app, each)
        await open_session(app)
        assert (await ask(app, look(second), stays=True)).status == 404
        assert (await ask(app, look(first), stays=True)).status == 200


@pytest.mark.anyio
async def test_a_request_of_a_session_is_one_event(registry: Registry) -> None:
    seen: list[Event] = []
    async with serving(registry, Settings()) as (app, _):
        session = await open_session(app)
        await warm(app, session)
        end = events.subscribe(seen.append)
        try:
            with anyio.fail_after(20):
                assert (await ask(app, look(session), stays=True)).status == 200
        finally:
            end()
    assert [(each.protocol, each.era, each.outcome) for each in seen] == [("mcp", "legacy", "ok")]
