"""Proposals over MCP: what a model is offered, may propose and hears of, over real stdio and HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.telemetry.events import PAGE, Event, Use
from mcp_skills_server.telemetry.metrics import Metrics
from proposals.test_intake import manifest
from server.test_tools import NAMES, said
from web.http_wire import HttpClient, client, http_serving
from web.test_grants import ANN, BOB, configure
from wire import Era, serving, write_skill

PROPOSING = ["skills_propose", "skills_proposals"]
GRANTS = """
grant = [
  { who = ["token:ann"], skills = ["finance/**"], may = ["propose"] },
  { who = ["token:bob"], skills = ["**"] },
]
"""


def offered(wire: Any) -> list[str]:
    return [each["name"] for each in wire.request("tools/list")["tools"]]


def test_a_model_proposes_and_hears_of_its_own(tmp_path: Path, era: Era) -> None:
    for path in ("coffee", "a/tea", "b/tea"):
        write_skill(tmp_path / "skills" / path)
    with serving(tmp_path / "skills", "--proposals", tmp_path / "kept", era=era, host="tester") as wire:
        assert offered(wire) == [*NAMES, *PROPOSING]
        assert said(wire.call("skills_proposals")) == "You have proposed nothing here."
        digest = wire.call("skills_load", names=["coffee"])["structuredContent"]["active_skills"][0]["digest"]
        files = {SKILL_MD: manifest("coffee") + "More.\n"}
        made = wire.call("skills_propose", name="coffee", files=files, reason="It was wrong.", base=digest)
        assert not made.get("isError"), said(made)
        record = made["structuredContent"]
        fields = {"name": "coffee", "principal": "local", "state": "pending", "reason": "It was wrong.", "base": digest}
        assert record == {**fields, "id": record["id"], "proposed": record["proposed"]}
        (own,) = wire.call("skills_proposals")["structuredContent"]["proposals"]
        assert own == record
        assert 'host = "tester"' in (tmp_path / "kept" / record["id"] / "proposal.toml").read_text()
        wrong = wire.call(
            "skills_propose", name="skill://coffee/SKILL.md", files=files, reason="It was wrong.", base="sha256:0"
        )
        assert wrong["isError"] and "it has changed since" in said(wrong)
        assert wire.call("skills_propose", name="coffee", files="x", reason="y")["isError"]
        shared = wire.call("skills_propose", name="tea", files={SKILL_MD: manifest("tea")}, reason="It was wrong.")
        assert shared["isError"] and "ask for one of: a/tea, b/tea" in said(shared)
        assert said(wire.call("skills_search", query=record["id"])).find(record["id"]) < 0


def test_nothing_is_offered_unless_the_operator_says_so(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "coffee")
    with serving(tmp_path / "skills") as wire:
        assert offered(wire) == NAMES
        answer = wire.call("skills_propose", name="x", files={SKILL_MD: manifest("x")}, reason="y")
        assert answer["isError"] and "Unknown tool" in said(answer)
    (tmp_path / "empty").mkdir()
    with serving(tmp_path / "empty", "--proposals", tmp_path / "kept") as wire:
        assert offered(wire) == PROPOSING, "where there is no skill the first one can be proposed"


def propose(wire: HttpClient, name: str) -> dict[str, Any]:
    files = {SKILL_MD: manifest(name.rpartition("/")[2])}
    return wire.call("skills_propose", name=name, files=files, reason="Because.")


@contextmanager
def two_clients(folder: Path, *options: str | Path) -> Iterator[tuple[HttpClient, HttpClient]]:
    """Ann and Bob, each with a token of their own, of one server that keeps proposals."""
    (folder / "tokens").write_text(f"ann={ANN}\nbob={BOB}\n")
    (folder / "tokens").chmod(0o600)
    with (
        http_serving(*options, "--proposals", folder / "kept") as server,
        client(server, "modern", token=ANN) as ann,
        client(server, "modern", token=BOB) as bob,
    ):
        yield ann, bob


def test_grants_say_who_may_propose_what_and_the_audit_log_has_it(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "finance" / "tax")
    write_skill(tmp_path / "skills" / "secret" / "plan")
    audit = tmp_path / "audit"
    with two_clients(tmp_path, "--config", configure(tmp_path, GRANTS), "--audit-log", audit) as (ann, bob):
        assert set(PROPOSING) <= {*offered(ann)} and not set(PROPOSING) & {*offered(bob)}
        assert not propose(ann, "finance/refunds").get("isError")
        for name in ("tea", "secret", "secret/plan", "secret/plan/inner"):
            answer = propose(ann, name)
            assert answer["isError"] and "You may not propose" in said(answer) and "exist" not in said(answer)
        assert "You may not propose skills here" in said(propose(bob, "finance/refunds"))
        assert "You may not propose skills here" in said(bob.call("skills_proposals"))
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    (made,) = [each for each in lines if each["event"] == "propose"]
    assert (made["principal"], made["skill"]) == ("token:ann", "finance/refunds") and made["file"]
    assert "Because" not in audit.read_text()


def test_proposals_of_others_are_not_shown(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "coffee")
    with two_clients(tmp_path, tmp_path / "skills", "--token-file", tmp_path / "tokens") as (ann, bob):
        assert not propose(ann, "tea").get("isError")
        assert said(bob.call("skills_proposals")) == "You have proposed nothing here."
        assert "tea: pending" in said(ann.call("skills_proposals"))


def test_proposals_are_counted_by_what_became_of_them() -> None:
    metrics = Metrics(dict, frozenset())
    for action in ("propose", "propose", "reject"):
        use = Use(action, "tea", "20261124-0123456789ab", "")
        metrics.record(Event(time=0.0, protocol=PAGE, method=action, outcome="ok", uses=(use,), proposer="token:ann"))
    raw, _ = metrics.render("")
    assert b'skills_proposals_total{action="propose"} 2.0' in raw and b'{action="reject"} 1.0' in raw
    assert b"skills_uses_total{" not in raw
