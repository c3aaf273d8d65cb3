"""`proposals`: list, show, diff, approve and reject."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from commands.calls import invoke, refusal
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.commands.opening import proposals_at
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.proposals.intake import propose
from mcp_skills_server.proposals.store import Proposal, ProposalStore
from proposals.test_intake import DRAFT, base_of, manifest
from wire import write_skill


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    write_skill(tmp_path / "skills" / "coffee", body="# Coffee\n\nGrind.\n")
    write_skill(tmp_path / "skills" / "espresso", name="green", description="Does a thing when it is asked to.")
    return tmp_path / "skills"


def run(tmp_path: Path, *words: object) -> Result:
    done = invoke("proposals", *words, "--proposals", tmp_path / "proposals")
    assert done.exception is None, done.exception
    return done


def refused(tmp_path: Path, *words: object) -> str:
    return refusal("proposals", *words, "--proposals", tmp_path / "proposals")


def make_proposal(tmp_path: Path, name: str, **files: str | None) -> Proposal:
    """Propose a skill with further files, `scripts__run="..."` for scripts/run."""
    store = ProposalStore(tmp_path / "proposals")
    with Registry([tmp_path / "skills"]) as registry:
        base = base_of(registry, name) if name in registry.snapshot.skills else ""
        draft = replace(DRAFT, name=name, base=base, reason="Better.")
        texts = {key.replace("__", "/"): text for key, text in files.items()}
        texts[SKILL_MD] = manifest(name.rpartition("/")[2])
        return propose(registry, store, draft, texts, registry.snapshot)


def parsed(result: Result) -> Any:
    return json.loads(result.stdout)


def test_proposals_are_listed_shown_compared_and_decided(tmp_path: Path, skills: Path) -> None:
    assert run(tmp_path, "list").stdout == "no proposal is pending\n"
    change = make_proposal(tmp_path, "coffee")
    new = make_proposal(tmp_path, "tea/green", scripts__run="#!/bin/sh\necho hi\n")
    listed = run(tmp_path, "list").stdout
    assert change.id in listed and new.id in listed and "token:ann" in listed
    states = {each["id"]: each["state"] for each in parsed(run(tmp_path, "list", "--format", "json"))}
    assert states == {change.id: "pending", new.id: "pending"}
    shown = run(tmp_path, "show", new.id).stdout
    for text in ("a new skill, pending", "proposed by token:ann", "script: scripts/run", "espresso has the same name",
                 "echo hi", "  reason: Better.", "--- scripts/run", f"{new.id}: tea/green, "):  # fmt: skip
        assert text in shown
    assert " by local" not in shown
    assert ": coffee, a change, pending" in run(tmp_path, "show", change.id).stdout
    assert parsed(run(tmp_path, "show", change.id, "--format", "json"))["files"] == {SKILL_MD: manifest("coffee")}
    done = run(tmp_path, "diff", change.id)
    assert done.return_value == 1
    assert done.stdout.startswith(f"coffee: {change.id}\n")
    assert "-Grind." in done.stdout and "+# It" in done.stdout
    done = run(tmp_path, "diff", change.id, "--format", "json")
    assert done.return_value == 1 and "-Grind." in parsed(done)["lines"]
    assert "--scripts" in refused(tmp_path, "approve", new.id)
    audit = tmp_path / "audit"
    done = run(tmp_path, "approve", change.id, "--message", "good", "--audit-log", audit)
    assert done.stdout == f"{change.id}: coffee is approved\n"
    run(tmp_path, "reject", new.id, "--message", "no scripts, please", "--audit-log", audit)
    assert (skills / "coffee" / SKILL_MD).read_text() == manifest("coffee") and not (skills / "tea").exists()
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(each["event"], each["principal"], each["proposer"], each["skill"]) for each in lines] == [
        ("approve", "local", "token:ann", "coffee"),
        ("reject", "local", "token:ann", "tea/green"),
    ]
    assert run(tmp_path, "list").stdout == "no proposal is pending\n"
    states = {each["id"]: each for each in parsed(run(tmp_path, "list", "--all", "--format", "json"))}
    assert states[change.id]["state"] == "approved" and states[new.id]["message"] == "no scripts, please"
    shown = run(tmp_path, "show", change.id).stdout
    assert "approved by local at " in shown and ": good\n" in shown
    assert "rejected already" in refused(tmp_path, "approve", new.id)


def test_approve_needs_a_served_root(tmp_path: Path, skills: Path) -> None:
    proposal = make_proposal(tmp_path, "tea")
    skills.rename(tmp_path / "moved")
    assert "skills" in refused(tmp_path, "approve", proposal.id)
    message = refused(tmp_path, "approve", proposal.id, "--root", tmp_path / "moved")
    assert "is not a folder served here" in message


def test_invalid_usage_is_reported_and_changes_nothing(tmp_path: Path, skills: Path) -> None:
    assert "there is no proposal 'nope'" in refused(tmp_path, "show", "nope")
    assert "by --proposals DIR" in refusal("proposals", "list")
    proposal = make_proposal(tmp_path, "tea")
    assert "--audit-log" in refused(tmp_path, "approve", proposal.id, "--audit-log", tmp_path / "no" / "audit")
    assert not (skills / "tea").exists(), "an approval that cannot be logged must not be applied"
    assert "--no-tools" in refusal("serve", skills, "--proposals", tmp_path / "none", "--no-tools")
    assert not (tmp_path / "none").exists()


def test_proposal_folder_in_or_around_a_root_is_refused(tmp_path: Path, skills: Path) -> None:
    for folder in (skills, skills / "inner", tmp_path):
        with pytest.raises(UsageError, match="in or around the root"):
            proposals_at(str(folder), [str(skills)])
