"""What the tests of the page share: one Chromium for a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from web.ui.chromium import browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser in which each test opens a context of its own."""
    with browser() as made:
        yield made
