"""Digests that are computed while nobody asks, with a watch or without one."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path

import pytest

from catalog.forest import DEADLINE, loaded, plant, skills
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.view import View
from mcp_skills_server.catalog.watch.watcher import Prover


@pytest.mark.parametrize("early", [True, False], ids=["started before the scan", "started after it"])
def test_what_was_loaded_is_hashed_and_left_to_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    files, saved = Index(tmp_path / "index", least=1), threading.Event()
    real = files.save
    monkeypatch.setattr(files, "save", lambda *arguments: real(*arguments) and saved.set())
    top = plant(tmp_path / "root", skills("one", "two"))
    registry = Registry([top], index=files) if early else loaded(top, index=files)
    prover = Prover(registry)
    prover.start()
    try:
        if early:
            registry.load()
        assert saved.wait(DEADLINE)
    finally:
        prover.end()
        prover.thread.join(DEADLINE)
    assert not prover.thread.is_alive()
    assert all(file.digest for skill in registry.snapshot.skills.values() for file in skill.files.values())
    assert files.path.is_file()


class Waits(threading.Event):
    """Waits for no time, and notes for how long it was to; somebody asks again until it has waited so often."""

    def __init__(self, registry: Registry, often: float) -> None:
        super().__init__()
        self._registry = registry
        self._often = often
        self.waited: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        """As an event that is never set."""
        self.waited.append(timeout)
        self._registry.asked_at = time.monotonic() + 1 if len(self.waited) < self._often else -math.inf
        return self.is_set()


@pytest.mark.parametrize("often", [1, 5])
def test_a_step_is_put_off_while_somebody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, often: int) -> None:
    monkeypatch.setattr("mcp_skills_server.catalog.watch.watcher._PROVE_MOST_S", math.inf)
    registry = loaded(plant(tmp_path / "root", skills("one")))
    prover = Prover(registry)
    prover._stop = waits = Waits(registry, often)
    assert prover._pause() is False
    assert len(waits.waited) == often
    waits.set()
    assert prover._pause() is True


def test_a_step_is_not_put_off_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_skills_server.catalog.watch.watcher._PROVE_MOST_S", 0)
    registry = loaded(plant(tmp_path / "root", skills("one")))
    prover = Prover(registry)
    prover._stop = waits = Waits(registry, math.inf)
    assert prover._pause() is False
    assert len(waits.waited) == 1


def test_every_request_is_noted(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path / "root", skills("one")))
    assert registry.asked_at == -math.inf
    before = time.monotonic()
    View(registry)
    assert registry.asked_at >= before
