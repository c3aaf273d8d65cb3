"""Proposals on the page: a reviewer sees all of one, and decides; others see nothing of it."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, expect

from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.web.ui.pages.proposals import sides
from proposals.test_intake import manifest
from server.test_tools import said
from web.http_wire import Reply, Server, bearing, client, http_serving, token_file
from web.test_grants import ANN, BOB, configure
from web.ui.chromium import find_harm, looking, needs_chromium
from web.ui.serving import fetch, get, grant, page_serving, signed_in, ui_command, words
from wire import serving, write_skill

MAY = ["propose", "review"]
GRANTS = grant("ann", "**", may=MAY) + grant("bob", "tea", "tea/**", may=MAY)
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>"
NONE = "/ui/proposals/20261124-0123456789ab"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    cases = json.dumps([{"query": "grind coffee beans", "should_trigger": True}])
    write_skill(tmp_path / "skills" / "coffee", description="Grinds coffee beans.", evals__any_json=cases)
    token_file(tmp_path, f"ann={ANN}", f"bob={BOB}")
    return tmp_path


def proposes(server: Server, token: str, name: str, **more: str) -> str:
    with client(server, "modern", token=token) as wire:
        files = {SKILL_MD: manifest(name.rpartition("/")[2]) + HOSTILE + "\n", **more}
        answer = wire.call("skills_propose", name=name, files=files, reason=f"Better {HOSTILE}")
        assert not answer.get("isError"), said(answer)
        return answer["structuredContent"]["id"]


def test_a_reviewer_sees_what_is_his_and_decides(place: Path) -> None:
    def shown(id_: str = "") -> Reply:
        return get(server, f"/ui/proposals{id_ and f'/{id_}'}", **bearing(BOB))

    def decides(id_: str, site: str = "same-origin", **fields: str) -> int:
        headers = bearing(BOB) | {"Sec-Fetch-Site": site}
        return server.send("POST", f"/ui/proposals/{id_}", urlencode(fields).encode(), headers).status

    audit = place / "audit"
    options = ("--config", configure(place, GRANTS), "--proposals", place / "kept", "--audit-log", audit)
    with http_serving(*options, "--ui") as server:
        of_ann, of_bob = proposes(server, ANN, "tea", run="#!/bin/sh\n"), proposes(server, BOB, "tea/black")
        assert "tea/black" in words(shown())
        page = shown(of_ann)
        text = words(page)
        assert "New skill tea" in text and "token:ann" in text and "Better <script>" in text
        assert "run could run" in text and b'name="scripts"' in page.body
        assert b"<script>alert" not in page.body and b"<img src=x" not in page.body
        assert "another person must decide" in words(shown(of_bob))
        secret = proposes(server, ANN, "secret")
        assert "secret" not in words(shown()) and shown(secret).status == 404
        assert decides(secret, decision="approve") == 404
        assert decides(of_bob, decision="approve") == decides(of_ann, decision="maybe") == 400
        assert decides(of_ann, "cross-site", decision="approve") == 403
        assert decides(of_ann, decision="approve") == 400, "its script was not read"
        assert decides(of_ann, decision="approve", message="thanks".ljust(1_001, "!"), scripts="1") == 303
        assert (place / "skills" / "tea" / SKILL_MD).exists()
        decided = words(shown(of_ann))
        assert "Approved by token:bob" in decided and ": thanks" in decided
        assert decides(of_ann, decision="reject") == 400
        with client(server, "modern", token=ANN) as wire:
            told = said(wire.call("skills_proposals"))
            assert "approved, thanks!" in told and told.count("!") == 994
    (line,) = (each for each in map(json.loads, audit.read_text().splitlines()) if each["event"] == "approve")
    assert (line["principal"], line["proposer"], line["skill"]) == ("token:bob", "token:ann", "tea")


def test_without_a_grant_the_page_of_a_server_has_no_proposals_and_ones_own_page_has_local_ones(place: Path) -> None:
    with page_serving(place / "skills", "--proposals", place / "kept") as server:
        assert "/ui/proposals" not in get(server, "/ui/").body.decode()
        assert get(server, "/ui/proposals").status == 403
        assert server.send("POST", NONE, b"decision=approve", {"Sec-Fetch-Site": "same-origin"}).status == 404
    with signed_in(place / "skills", "--proposals", place / "kept") as (origin, cookie):
        assert "No proposal is pending" in words(fetch(f"{origin}/ui/proposals", cookie))
        assert fetch(origin + NONE, cookie).status == 404


def test_a_difference_has_the_lines_around_it_and_says_where_it_begins() -> None:
    before, after = ("\n".join(map(str, (*range(20), each))).encode() for each in ("old", "new"))
    (file,) = sides({"a": (before, False), "b": (b"", False)}, {"a": (after, False), "b": (b"", False)})
    assert (file.path, file.kind, file.rows[0].left) == ("a", "changed", "from line 17")
    assert [row.left for row in file.rows[1:]] == ["16", "17", "18", "19", "old"]


@needs_chromium
def test_an_agent_proposes_a_person_approves_and_another_host_loads_it(chromium: Browser, place: Path) -> None:
    """The walk: one host proposes, a person approves in a browser, another host is notified and loads the new text."""
    skills, kept = place / "skills", place / "kept"
    with (
        serving(skills, "--proposals", kept, host="one") as one,
        serving(skills, host="two") as two,
        ui_command(skills, "--proposals", kept) as address,
        looking(chromium) as seen,
    ):
        digest = one.call("skills_load", names=["coffee"])["structuredContent"]["active_skills"][0]["digest"]
        text = "---\nname: coffee\ndescription: Grinds coffee beans, and brews tea.\n---\n\n# Coffee\n\nSlowly.\n"
        made = one.call("skills_propose", name="coffee", files={SKILL_MD: text}, reason="Tea, too.", base=digest)
        assert not made.get("isError"), said(made)
        page = seen.page
        page.goto(address)
        assert page.url == address.partition("enter")[0], "the secret leaves the address"
        assert page.evaluate("() => document.cookie") == ""
        page.get_by_role("link", name="Proposals").click()
        page.get_by_role("link", name="coffee").click()
        expect(page.locator("table.sides")).to_contain_text("Slowly.")
        expect(page.locator("#queries + ul")).to_contain_text("rank 1 now, 1 with the proposal")
        assert find_harm(page) == []
        page.get_by_label("Message to the proposer").fill("Good idea")
        page.get_by_role("button", name="Approve").click()
        expect(page.get_by_role("status")).to_contain_text("Approved by local: Good idea")
        while two.notification()["method"] != "notifications/resources/list_changed":
            pass
        assert "Slowly." in said(two.call("skills_load", names=["coffee"]))
        assert "approved, Good idea" in said(one.call("skills_proposals"))
        assert seen.refused == []
