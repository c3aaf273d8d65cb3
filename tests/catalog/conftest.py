"""Fixtures of the catalogue's tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that every user of the machine can reach, as `tmp_path` is not."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    yield place
    for path in place.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(place)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
