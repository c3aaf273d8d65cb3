"""Proposals as git branches (`--proposals git`)."""

from __future__ import annotations

import errno
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dispatching import local_serving
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.proposals import store as proposals
from mcp_skills_server.proposals.branches import Branches
from mcp_skills_server.proposals.intake import propose
from mcp_skills_server.proposals.store import ProposalStore
from proposals.test_intake import DRAFT, GREEN, base_of, manifest, refusal
from server.test_tools import text_of
from wire import write_skill


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "team"
    write_skill(folder / "skills" / "coffee", references__guide_md="one\n")
    git(tmp_path, "init", "-q", "-b", "main", "team")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qm", "Begin")
    return folder


@pytest.fixture
def store(repository: Path) -> ProposalStore:
    branches = Branches([str(repository / "skills")])
    return ProposalStore(branches.folder, branches.add)


def test_proposal_is_one_commit_on_its_own_branch(repository: Path, store: ProposalStore) -> None:
    with Registry([repository / "skills"]) as registry:
        draft = replace(DRAFT, name="coffee", base=base_of(registry, "coffee"), reason="From x\nM 100644 inline y")
        files = {SKILL_MD: manifest("coffee"), "references/two words.md": "b\n", "references/guide.md": None}
        proposal = propose(registry, store, draft, files, registry.snapshot)
        registry.refresh()
        assert [*registry.snapshot.skills] == ["coffee"]
    branch = f"proposals/{proposal.id}"
    assert git(repository, "branch", "--format=%(refname:short)").split() == ["main", branch]
    assert git(repository, "rev-list", "--count", f"main..{branch}") == "1"
    assert git(repository, "diff", "--name-status", "main", branch).splitlines() == [
        "M\tskills/coffee/SKILL.md",
        "D\tskills/coffee/references/guide.md",
        "A\tskills/coffee/references/two words.md",
    ]
    assert git(repository, "show", f"{branch}:skills/coffee/SKILL.md") == manifest("coffee").strip()
    message = git(repository, "log", "-1", "--format=%B", branch)
    assert message.startswith("Propose coffee\n\nFrom x\nM 100644")
    assert f"Proposal: {proposal.id}\nBy: token:ann" in message
    assert git(repository, "status", "--porcelain") == "", "working tree and index are unchanged"


def test_root_outside_a_working_copy_is_refused(tmp_path: Path, repository: Path, store: ProposalStore) -> None:
    write_skill(tmp_path / "plain" / "cocoa")
    with pytest.raises(UsageError, match="not in a git working copy"):
        Branches([str(tmp_path / "plain")])
    with Registry([tmp_path / "plain", repository / "skills"]) as registry:
        assert "not in a git working copy" in refusal(registry, store, DRAFT, GREEN)
        assert store.list() == []


def test_failed_proposal_leaves_neither_branch_nor_files(
    repository: Path, store: ProposalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with Registry([repository / "skills"]) as registry:
        with monkeypatch.context() as patch:
            patch.setattr(proposals, "write_folder", fail)
            assert "cannot be stored" in refusal(registry, store, DRAFT, GREEN)
        assert git(repository, "branch", "--format=%(refname:short)") == "main"
        git(repository, "symbolic-ref", "HEAD", "refs/heads/unborn")
        assert "git cannot keep" in refusal(registry, store, DRAFT, GREEN)
    assert store.list() == []


def test_merged_proposal_is_served(repository: Path) -> None:
    with local_serving(repository / "skills", "--proposals", "git") as wire:
        result = wire.call("skills_propose", name="tea", files={SKILL_MD: manifest("tea")}, reason="We brew tea too.")
        assert not result.get("isError"), text_of(result)
        id_ = result["structuredContent"]["id"]
        assert git(repository, "show", f"proposals/{id_}:skills/tea/SKILL.md") == manifest("tea").strip()
        git(repository, "merge", "-q", "--ff-only", f"proposals/{id_}")
        while "tea" not in text_of(wire.call("skills_list")):
            wire.notification()
