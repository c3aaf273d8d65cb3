"""What ends a conversation between an editor and an agent, with pipes alone."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from threading import Thread

import pytest

from mcp_skills_server.acp.proxy import Shutdown
from wire import DEADLINE


class Waiting:
    """A shutdown that is waited for, and the pipe that the editor writes to."""

    def __init__(self) -> None:
        self.read_end, self.editor = os.pipe()
        self.shutdown = Shutdown(self.read_end)
        self._thread = Thread(target=self.shutdown.wait, daemon=True)
        self._thread.start()

    def ended(self, seconds: float = DEADLINE) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    found = Waiting()
    yield found
    found.shutdown.begin(at_once=True)
    assert found.ended()


def test_an_editor_that_has_gone_shows_though_nobody_reads_it(waiting: Waiting) -> None:
    os.write(waiting.editor, b"a message that nobody reads")
    os.close(waiting.editor)
    assert waiting.ended()
    assert not waiting.shutdown.at_once


@pytest.mark.parametrize("at_once", [False, True])
def test_it_can_be_begun_twice(waiting: Waiting, at_once: bool) -> None:
    waiting.shutdown.begin(at_once=at_once)
    waiting.shutdown.begin()
    assert waiting.ended()
    assert waiting.shutdown.at_once == at_once


def test_an_agent_that_no_longer_reads_is_no_end_and_the_editor_s_writes_fail(waiting: Waiting) -> None:
    waiting.shutdown.begin(agent_closed=True)
    poller = select.poll()
    poller.register(waiting.editor, 0)
    assert poller.poll(DEADLINE * 1000)
    with pytest.raises(BrokenPipeError):
        os.write(waiting.editor, b"x")
    assert not waiting.ended(0)
    waiting.shutdown.begin(at_once=True)
    assert waiting.ended()
