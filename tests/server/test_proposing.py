"""Proposal tools over stdio and HTTP: when they are listed, permissions, and the audit log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dispatching import dispatching, local_serving
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.proposals.store import ProposalStore
from proposals.test_intake import manifest
from server.test_tools import NAMES, error_text, text_of
from web.http_wire import HttpClient, client
from web.in_process import app_serving
from web.test_grants import ANN, BOB, configure
from wire import Era, write_skill

PROPOSAL_TOOLS = ["skills_propose", "skills_proposals"]
GRANTS = """
grant = [
  { who = ["token:ann"], skills = ["finance/**"], may = ["propose"] },
  { who = ["token:bob"], skills = ["**"] },
]
"""


def tool_names(wire: Any) -> list[str]:
    return [each["name"] for each in wire.request("tools/list")["tools"]]


def test_model_proposes_and_lists_its_proposals(tmp_path: Path, era: Era) -> None:
    for path in ("coffee", "a/tea", "b/tea"):
        write_skill(tmp_path / "skills" / path)
    store = ProposalStore(tmp_path / "kept")
    with dispatching(tmp_path / "skills", proposals=store, era=era, host="tester") as wire:
        assert tool_names(wire) == [*NAMES, *PROPOSAL_TOOLS]
        assert text_of(wire.call("skills_proposals")) == "You have proposed nothing here."
        digest = wire.call("skills_load", names=["coffee"])["structuredContent"]["active_skills"][0]["digest"]
        files = {SKILL_MD: manifest("coffee") + "More.\n"}
        proposal = {"name": "coffee", "reason": "It was wrong.", "base": digest}
        proposed = wire.call("skills_propose", files=files, **proposal)
        assert not proposed.get("isError"), text_of(proposed)
        record = proposed["structuredContent"]
        fields = {"id": record["id"], "proposed": record["proposed"]}
        assert record == {**proposal, **fields, "principal": "local", "state": "pending"}
        (own,) = wire.call("skills_proposals")["structuredContent"]["proposals"]
        assert own == record
        assert 'host = "tester"' in (tmp_path / "kept" / record["id"] / "proposal.toml").read_text()
        for other, message in (
            ({"name": "skill://coffee/SKILL.md", "base": "sha256:0"}, "it has changed since"),
            ({"files": "x"}, "files"),
            ({"name": "tea", "files": {SKILL_MD: manifest("tea")}}, "ask for one of: a/tea, b/tea"),
        ):
            refused = wire.call("skills_propose", **{"files": files, **proposal, **other})
            assert message in error_text(refused)
        assert record["id"] not in text_of(wire.call("skills_search", query=record["id"]))


def test_proposal_tools_need_the_option_but_no_skill(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "coffee")
    with local_serving(tmp_path / "skills") as wire:
        assert tool_names(wire) == NAMES
        answer = wire.call("skills_propose", name="x", files={SKILL_MD: manifest("x")}, reason="y")
        assert "Unknown tool" in error_text(answer)
    (tmp_path / "empty").mkdir()
    with local_serving(tmp_path / "empty", "--proposals", tmp_path / "kept") as wire:
        assert tool_names(wire) == PROPOSAL_TOOLS


def propose(wire: HttpClient, name: str) -> dict[str, Any]:
    files = {SKILL_MD: manifest(name.rpartition("/")[2])}
    return wire.call("skills_propose", name=name, files=files, reason="Because.")


@contextmanager
def two_clients(folder: Path, *options: str | Path) -> Iterator[tuple[HttpClient, HttpClient]]:
    (folder / "tokens").write_text(f"ann={ANN}\nbob={BOB}\n")
    (folder / "tokens").chmod(0o600)
    with (
        app_serving(*options, "--proposals", folder / "kept") as server,
        client(server, "modern", token=ANN) as ann,
        client(server, "modern", token=BOB) as bob,
    ):
        yield ann, bob


def test_grants_limit_proposals_which_the_audit_log_records(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "finance" / "tax")
    write_skill(tmp_path / "skills" / "secret" / "plan")
    audit = tmp_path / "audit"
    with two_clients(tmp_path, "--config", configure(tmp_path, GRANTS), "--audit-log", audit) as (ann, bob):
        assert set(PROPOSAL_TOOLS) <= {*tool_names(ann)}
        assert not set(PROPOSAL_TOOLS) & {*tool_names(bob)}
        assert not propose(ann, "finance/refunds").get("isError")
        for name in ("tea", "secret", "secret/plan", "secret/plan/inner"):
            answer = propose(ann, name)
            assert "You may not propose" in error_text(answer)
            assert "exist" not in text_of(answer)
        for answer in (propose(bob, "finance/refunds"), bob.call("skills_proposals")):
            assert "You may not propose skills here" in text_of(answer)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    (record,) = [each for each in lines if each["event"] == "propose"]
    assert (record["principal"], record["skill"]) == ("token:ann", "finance/refunds")
    assert record["file"]
    assert "Because" not in audit.read_text()


def test_proposals_of_other_clients_are_not_listed(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "coffee")
    with two_clients(tmp_path, tmp_path / "skills", "--token-file", tmp_path / "tokens") as (ann, bob):
        assert not propose(ann, "tea").get("isError")
        assert text_of(bob.call("skills_proposals")) == "You have proposed nothing here."
        assert "tea: pending" in text_of(ann.call("skills_proposals"))
