"""Proposals on the page: a reviewer sees all of one, and decides; others see nothing of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from catalog.forest import plant
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.proposals.intake import propose
from mcp_skills_server.proposals.store import ProposalStore
from proposals.test_intake import DRAFT, base_of, manifest
from server.test_proposing import ask as call
from server.test_tools import said
from web.http_wire import Reply, Server, bearing, client, http_serving, token_file
from web.test_grants import ANN, BOB, configure
from web.ui.chromium import harm, looking, needs_chromium, quiet
from web.ui.serving import ask, get, own_page, page_serving, signed_in, words
from wire import serving, write_skill

GRANTS = """
[[grant]]
who = ["token:ann"]
skills = ["**"]
may = ["propose", "review"]

[[grant]]
who = ["token:bob"]
skills = ["tea", "tea/**"]
may = ["propose", "review"]
"""
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    cases = json.dumps([{"query": "grind coffee beans", "should_trigger": True}])
    folder = write_skill(tmp_path / "skills" / "coffee", description="Grinds coffee beans.")
    plant(folder, {"evals/trigger_queries.json": cases})
    token_file(tmp_path, f"ann={ANN}", f"bob={BOB}")
    return tmp_path


def proposes(server: Server, token: str, name: str, **more: str) -> str:
    with client(server, "modern", token=token) as wire:
        files = {SKILL_MD: manifest(name.rpartition("/")[2]) + HOSTILE + "\n"}
        answer = call(wire, "skills_propose", name=name, files=files, reason=f"Better {HOSTILE}", **more)
        assert not answer.get("isError"), said(answer)
        return answer["structuredContent"]["id"]


def bearer(server: Server, path: str, token: str) -> Reply:
    return get(server, path, **bearing(token))


def decides(server: Server, id_: str, token: str, **fields: str) -> Reply:
    headers = bearing(token) | {"Sec-Fetch-Site": "same-origin"}
    return server.send("POST", f"/ui/proposals/{id_}", urlencode(fields).encode(), headers)


def test_a_reviewer_sees_what_is_his_and_decides(place: Path) -> None:
    audit = place / "audit"
    options = ("--config", configure(place, GRANTS), "--proposals", place / "kept", "--audit-log", audit)
    with http_serving(*options, "--ui") as server:
        of_ann, of_bob = proposes(server, ANN, "tea"), proposes(server, BOB, "tea/black")
        assert "tea/black" in words(bearer(server, "/ui/proposals", BOB))
        page = bearer(server, f"/ui/proposals/{of_ann}", BOB)
        text = words(page)
        assert "New skill tea" in text and "token:ann" in text and "Better <script>" in text
        assert "<script>alert" not in page.body.decode() and "<img src=x" not in page.body.decode()
        assert "another person has to decide" in words(bearer(server, f"/ui/proposals/{of_bob}", BOB))
        secret = proposes(server, ANN, "secret")
        assert "secret" not in words(bearer(server, "/ui/proposals", BOB))
        assert bearer(server, f"/ui/proposals/{secret}", BOB).status == 404
        assert decides(server, secret, BOB, decision="approve").status == 404
        assert decides(server, of_bob, BOB, decision="approve").status == 400
        assert decides(server, of_ann, BOB, decision="maybe").status == 400
        foreign = bearing(BOB) | {"Sec-Fetch-Site": "cross-site"}
        assert server.send("POST", f"/ui/proposals/{of_ann}", b"decision=approve", foreign).status == 403
        assert decides(server, of_ann, BOB, decision="approve", message="thanks").status == 303
        assert (place / "skills" / "tea" / SKILL_MD).exists()
        decided = words(bearer(server, f"/ui/proposals/{of_ann}", BOB))
        assert "Approved by token:bob" in decided and ": thanks" in decided
        assert decides(server, of_ann, BOB, decision="reject").status == 400
        with client(server, "modern", token=ANN) as wire:
            assert "approved, thanks" in said(call(wire, "skills_proposals"))
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    (decided,) = [each for each in lines if each["event"] == "approve"]
    assert (decided["principal"], decided["proposer"], decided["skill"]) == ("token:bob", "token:ann", "tea")


def test_without_a_grant_the_page_of_a_server_has_no_proposals(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "coffee")
    with page_serving(tmp_path / "skills", "--proposals", tmp_path / "kept") as server:
        assert "/ui/proposals" not in get(server, "/ui/").body.decode()
        assert get(server, "/ui/proposals").status == 403
        headers = {"Sec-Fetch-Site": "same-origin"}
        reply = server.send("POST", "/ui/proposals/20261124-0123456789ab", b"decision=approve", headers)
        assert reply.status == 404


@needs_chromium
@quiet
def test_an_agent_proposes_a_person_approves_and_another_host_loads_it(chromium: Browser, place: Path) -> None:
    """The walk: one host proposes, a person approves in a browser, another host is notified and loads the new text."""
    skills, kept = place / "skills", place / "kept"
    with (
        serving(skills, "--proposals", kept, host="one") as one,
        serving(skills, host="two") as two,
        own_page(skills, "--proposals", kept) as address,
        looking(chromium) as seen,
    ):
        digest = call(one, "skills_load", names=["coffee"])["structuredContent"]["active_skills"][0]["digest"]
        text = "---\nname: coffee\ndescription: Grinds coffee beans, and brews tea.\n---\n\n# Coffee\n\nSlowly.\n"
        made = call(one, "skills_propose", name="coffee", files={SKILL_MD: text}, reason="Tea, too.", base=digest)
        assert not made.get("isError"), said(made)
        page = seen.page
        page.goto(address)
        page.get_by_role("link", name="Proposals").click()
        page.get_by_role("link", name="coffee").click()
        expect(page.locator("table.sides")).to_contain_text("Slowly.")
        expect(page.locator("#queries + ul")).to_contain_text("place 1 now, 1 with this")
        assert harm(page) == []
        page.get_by_label("What to tell the proposer").fill("Good idea")
        page.get_by_role("button", name="Approve").click()
        expect(page.get_by_role("status")).to_contain_text("Approved by local: Good idea")
        while two.notification()["method"] != "notifications/resources/list_changed":
            pass
        loaded = call(two, "skills_load", names=["coffee"])
        assert "Slowly." in said(loaded)
        assert "approved, Good idea" in said(call(one, "skills_proposals"))
        assert seen.refused == []


@needs_chromium
@quiet
def test_the_views_are_accessible_and_fit_a_telephone(chromium: Browser, place: Path) -> None:
    store = ProposalStore(place / "kept")
    with Registry([place / "skills"]) as registry:
        base = base_of(registry, "coffee")
        files = {SKILL_MD: manifest("coffee") + "x" * 300, "scripts/run.py": "print(1)\n", "a.md": "a\n" * 50}
        made = propose(registry, store, replace(DRAFT, name="coffee", base=base), files)
    with (
        own_page(place / "skills", "--proposals", place / "kept") as address,
        looking(chromium, color_scheme="dark", viewport={"width": 320, "height": 600}) as seen,
    ):
        seen.page.goto(address)
        for view in ("proposals", f"proposals/{made.id}"):
            seen.page.goto(f"{address.partition('/ui/')[0]}/ui/{view}")
            found = Axe().run(seen.page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa"]}).response
            assert [each["id"] for each in found["violations"]] == [] and found["passes"], view
            assert seen.page.evaluate("() => document.documentElement.scrollWidth") <= 320, view
        seen.page.get_by_role("button", name="Approve").click()
        expect(seen.page.get_by_role("main")).to_contain_text("brings scripts")
        seen.page.go_back()
        seen.page.get_by_label("I have read the scripts").check()
        seen.page.get_by_role("button", name="Approve").click()
        expect(seen.page.get_by_role("status")).to_contain_text("Approved by local")
    assert (place / "skills" / "coffee" / "scripts" / "run.py").exists()


def test_ones_own_page_reviews_what_is_local(place: Path) -> None:
    with signed_in(place / "skills", "--proposals", place / "kept") as (origin, cookie):
        assert "Nothing waits for a decision" in words(ask(f"{origin}/ui/proposals", cookie)[2])
        assert ask(f"{origin}/ui/proposals/20261124-0123456789ab", cookie)[0] == 404
