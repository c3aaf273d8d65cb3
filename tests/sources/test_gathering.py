"""Skills come in batches, each once, until the end."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import pytest

from mcp_skills_server.sources import gathering as gathering_module
from mcp_skills_server.sources.folder import Staged, State
from mcp_skills_server.sources.gathering import Gathering
from mcp_skills_server.sources.stage import Made

DEADLINE = 20.0


def staged(name: str) -> Staged:
    return Staged(Made(name, name, f"{name}.json", ()), State.ABSENT)


def test_what_is_put_comes_once_and_in_order() -> None:
    gathering = Gathering()
    names = [f"skill-{number}" for number in range(1000)]

    def put() -> None:
        for name in names:
            gathering.put(staged(name))
        gathering.end()

    thread = threading.Thread(target=put)
    thread.start()
    found = [[each.name for each in batch] for batch in gathering.batches()]
    thread.join()
    assert all(found) and [name for batch in found for name in batch] == names


def test_nothing_is_an_end_too() -> None:
    gathering = Gathering()
    gathering.end()
    assert list(gathering.batches()) == []


def test_who_takes_is_woken_for_the_first_and_for_a_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = threading.Semaphore(0)

    class Condition(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            waits.release()  # holding the lock: nothing is put before the wait has begun
            return super().wait(timeout)

    with monkeypatch.context() as patched:  # what is made after it, such as threads, has the usual one
        patched.setattr(threading, "Condition", Condition)
        gathering = Gathering()
    monkeypatch.setattr(gathering_module, "_GATHERING_S", 3600.0)  # no time ends a wait here
    enough = gathering_module._ENOUGH  # pyright: ignore[reportPrivateUsage]
    sizes = SimpleQueue[int]()

    def take() -> None:
        for batch in gathering.batches():
            sizes.put(len(batch))

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    assert waits.acquire(timeout=DEADLINE)
    gathering.put(staged("first"))
    assert sizes.get(timeout=DEADLINE) == 1
    assert waits.acquire(timeout=DEADLINE)
    gathering.put(staged("second"))
    assert waits.acquire(timeout=DEADLINE)  # again: one is no batch
    for number in range(1, enough):
        gathering.put(staged(f"skill-{number}"))
    assert sizes.get(timeout=DEADLINE) == enough
    gathering.end()
    thread.join(DEADLINE)
    assert not thread.is_alive()
