"""A repository that others fetch from, with nothing of the user's configuration of git."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_skills_server.sources.git import program
from sources.git.remotes import BASE, GitServer, Upstream


@pytest.fixture(autouse=True)
def own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that is the user's configuration of git meanwhile."""
    for name in list(os.environ):
        if name.startswith(("GIT_", "SSH_")):
            monkeypatch.delenv(name)
    configuration = tmp_path / "gitconfig"
    configuration.write_text("")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(configuration))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return configuration


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a server on this machine as long as a loaded machine needs."""
    patient = [each.replace("lowSpeedTime=20", "lowSpeedTime=120") for each in program._SETTINGS]
    monkeypatch.setattr(program, "_SETTINGS", tuple(patient))


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    """A repository with two skills below `skills/`, and files around them."""
    made = Upstream(tmp_path / "remotes" / "acme.git")
    made.commit(BASE)
    return made


@pytest.fixture
def server(upstream: Upstream) -> Iterator[GitServer]:
    """Its folder over HTTP."""
    with GitServer(upstream.directory.parent) as opened:
        yield opened
