"""Our front and the SDK's answer alike: every answer, every error and every notification of a conversation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from conversations import conversation
from fronts import by_ours, by_the_sdk, shown, talk, two_skills
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.server.requests import Settings

CONVERSATIONS: Final = 1000
"""Of each kind."""
COUNTED: dict[str, int] = {}
DIFFERENCES: Final[dict[str, Callable[[bytes, Settings], bool]]] = {
    "What answers a question of the server's, which ours never asks, has to be an object, and our front looks no "
    "further; the SDK refuses one in which anything is no answer of the protocol.": lambda line, _: (
        b'"inputResponses": {"' in line
    ),
    "Tools or prompts that the operator does not offer: the SDK looks first at some of the parameters and then says "
    "that the method is unknown, and our front at all of them.": lambda line, chosen: (
        ((not chosen.tools and b'"tools/' in line) or (not chosen.prompts and b'"prompts/' in line))
        and any(field in line for field in (b'"task"', b'"progressToken"', b'"requestState"', b'"inputResponses"'))
    ),
}
"""Each difference that remains: why, and the messages that show it, which no conversation below has."""
SETTINGS = [Settings(), Settings(tools=False), Settings(prompts=False), Settings(dialect="sep-2640", page_size=1)]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """Two skills, read."""
    return two_skills(tmp_path_factory.mktemp("skills"))


@pytest.mark.parametrize("patient", [True, False], ids=["in turn", "at once"])
def test_a_conversation_is_the_same_on_both_fronts(registry: Registry, patient: bool) -> None:
    @settings(max_examples=CONVERSATIONS, database=None, derandomize=True)
    @given(conversation(patient=patient), st.sampled_from(SETTINGS))
    def check(lines: list[bytes], chosen: Settings) -> None:
        assume(not any(shows(line, chosen) for shows in DIFFERENCES.values() for line in lines))
        for line in lines:
            note(repr(line[:300]))
        theirs = talk(by_the_sdk, lines, registry, chosen, patient=patient)
        ours = talk(by_ours, lines, registry, chosen, patient=patient)
        assert shown(ours) == shown(theirs)
        COUNTED[str(patient)] = COUNTED.get(str(patient), 0) + 1

    check()
    assert COUNTED[str(patient)] >= CONVERSATIONS
