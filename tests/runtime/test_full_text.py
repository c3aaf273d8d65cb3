"""A Python without SQLite's full text search: the server says so, and all but the search works."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from catalog.forest import loaded, plant, skills
from mcp_skills_server.runtime.full_text_support import warn_if_absent
from mcp_skills_server.runtime.runtime import Runtime


def without_sqlite(monkeypatch: pytest.MonkeyPatch) -> str:
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
@pytest.mark.parametrize("lacking", [without_sqlite, without_fts5])
async def test_search_without_full_text_support_fails_and_other_tools_work(
    lacking: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reason = lacking(monkeypatch)
    session = Runtime(loaded(plant(tmp_path, skills("alpha", "beta")))).session()
    found: Any = await session.call("skills_search", {"query": "alpha"})
    assert found["isError"] and found["content"][0]["text"] == (
        f"Skills cannot be searched here, because {reason}; skills_list lists all of them"
    )
    hint = "run the server with a Python whose sqlite3 has FTS5"
    assert caplog.messages == [f"skills_search finds nothing, because {reason}; {hint}"]
    unknown: Any = await session.call("skills_load", {"names": ["alfa"]})
    assert unknown["isError"] and "skills_list shows what there is" in unknown["content"][0]["text"]
    await session.call("skills_load", {"names": ["alpha"]})
    assert session.active_skills == ["alpha"]


def test_missing_sqlite_is_logged_at_start(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    code = "import sys; from mcp_skills_server.runtime.full_text_support import warn_if_absent as w; w(); "
    code += "print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"sqlite3", "_sqlite3"} & {*done.stdout.split()} and done.stderr == ""
    reason = without_sqlite(monkeypatch)
    warn_if_absent()
    assert len(caplog.messages) == 1 and reason in caplog.messages[0]
