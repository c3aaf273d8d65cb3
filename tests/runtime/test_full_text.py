"""Python builds without SQLite's full-text search: only the search tool fails."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from catalog.forest import load_registry, skills, write_files
from mcp_skills_server.runtime.runtime import Runtime
from runtime.support import error_of


def without_sqlite(monkeypatch: pytest.MonkeyPatch) -> str:
    """Hide the module sqlite3, and return the reason that the server then gives."""
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    return "its Python was built without sqlite3"


def without_fts5(monkeypatch: pytest.MonkeyPatch) -> str:
    class Database(sqlite3.Connection):
        def execute(self, sql: str, *more: Any) -> sqlite3.Cursor:
            if "fts5" in sql:
                raise sqlite3.OperationalError("no such module: fts5")
            return super().execute(sql, *more)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, **options, factory=Database))
    return "its SQLite was built without FTS5"


@pytest.mark.anyio
@pytest.mark.parametrize("remove", [without_sqlite, without_fts5])
async def test_search_without_full_text_support_fails_and_other_tools_work(
    remove: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reason = remove(monkeypatch)
    session = Runtime(load_registry(write_files(tmp_path, skills("alpha", "beta")))).session()
    message = await error_of(session, "skills_search", {"query": "alpha"})
    assert message == f"Skills cannot be searched here, because {reason}; skills_list lists all of them"
    hint = "run the server with a Python whose sqlite3 has FTS5"
    assert caplog.messages == [f"skills_search finds nothing, because {reason}; {hint}"]
    message = await error_of(session, "skills_load", {"names": ["alfa"]})
    assert "skills_list shows what there is" in message
    await session.call("skills_load", {"names": ["alpha"]})
    assert session.active_skills == ["alpha"]
