"""Fixtures for tests of the catalog."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from catalog.watched import LogQueue, captured_log


@pytest.fixture
def open_path() -> Iterator[Path]:
    """Temporary folder that other users can enter, unlike `tmp_path`."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.fixture
def log() -> Iterator[LogQueue]:
    """Log records of the package."""
    with captured_log() as records:
        yield records
