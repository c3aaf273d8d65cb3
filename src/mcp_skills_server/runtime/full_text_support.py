"""Detection of SQLite's full-text search (FTS5), cheap enough for every start."""

from __future__ import annotations

import logging
from contextlib import closing
from importlib.util import find_spec
from typing import Final

from mcp_skills_server.dialects.runtime import SEARCH
from mcp_skills_server.errors import REPEATS

logger = logging.getLogger(__name__)

_NO_SQLITE: Final = "its Python was built without sqlite3"


def full_text_problem() -> str | None:
    """Return why this Python has no full-text search, or None if it has."""
    try:
        import sqlite3
    except ImportError:
        return _NO_SQLITE
    with closing(sqlite3.connect(":memory:")) as database:
        try:
            database.execute("CREATE VIRTUAL TABLE words USING fts5(word)")
        except sqlite3.OperationalError:
            return "its SQLite was built without FTS5"
    return None


def warn_if_absent() -> None:
    """Warn if Python has no SQLite, without importing it, which would cost 2 MB of memory.

    The first search detects a SQLite without FTS5.
    """
    if find_spec("sqlite3") is None or find_spec("_sqlite3") is None:
        warn(_NO_SQLITE)


def warn(reason: str) -> None:
    """Log a warning that searches return nothing, with the reason."""
    hint = "run the server with a Python whose sqlite3 has FTS5"
    logger.warning("%s finds nothing, because %s; %s", SEARCH, reason, hint, extra=REPEATS)
