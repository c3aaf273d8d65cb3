"""Fixtures of telemetry: the publisher of a server's events, and the events it has published."""

from __future__ import annotations

import pytest

from mcp_skills_server.telemetry.events import Event, Events


@pytest.fixture
def publisher() -> Events:
    return Events()


@pytest.fixture
def published(publisher: Events) -> list[Event]:
    received: list[Event] = []
    publisher.subscribe(received.append)
    return received
