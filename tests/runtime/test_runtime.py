"""The runtime: loading off the event loop, and closing of sessions and work directories."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import anyio
import pytest

from catalog.forest import skills, write_files
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import UsageError
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.scripts import sandbox
from mcp_skills_server.runtime.scripts.settings import ScriptSettings

SCRIPTS = ScriptSettings(sandbox="off")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr(sandbox, "is_off_forbidden", lambda: False)
    return Registry([write_files(tmp_path, skills("alpha", "beta"))])


def make_work_directory(session: Any) -> str:
    """Create the work directory of a session, as its first script does, and return its path."""
    session._workspace = session._offering.scripts.workspace()
    assert os.path.isdir(session._workspace.path)
    return session._workspace.path


@pytest.mark.anyio
async def test_runtime_on_event_loop_loads_in_a_thread(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(registry, scripts=SCRIPTS)
    threads: list[int] = []
    load = registry.load
    monkeypatch.setattr(registry, "load", lambda: [threads.append(threading.get_ident()), load()])
    with pytest.raises(UsageError, match="async with"):
        runtime.session()
    assert threads == []
    async with runtime:
        async with runtime.session() as session:
            assert "2 skills here" in await session.instructions()
            first = make_work_directory(session)
        assert not await anyio.Path(first).exists()
        second = make_work_directory(runtime.session())
    assert not await anyio.Path(second).parent.exists()
    await runtime.load()  # a second load has no effect
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_runtime_without_event_loop_loads_on_first_session(registry: Registry) -> None:
    embeddings = Mock()
    with Runtime(registry, scripts=SCRIPTS, embeddings=embeddings) as runtime:
        with runtime.session() as session:
            assert registry.loaded.is_set()
            assert "2 skills:" in str(session.tools())
            first = make_work_directory(session)
        assert not os.path.exists(first)
        second = make_work_directory(runtime.session())
    assert not os.path.exists(second)
    assert embeddings.close.called
