"""A Python without SQLite's full text search: the server says so, and all but the search works."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from catalog.forest import loaded, plant, skills
from mcp_skills_server.runtime.full_text import FullText, NoFullTextError, missing
from mcp_skills_server.runtime.runtime import Runtime

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


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


without = pytest.mark.parametrize("lacking", [without_sqlite, without_fts5])


def test_here_it_is_there() -> None:
    assert missing() is None


@without
def test_an_index_says_what_is_missing(lacking: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    reason = lacking(monkeypatch)
    assert missing() == reason
    with pytest.raises(NoFullTextError, match=reason):
        FullText()


@without
async def test_a_search_says_so_and_the_rest_works(
    lacking: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reason = lacking(monkeypatch)
    runtime = Runtime(loaded(plant(tmp_path, skills("alpha", "beta"))))
    runtime.warn_if_unsearchable()
    hint = "run the server with a Python whose sqlite3 has FTS5"
    assert caplog.messages == [f"skills_search finds nothing, because {reason}; {hint}"]
    session = runtime.session()
    found: Any = await session.call("skills_search", {"query": "alpha"})
    assert found["isError"] and found["content"][0]["text"] == (
        f"Skills cannot be searched here, because {reason}; skills_list goes through all of them"
    )
    unknown: Any = await session.call("skills_load", {"names": ["alfa"]})
    assert unknown["isError"] and "skills_list shows what there is" in unknown["content"][0]["text"]
    assert "isError" not in await session.call("skills_load", {"names": ["alpha"]})
    assert session.active_skills == ["alpha"]


def test_where_it_is_there_nothing_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Runtime(loaded(tmp_path)).warn_if_unsearchable()
    assert caplog.messages == []
