"""Fixtures: a session over `SKILL_FILES`."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalog.forest import loaded, plant
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.session import Session
from runtime.support import SKILL_FILES


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return loaded(plant(tmp_path, SKILL_FILES))


@pytest.fixture
def session(registry: Registry) -> Session:
    return Runtime(registry).session()
