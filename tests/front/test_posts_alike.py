"""Over HTTP our front and the SDK's answer alike: status, headers and every message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import anyio
import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from front.posts import Post, Reply, ask, handshake, in_session, open_session, post, put_in, serving
from fronts import two_skills
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.server.requests import Settings
from mcp_skills_server.web.legacy import Legacy

CONVERSATIONS: Final = 300
SESSIONS: Final = 300
DIFFERENCES: Final[dict[str, Callable[[Post], bool]]] = {
    "What answers a question of the server's, which ours never asks, has to be an object, and our front looks no "
    "further; the SDK refuses one in which anything is no answer of the protocol.": lambda each: (
        b'"inputResponses": {"' in each.body
    ),
}
"""Each difference that remains: why, and the requests that show it, which no conversation below has."""
SETTINGS: Final = (
    Settings(),
    Settings(tools=False),
    Settings(prompts=False),
    Settings(dialect="sep-2640", page_size=1),
)
SEEN: dict[bool, int] = {True: 0, False: 0}
"""Requests that had an answer."""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """Two skills, read."""
    return two_skills(tmp_path_factory.mktemp("skills"))


def answered(posts: list[Post], registry: Registry, chosen: Settings, *, lean: bool, closing: bool) -> list[Reply]:
    """What a front answers to these, one after the other."""
    out: list[Reply] = []

    async def hold() -> None:
        async with serving(registry, chosen, lean=lean) as (app, end):
            if closing:
                end()
            out.extend([await ask(app, each, stays=closing) for each in posts])

    anyio.run(hold)
    return out


@pytest.mark.parametrize("closing", [False, True], ids=["", "closing"])
def test_requests_are_answered_alike_on_both_fronts(registry: Registry, closing: bool) -> None:
    """While the server ends every stream does, so those are seen whole."""

    @settings(max_examples=CONVERSATIONS, database=None, derandomize=True)
    @given(st.lists(post(), min_size=4, max_size=8), st.sampled_from(SETTINGS))
    def check(posts: list[Post], chosen: Settings) -> None:
        assume(not any(shows(each) for shows in DIFFERENCES.values() for each in posts))
        for each in posts:
            note(repr((each.method, each.headers, each.body[:300])))
        theirs = answered(posts, registry, chosen, lean=False, closing=closing)
        ours = answered(posts, registry, chosen, lean=True, closing=closing)
        assert ours == theirs
        SEEN[closing] += sum(each.status == 200 for each in ours)

    check()
    assert SEEN[closing] >= CONVERSATIONS


def test_requests_of_a_legacy_session_are_answered_alike_on_both_fronts(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = 0
    original = Legacy.answered

    async def counted(self: Legacy, *given: Any) -> bool:
        nonlocal taken
        answered = await original(self, *given)
        taken += answered
        return answered

    monkeypatch.setattr(Legacy, "answered", counted)

    def in_a_session(posts: list[Post], chosen: Settings, *, lean: bool) -> list[Reply]:
        out: list[Reply] = []

        async def hold() -> None:
            async with serving(registry, chosen, lean=lean) as (app, end):
                session = await open_session(app)
                end()
                out.extend([await ask(app, put_in(session, each), stays=True) for each in posts])

        anyio.run(hold)
        return out

    @settings(max_examples=SESSIONS, database=None, derandomize=True)
    @given(st.lists(in_session(), min_size=4, max_size=8), st.sampled_from(SETTINGS))
    def check(posts: list[Post], chosen: Settings) -> None:
        assume(not any(shows(each) for shows in DIFFERENCES.values() for each in posts))
        for each in posts:
            note(repr((each.headers, each.body[:300])))
        assert in_a_session(posts, chosen, lean=True) == in_a_session(posts, chosen, lean=False)

    check()
    assert taken >= SESSIONS // 3


def test_a_legacy_session_is_the_sdks_on_both_fronts(registry: Registry) -> None:
    theirs, ours = (answered([handshake()], registry, Settings(), lean=lean, closing=False) for lean in (False, True))
    assert ours == theirs
    assert ours[0].status == 200 and "mcp-session-id" in ours[0].headers
