"""Fixtures of the web UI: Chromium and a server with tokens, for each module, and a folder of skills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from web.http_wire import Server
from web.ui.chromium import browser
from web.ui.serving import TOKENS, page_serving
from wire import write_skill


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that requires a token. Tests change nothing but their own sessions."""
    with page_serving(write_skill(tmp_path_factory.mktemp("guarded") / "refunds"), environment=TOKENS) as server:
        yield server


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    """A folder with one skill."""
    return write_skill(tmp_path / "skills" / "refunds").parent
