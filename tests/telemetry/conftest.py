"""What the tests of telemetry share: the events of a server, and what its readers are given."""

from __future__ import annotations

import pytest

from mcp_skills_server.telemetry.events import Event, Events


@pytest.fixture
def server() -> Events:
    return Events()


@pytest.fixture
def seen(server: Events) -> list[Event]:
    found: list[Event] = []
    server.subscribe(found.append)
    return found
