"""Digests that are computed while nobody asks, with a watch or without one."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from catalog.forest import DEADLINE, loaded, plant, skills
from mcp_skills_server.catalog.index_files import IndexFiles
from mcp_skills_server.catalog.prover import Prover
from mcp_skills_server.catalog.registry import Registry


@pytest.mark.parametrize("early", [True, False], ids=["started before the scan", "started after it"])
def test_what_was_loaded_is_hashed_and_left_to_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    files, saved = IndexFiles(tmp_path / "index", least=1), threading.Event()
    real = files.save
    monkeypatch.setattr(files, "save", lambda *arguments: real(*arguments) and saved.set())
    top = plant(tmp_path / "root", skills("one", "two"))
    registry = Registry([top], index_files=files) if early else loaded(top, index_files=files)
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
    assert files.path(str(top)).is_file()
