"""Fixtures of the web UI: Chromium, a server with tokens and a local page, for each module; a folder of skills."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.proposals.intake import propose
from mcp_skills_server.proposals.store import ProposalStore
from mcp_skills_server.telemetry.usage import Batch, Count, Tally, UsageStore, day_of
from proposals.test_intake import DRAFT, manifest
from web.http_wire import Target
from web.in_process import app_serving
from web.ui.chromium import browser
from web.ui.serving import TOKENS, signed_in
from wire import FIXTURES, ROOT, write_skill

BROKEN = [
    ROOT / "fixtures" / "broken" / name
    for name in ("hidden-characters", "license-type", "name-length", "pipe-to-shell", "shadowed", "yaml-syntax")
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server that requires a token. Tests change nothing but their own sessions."""
    skill = write_skill(tmp_path_factory.mktemp("guarded") / "refunds")
    with app_serving(skill, "--ui", environment=TOKENS) as server:
        yield server


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The local page of the fixtures, with use counts and a proposal: its origin and a session cookie.

    No test changes its skills.
    """
    folder, now = tmp_path_factory.mktemp("shared"), time.time()
    counts = {
        Count(day_of(now), "load", "csv-profiling", "sha256:0", principal, host, "mcp", str(FIXTURES)): Tally(1, now)
        for principal, host in {"token:ann": "<b>editor</b>" * 20, "user:" + "x" * 300: "a" * 200, "": ""}.items()
    }
    UsageStore(str(folder / "usage.db")).add(Batch(counts))
    files = {SKILL_MD: manifest("green") + "x" * 300, "scripts/run.py": "print(1)\n", "a.md": "a\n" * 50}
    with Registry([FIXTURES]) as registry:
        propose(registry, ProposalStore(folder / "kept"), DRAFT, files, registry.snapshot)
    options = ("--usage", f"sqlite:{folder / 'usage.db'}", "--proposals", folder / "kept")
    with signed_in(FIXTURES, *BROKEN, *options) as session:
        yield session


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    return write_skill(tmp_path / "skills" / "refunds").parent
