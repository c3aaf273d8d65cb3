"""Skills come in batches, each once, until the end."""

from __future__ import annotations

import threading
from pathlib import Path

from mcp_skills_server.sources.folder import Staged, State
from mcp_skills_server.sources.gathering import Gathering
from mcp_skills_server.sources.stage import Made


def staged(name: str) -> Staged:
    return Staged(Made(name, Path(name), Path(f"{name}.json"), ()), State.ABSENT)


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
