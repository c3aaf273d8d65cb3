"""Fixtures of the proposals."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_skills_server.proposals.store import ProposalStore


@pytest.fixture
def store(tmp_path: Path) -> ProposalStore:
    return ProposalStore(tmp_path / "state" / "proposals")
