"""Fixtures: a registry of the skills in `SKILL_FILES`, and a session of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalog.forest import load_registry, write_files
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.runtime.session import Session
from runtime.support import SKILL_FILES


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return load_registry(write_files(tmp_path, SKILL_FILES))


@pytest.fixture
def session(registry: Registry) -> Session:
    return Runtime(registry).session()
