"""Fixtures: an upstream repository, an HTTP server of it, and an empty git configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_skills_server.sources.git import program
from sources.git.remotes import BASE, GitServer, Upstream


@pytest.fixture(autouse=True)
def git_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the user's git configuration by an empty file, and return its path."""
    for name in list(os.environ):
        if name.startswith(("GIT_", "SSH_")):
            monkeypatch.delenv(name)
    configuration = tmp_path / "gitconfig"
    configuration.write_text("")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(configuration))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return configuration


@pytest.fixture(autouse=True)
def long_git_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the low-speed timeout, because the machine may be busy."""
    patient = [each.replace("lowSpeedTime=20", "lowSpeedTime=120") for each in program._SETTINGS]
    monkeypatch.setattr(program, "_SETTINGS", tuple(patient))


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    """An upstream repository with two skills below `skills/`, and other files."""
    repository = Upstream(tmp_path / "remotes" / "acme.git")
    repository.commit(BASE)
    return repository


@pytest.fixture
def server(upstream: Upstream) -> Iterator[GitServer]:
    with GitServer(upstream.directory.parent) as opened:
        yield opened
