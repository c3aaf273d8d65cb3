"""A conversation over the workshop's skills."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalog.forest import loaded, plant
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.session import Session
from runtime.workshop import WORKSHOP


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return loaded(plant(tmp_path, WORKSHOP))


@pytest.fixture
def session(registry: Registry) -> Session:
    return Runtime(registry).session()
