"""Review of proposals on the page."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, expect

from commands.calls import invoke
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.proposals.intake import propose as propose_files
from mcp_skills_server.proposals.store import ProposalStore
from mcp_skills_server.web.ui.pages.proposals import sides
from proposals.test_intake import DRAFT, manifest
from server.test_tools import text_of
from tables import each_row
from web.http_wire import Reply, Target, bearer_header, client, token_file
from web.in_process import app_serving, local_page
from web.test_grants import ANN, BOB, configure
from web.ui.chromium import needs_chromium, open_page, page_width
from web.ui.serving import fetch, get, grant, signed_in, ui_command, visible_text
from web.ui.serving import text_of as text_of_reply
from wire import write_skill

RIGHTS = ["propose", "review"]
GRANTS = grant("ann", "**", may=RIGHTS) + grant("bob", "tea", "tea/**", may=RIGHTS)
CHIEF = "chiefs-made-up-token-0123456789"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>"
HEADERS = bearer_header(BOB) | {"Sec-Fetch-Site": "same-origin"}
ABSENT = "/ui/proposals/20261124-0123456789ab"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cases = json.dumps([{"query": "grind coffee beans", "should_trigger": True}])
    write_skill(tmp_path / "skills" / "coffee", description="Grinds coffee beans.", evals__any_json=cases)
    token_file(tmp_path, f"ann={ANN}", f"bob={BOB}")
    return tmp_path


def propose(server: Target, token: str, name: str, **more: str) -> str:
    """Propose a hostile skill, and return the id of the proposal."""
    with client(server, "modern", token=token) as wire:
        files = {SKILL_MD: manifest(name.rpartition("/")[2]) + HOSTILE + "\n", **more}
        result = wire.call("skills_propose", name=name, files=files, reason=f"Better {HOSTILE}")
        assert not result.get("isError"), text_of(result)
        return result["structuredContent"]["id"]


@contextmanager
def reviewing(folder: Path, grants: str = GRANTS) -> Iterator[Target]:
    options = ("--config", configure(folder, grants), "--proposals", folder / "kept", "--ui")
    with app_serving(*options) as server:
        yield server


def test_reviewer_sees_granted_proposals_and_decides(folder: Path) -> None:
    def view(path: str = "") -> Reply:
        return get(server, f"/ui/proposals{path}", **bearer_header(BOB))

    def decide(id_: str, site: str = "same-origin", **fields: str) -> int:
        headers = bearer_header(BOB) | {"Sec-Fetch-Site": site}
        return server.send("POST", f"/ui/proposals/{id_}", urlencode(fields).encode(), headers).status

    audit = folder / "audit"
    write_skill(folder / "skills" / "hr" / "brewing", description="Does a thing when it is asked to.")
    options = ("--config", configure(folder, GRANTS), "--proposals", folder / "kept", "--audit-log", audit)
    with app_serving(*options, "--ui") as server:
        of_ann, of_bob = propose(server, ANN, "tea", run="#!/bin/sh\n"), propose(server, BOB, "tea/black")
        assert "tea/black" in visible_text(view())
        page = view(f"/{of_ann}")
        text = visible_text(page)
        assert "New skill tea" in text and "token:ann" in text and "Better <script>" in text
        assert "run could run" in text and b'name="scripts"' in page.body
        assert b"<script>alert" not in page.body and b"<img src=x" not in page.body
        assert "hr/brewing" not in text, "bob may not know of it"
        of_all = visible_text(get(server, f"/ui/proposals/{of_ann}", **bearer_header(ANN)))
        assert "hr/brewing says much the same" in of_all
        assert "another person must decide" in visible_text(view(f"/{of_bob}"))
        withheld = propose(server, ANN, "secret")
        assert "secret" not in visible_text(view())
        assert view(f"/{withheld}").status == 404
        assert decide(withheld, decision="approve") == 404
        assert decide(of_bob, decision="approve") == 400, "it is bob's own"
        assert decide(of_ann, decision="maybe") == 400
        assert decide(of_ann, "cross-site", decision="approve") == 403
        assert decide(of_ann, decision="approve") == 400, "its script was not confirmed"
        refused = server.send("POST", f"/ui/proposals/{of_ann}", b"decision=approve&message=Nice+%3Cb%3E", HEADERS)
        assert "read these files, and accept them too" in visible_text(refused)
        assert ">Nice &lt;b&gt;</textarea>" in refused.body.decode(), "what was written stays"
        assert decide(of_ann, decision="approve", message="thanks".ljust(1_001, "!"), scripts="1") == 303
        assert (folder / "skills" / "tea" / SKILL_MD).exists()
        assert '"event":"read"' not in audit.read_text()
        decided = visible_text(view(f"/{of_ann}"))
        assert re.search(r"Approved by token:bob 20\d\d-\d\d-\d\d \d\d:\d\d UTC ?: thanks", decided)
        refused = server.send("POST", f"/ui/proposals/{of_ann}", b"decision=reject", HEADERS)
        assert "approved already" in visible_text(refused)
        assert decide(of_ann, decision="reject") == 400
        with client(server, "modern", token=ANN) as wire:
            base = wire.call("skills_load", names=["tea"])["structuredContent"]["active_skills"][0]["digest"]
            files = {SKILL_MD: manifest("tea") + "More\n"}
            change = wire.call("skills_propose", name="tea", files=files, reason="More", base=base)
        view(f"/{change['structuredContent']['id']}")
        record = json.loads(audit.read_text().splitlines()[-1])
        assert (record["event"], record["skill"], record["principal"]) == ("read", "tea", "token:bob")
        with client(server, "modern", token=ANN) as wire:
            proposals = text_of(wire.call("skills_proposals"))
            assert "approved, thanks!" in proposals
            assert proposals.count("!") == 994, "a message is cut to 1,000 characters"
    records = map(json.loads, audit.read_text().splitlines())
    (record,) = (record for record in records if record["event"] == "approve")
    assert (record["principal"], record["proposer"], record["skill"]) == ("token:bob", "token:ann", "tea")


def test_queries_rank_only_skills_that_the_reviewer_may_read(folder: Path) -> None:
    """A hidden skill for the same words would show itself by the rank."""
    cases = json.dumps([{"query": "brew strong tea leaves", "should_trigger": True}])
    for path in ("spy", "off"):
        write_skill(folder / "skills" / path, description="Brews strong tea leaves. Brew strong tea leaves.")
    (folder / "skills" / "skills-off.txt").write_text("off\n")
    with reviewing(folder) as server, client(server, "modern", token=ANN) as wire:
        text = "---\nname: tea\ndescription: Brews tea, at times of strong leaves.\n---\n"
        files = {SKILL_MD: text, "evals/t.json": cases}
        proposed = wire.call("skills_propose", name="tea", files=files, reason="It is missing.")
        path = f"/ui/proposals/{proposed['structuredContent']['id']}"
        assert "1 with the proposal" in visible_text(get(server, path, **bearer_header(BOB)))
        assert "2 with the proposal" in visible_text(get(server, path, **bearer_header(ANN)))


def test_refusal_on_the_page_names_no_folder_without_admin(folder: Path) -> None:
    rights = grant("ann", "**", may=RIGHTS) + grant("bob", "brew/*", may=["review"])
    chief = grant("chief", "**", may=["review", "admin"])
    token_file(folder, f"ann={ANN}", f"bob={BOB}", f"chief={CHIEF}")
    with reviewing(folder, rights + chief) as server:
        id_ = propose(server, ANN, "brew/green")

        def refusal(token: str) -> str:
            headers = bearer_header(token) | {"Sec-Fetch-Site": "same-origin"}
            reply = server.send("POST", f"/ui/proposals/{id_}", b"decision=approve", headers)
            assert reply.status == 400 and "Decision" in visible_text(reply), "the form is still there"
            return text_of_reply(reply).partition('role="alert">')[2].partition("</p>")[0]

        for place, content in (("brew", "a file\n"), ("brew/SKILL.md", "---\nname: brew\ndescription: Brews.\n---\n")):
            file = folder / "skills" / place
            file.parent.mkdir(exist_ok=True)
            file.write_text(content)
            assert "It cannot be written into its folder; ask the operator" in refusal(BOB)
            assert not [word for word in (str(folder), "brew", "is not", "another") if word in refusal(BOB)]
            assert "brew" in refusal(CHIEF)
            file.unlink()


def measure(root: Path, cache: Path) -> None:
    """Evaluate a root's skills by a judge that passes whatever has a skill, and names a hostile model."""
    judge = root.parent / "judge.py"
    judge.write_text(
        "import json, sys\nquestion = json.load(sys.stdin)\npassed = bool(question['skill'])\n"
        "graded = [{'text': text, 'passed': passed} for text in question['expectations']]\n"
        f"print(json.dumps({{'expectations': graded, 'model': {HOSTILE!r}}}))\n"
    )
    words = ("--outputs", "--judge", f"{sys.executable} {judge}", "--cache-dir", cache)
    assert invoke("evaluate", root, *words).return_value == 0


def test_reviewer_sees_the_lift_of_exactly_the_proposed_version(folder: Path) -> None:
    cache, text = folder / "cache", manifest("tea") + "Brew.\n"
    evals = json.dumps({"evals": [{"prompt": "Brew.", "assertions": ["it is hot"]}]})
    tried = write_skill(folder / "tried/tea", evals__evals_json=evals)
    (tried / SKILL_MD).write_text(text)
    measure(folder / "tried", cache)
    options = ("--config", configure(folder, GRANTS), "--proposals", folder / "kept", "--ui", "--cache-dir", cache)
    with app_serving(*options) as server, client(server, "modern", token=ANN) as wire:

        def review(text: str) -> Reply:
            files = {SKILL_MD: text, "evals/evals.json": evals}
            proposed = wire.call("skills_propose", name="tea", files=files, reason="It is missing.")
            return get(server, f"/ui/proposals/{proposed['structuredContent']['id']}", **bearer_header(BOB))

        page = review(text)
        shown = r"helps 3 of 3 assertions, 0 of 3 with no skill, .* \(95 % .*\); measured 20..-..-.. with <script>"
        assert re.search(shown, visible_text(page))
        assert b"<script>alert" not in page.body and b"<img src=x" not in page.body
        assert "of 3 assertions" not in visible_text(review(text + "More.\n"))


def test_author_sees_the_lift_of_the_version_that_is_served(tmp_path: Path) -> None:
    evals = {"prompt": "Brew.", "assertions": ["it is hot"]}
    tea = write_skill(tmp_path / "skills/tea", evals__evals_json=json.dumps({"evals": [evals]}))
    write_skill(tea / "green")  # a nested skill is no part of it
    address, cache = "/ui/skills/tea?tab=evaluation", tmp_path / "cache"
    with app_serving(tmp_path / "skills", "--ui", "--cache-dir", cache) as server:
        assert "This version was not measured yet" in visible_text(get(server, address))
        measure(tmp_path / "skills", cache)
        page = get(server, address)
        assert "helps 3 of 3 assertions, 0 of 3 with no skill" in visible_text(page)
        assert b"<script>alert" not in page.body
        assert "outputs" not in visible_text(get(server, "/ui/skills/tea/green?tab=evaluation"))
    with signed_in(tmp_path / "skills", "--cache-dir", cache) as (origin, cookie):
        assert "helps 3 of 3" in visible_text(fetch(origin + address, cookie))
    (tea / SKILL_MD).write_text((tea / SKILL_MD).read_text() + "More.\n")
    with app_serving(tmp_path / "skills", "--ui", "--cache-dir", cache) as server:
        assert "This version was not measured yet" in visible_text(get(server, address))


def test_proposals_need_a_grant_on_a_server_but_not_locally(folder: Path) -> None:
    with app_serving(folder / "skills", "--ui", "--proposals", folder / "kept") as server:
        assert "/ui/proposals" not in get(server, "/ui/").body.decode()
        assert get(server, "/ui/proposals").status == 403
        assert server.send("POST", ABSENT, b"decision=approve", {"Sec-Fetch-Site": "same-origin"}).status == 404
    with local_page(folder / "skills", proposals=ProposalStore(folder / "kept")) as (origin, cookie):
        assert "No proposal is pending" in visible_text(fetch(f"{origin}/ui/proposals", cookie))
        assert fetch(origin + ABSENT, cookie).status == 404


def test_diff_has_context_lines_and_first_line_number() -> None:
    before, after = ("\n".join(map(str, (*range(20), last))).encode() for last in ("old", "new"))
    (file,) = sides({"a": (before, False), "b": (b"", False)}, {"a": (after, False), "b": (b"", False)})
    assert (file.path, file.kind, file.rows[0].left) == ("a", "changed", "from line 17")
    assert [row.left for row in file.rows[1:]] == ["16", "17", "18", "19", "old"]
    repeated = b"x\n" * 300
    (file,) = sides({"a": (b"old\n" + repeated, False)}, {"a": (b"new\n" + repeated, False)})
    assert [row.left for row in file.rows] == ["old", "x", "x", "x", "x"], "frequent lines are context too"


def test_change_of_a_line_end_is_shown() -> None:
    (file,) = sides({"a": (b"one\ntwo\n", False)}, {"a": (b"one\rtwo\x0c", False)})
    assert [(row.kind, row.left, row.right) for row in file.rows] == [
        ("changed", "one", "one␍"),
        ("changed", "two", "two␌"),
    ]
    (file,) = sides({}, {"a": (b"one\rtwo\x0cthree", False)})
    assert [row.right for row in file.rows] == ["one␍", "two␌", "three"]
    (file,) = sides({}, {"a": ("a\v\x1c\x1d\x1e\x85\u2028\u2029".encode(), False)})
    assert [row.right for row in file.rows] == ["a␋", "␜", "␝", "␞", "␤", "↵", "¶"]


@each_row("end", [b"\n", b"\r", b"\x0c", "\u2028".encode()])
def test_new_file_shows_at_most_two_thousand_rows(end: bytes) -> None:
    (file,) = sides({}, {"a": (b"x" + end, False)})
    assert len(file.rows) == 1
    (file,) = sides({}, {"a": ((b"x" + end) * 2_000, False)})
    assert len([row for row in file.rows if row.kind != "gap"]) == 2_000
    (file,) = sides({}, {"a": ((b"x" + end) * 100_000, False)})
    assert "100,000 proposed" in (file.rows[0].left or "")
    assert len(file.rows) == 2_001
    (file,) = sides({"a": ((b"x" + end) * 100_000, False)}, {})
    assert len(file.rows) == 1, "nothing of a removed file is proposed"


def test_file_with_too_many_lines_is_not_compared_but_shown() -> None:
    """The comparison of 100,000 equal lines with 5,000 took a minute, in which other requests hardly went on."""
    (file,) = sides({"a": (b"old\n" + b"x\n" * 5_000, False)}, {"a": (b"new\n" + b"x\n" * 1_999, False)})
    assert file.rows[0].left is not None and "5,001 lines" in file.rows[0].left
    assert [row.right for row in file.rows[1:]] == ["new", *["x"] * 1_999]


def test_frequent_lines_of_long_files_are_not_matched() -> None:
    """Matching blank lines between others took a minute for 2,000 lines, and no thread went on meanwhile."""
    blank, other = b"\n" * 600, b"".join(b"%d\n\n" % number for number in range(300))
    (file,) = sides({"a": (blank, False)}, {"a": (other, False)})
    assert {row.kind for row in file.rows} == {"changed"}


@needs_chromium
def test_proposal_is_reviewed_on_a_phone(chromium: Browser, folder: Path) -> None:
    """One column of marked lines; the box for scripts is required to approve, and not to reject."""
    store = ProposalStore(folder / "kept")
    served = {SKILL_MD: "---\nname: coffee\ndescription: Grinds tea beans.\n---\n", "run.sh": "#!/bin/sh\n"}
    with Registry([folder / "skills"]) as registry:
        base = registry.snapshot.skills["coffee"].files[SKILL_MD].digest
        propose_files(registry, store, replace(DRAFT, name="coffee", base=base), served, registry.snapshot)
    with (
        ui_command(folder / "skills", "--proposals", folder / "kept") as address,
        open_page(chromium, viewport={"width": 390, "height": 800}) as seen,
    ):
        page = seen.page
        page.goto(address)
        page.get_by_role("link", name="Proposals").click()
        expect(page.get_by_role("main")).not_to_contain_text(re.compile(r"T\d\d:\d\d"))
        page.get_by_role("link", name="coffee").click()
        expect(page.locator(".sides .plus b").first).to_have_text("tea")
        expect(page.locator(".sides .minus b").first).to_have_text("coffee")
        left, right = (page.locator(f".sides td.{kind}").first.bounding_box() for kind in ("minus", "plus"))
        assert left and right and left["x"] == right["x"] and left["y"] < right["y"]
        assert page_width(page) <= 390
        page.get_by_role("button", name="Approve").click()
        assert page.evaluate("() => document.querySelector('[name=scripts]').validity.valueMissing")
        expect(page.get_by_role("heading", name="Decision")).to_be_visible()
        page.get_by_role("button", name="Reject").click()
        expect(page.get_by_role("status")).to_contain_text("Rejected by local")
