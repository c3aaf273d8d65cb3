"""Fixtures of all tests here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from wire import ROOT, Era, Wire


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> Any:
    """The era that the SDK's client begins in."""
    return request.param


@pytest.fixture
def example(era: Era) -> Iterator[Wire]:
    """The example of a server that skills are attached to, as a process, before the handshake."""
    wire = Wire([sys.executable, str(ROOT / "examples" / "give_a_server_skills.py")], era=era)
    try:
        yield wire
    finally:
        wire.kill()
