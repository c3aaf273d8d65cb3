"""What the tests of the page share: one Chromium for a file, and a folder of skills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from web.ui.chromium import browser
from wire import write_skill


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    """A folder with one skill."""
    return write_skill(tmp_path / "skills" / "refunds").parent
