"""Fixtures of the server's tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from wire import ROOT, Era, Wire


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def example(era: Era) -> Iterator[Wire]:
    """A process of the example server with attached skills, before the handshake."""
    wire = Wire([sys.executable, str(ROOT / "examples" / "give_a_server_skills.py")], era=era)
    try:
        yield wire
    finally:
        wire.kill()
