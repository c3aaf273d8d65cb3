"""A runtime and its sessions are closed at the end of a block, and no session reads skills on an event loop."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from catalog.forest import plant, skills
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import UsageError
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.scripts import sandbox
from mcp_skills_server.runtime.scripts.settings import ScriptSettings

USABLE = ScriptSettings(sandbox="off")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr(sandbox, "is_off_forbidden", lambda: False)
    return Registry([plant(tmp_path, skills("alpha", "beta"))])


def work_directory(session: Any) -> str:
    """The work directory that the first script of a session makes."""
    session._workspace = session._runtime.scripts.workspace()
    assert os.path.isdir(session._workspace.path)
    return session._workspace.path


@pytest.mark.anyio
async def test_runtime_on_event_loop_loads_in_a_thread(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(registry, scripts=USABLE)
    readers: list[int] = []
    load = registry.load
    monkeypatch.setattr(registry, "load", lambda: [readers.append(threading.get_ident()), load()])
    with pytest.raises(UsageError, match="async with"):
        runtime.session()
    assert readers == []
    async with runtime:
        async with runtime.session() as session:
            assert "2 skills here" in await session.instructions()
            first = work_directory(session)
        assert not any(map(os.path.exists, [first]))
        second = work_directory(runtime.session())
    assert not any(map(os.path.exists, [second, os.path.dirname(second)]))
    assert len(readers) == 1 and readers[0] != threading.get_ident()
    await runtime.load()  # read already
    assert len(readers) == 1


def test_runtime_without_event_loop_loads_on_first_session(registry: Registry) -> None:
    with Runtime(registry, scripts=USABLE) as runtime:
        runtime.embeddings = embeddings = Mock()
        with runtime.session() as session:
            assert registry.loaded.is_set() and "2 skills:" in str(session.tools())
            first = work_directory(session)
        assert not os.path.exists(first)
        second = work_directory(runtime.session())
    assert not os.path.exists(second) and embeddings.close.called
