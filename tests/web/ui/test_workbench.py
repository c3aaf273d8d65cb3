"""What an author does on the page: it follows edits, keeps queries in a skill, and adds the server to a host."""

from __future__ import annotations

import gzip
import html
import json
import re
import shutil
from pathlib import Path
from urllib.parse import unquote

from playwright.sync_api import Browser, expect

from web.ui.chromium import needs_chromium
from web.ui.serving import ask, get, page_serving, signed_in, words
from web.ui.test_browser import opened
from web.ui.test_skill import png
from wire import FIXTURES, write_skill

REFUNDS = "Issue refunds to customers. Use when money is to be paid back."


@needs_chromium
def test_the_list_follows_edits(chromium: Browser, tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    with opened(chromium, tmp_path) as (seen, _):
        page = seen.page
        expect(page.locator(".live")).to_have_text("")
        write_skill(tmp_path / "two", description="Brews tea.")
        expect(page.get_by_role("link", name="two", exact=True)).to_be_visible()
        page.get_by_role("searchbox").fill("tea")
        expect(page.get_by_role("link", name="one", exact=True)).to_have_count(0)
        write_skill(tmp_path / "three", description="Pours tea.")
        expect(page.get_by_role("link", name="three", exact=True)).to_be_visible()
        expect(page.get_by_role("link", name="one", exact=True)).to_have_count(0)
        shutil.rmtree(tmp_path / "two")
        expect(page.get_by_role("link", name="two", exact=True)).to_have_count(0)


@needs_chromium
def test_an_open_skill_follows_its_own_edits_and_its_problems(chromium: Browser, tmp_path: Path) -> None:
    write_skill(tmp_path / "tea", body="# First\n")
    write_skill(tmp_path / "other")
    with opened(chromium, tmp_path) as (seen, origin):
        page = seen.page
        page.goto(f"{origin}/ui/skills/tea")
        expect(page.locator(".live")).to_have_text("")
        asked = len(seen.asked)
        write_skill(tmp_path / "other", description="Something else.")
        write_skill(tmp_path / "tea", body="# Second\n")
        expect(page.locator("#rendered")).to_contain_text("Second")
        assert len([each for each in seen.asked[asked:] if "part=1" in each]) == 1, "only its own edits count"
        write_skill(tmp_path / "tea", name="teas")
        expect(page.get_by_role("region", name="Problems")).to_contain_text("name")


@needs_chromium
def test_what_is_being_typed_is_not_taken_away(chromium: Browser, tmp_path: Path) -> None:
    fields = "x\narguments: [{name: city}]"
    write_skill(tmp_path / "weather", description=fields, body="Weather of {{city}}\n")
    with opened(chromium, tmp_path) as (seen, origin):
        page = seen.page
        page.goto(f"{origin}/ui/skills/weather")
        expect(page.locator(".live")).to_have_text("")
        page.get_by_label("city").fill("Bonn")
        write_skill(tmp_path / "weather", description=fields, body="Rain in {{city}}\n")
        expect(page.locator(".live")).to_contain_text("This page has changed.")
        expect(page.get_by_label("city")).to_have_value("Bonn")


@needs_chromium
def test_queries_are_checked_and_kept_in_the_skill(chromium: Browser, tmp_path: Path) -> None:
    shutil.copytree(FIXTURES, tmp_path / "skills")
    with opened(chromium, tmp_path / "skills") as (seen, origin):
        page = seen.page
        page.goto(f"{origin}/ui/skills/acme/billing/refunds")
        page.get_by_role("link", name="Try prompts for it").click()
        page.get_by_label("Queries").fill("a customer wants the money back\n- profile a csv\n- refund")
        page.get_by_role("button", name="Check").click()
        main = page.get_by_role("main")
        expect(main).to_contain_text("2 of 3 pass")
        expect(main).to_contain_text("not found; first is csv-profiling")
        page.get_by_role("button", name="Save them").click()
        expect(main).to_contain_text("Saved in evals/trigger_queries.json")
        expect(page.get_by_label("Queries")).to_have_value("a customer wants the money back\n- profile a csv\n- refund")
    kept = tmp_path / "skills/acme/billing/refunds/evals/trigger_queries.json"
    assert [each["should_trigger"] for each in json.loads(kept.read_bytes())] == [True, False, False]


def post(address: str, cookie: str, origin: str, **fields: str) -> int:
    """The status of a form that a page of this origin sends."""
    return ask(address, cookie, "POST", fields, Origin=origin)[0]


def test_nothing_is_kept_for_another_page_nor_out_of_the_skill(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "skills" / "a")
    linked = write_skill(tmp_path / "skills" / "b")
    (tmp_path / "outside").mkdir()
    (linked / "evals").symlink_to(tmp_path / "outside")
    with signed_in(tmp_path / "skills") as (origin, cookie):
        there = f"{origin}/ui/try"
        assert post(there, cookie, "http://evil.example", skill="a", prompts="x") == 403
        assert post(there, "", origin, skill="a", prompts="x") == 403
        for wrong in ({"skill": "../outside", "prompts": "x"}, {"skill": "a"}, {"skill": "b", "prompts": "x"}):
            assert post(there, cookie, origin, **wrong) == 400, wrong
        assert not (skill / "evals").exists() and not [*(tmp_path / "outside").iterdir()]
        assert post(there, cookie, origin, skill="a", prompts="x") == 303
        assert (skill / "evals/trigger_queries.json").is_file()
    with page_serving(tmp_path / "skills") as server:
        where = f"http://127.0.0.1:{server.port}"
        assert post(f"{where}/ui/try", "", where, skill="a", prompts="y") == 403
        assert "Save them" not in words(get(server, "/ui/try?skill=a&prompts=y"))


def test_a_skill_of_one_s_own_is_switched_off_and_on(tmp_path: Path) -> None:
    for name in ("tea", "coffee"):
        write_skill(tmp_path / "drinks" / name)
    with signed_in(tmp_path) as (origin, cookie):
        there = f"{origin}/ui/switch"
        assert 'name="off" value="drinks/tea"' in ask(f"{origin}/ui/skills/drinks/tea", cookie)[2]
        assert post(there, cookie, "http://evil.example", off="drinks/tea") == 403
        assert post(there, "", origin, off="drinks/tea") == 403
        for wrong in ({"off": "drinks"}, {"on": "0:drinks/tea"}, {"on": "7:../x"}, {}):
            assert post(there, cookie, origin, **wrong) == 400, wrong
        assert not (tmp_path / "skills-off.txt").exists()
        assert post(there, cookie, origin, off="drinks/tea") == 303
        page = ask(f"{origin}/ui/", cookie)[2]
        assert "Switched off" in page and 'name="on" value="0:drinks/tea"' in page
        assert ask(f"{origin}/ui/skills/drinks/tea", cookie)[0] == 404
        assert (tmp_path / "skills-off.txt").read_text(encoding="utf-8").splitlines()[1:] == ["drinks/tea"]
        assert post(there, cookie, origin, on="0:drinks/tea") == 303
        assert ask(f"{origin}/ui/skills/drinks/tea", cookie)[0] == 200
        assert not (tmp_path / "skills-off.txt").exists()
    with page_serving(tmp_path) as server:
        where = f"http://127.0.0.1:{server.port}"
        assert post(f"{where}/ui/switch", "", where, off="drinks/tea") == 403
        assert "Switch off" not in get(server, "/ui/skills/drinks/tea").body.decode()


def test_a_first_look_says_which_folder_and_what_to_type(tmp_path: Path) -> None:
    with signed_in(tmp_path) as (origin, cookie):
        page = ask(f"{origin}/ui/", cookie)[2]
        assert f"mcp-skills-server new {tmp_path}/my-skill" in html.unescape(page)
        assert f"<title>Skills - {tmp_path.name}</title>" in page
    write_skill(tmp_path / "polite-greetings")
    with page_serving(tmp_path) as server:
        found = words(get(server, "/ui/?q=politte-greetngs+xyzzy"))
        assert "polite-greetings" in found
        assert get(server, "/ui/static/mark.svg").headers["Content-Type"].startswith("image/svg+xml")


def test_a_host_has_its_command_its_entry_and_its_link(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    with signed_in(tmp_path) as (origin, cookie):
        page = html.unescape(ask(f"{origin}/ui/skills/a", cookie)[2])
        assert str(tmp_path / "a") in page and '"mcpServers"' in page
        assert page.count(f"mcp-skills-server install cursor {tmp_path}") == 1
        link = re.search(r'href="vscode:mcp/install\?([^"]*)"', page)
        assert link is not None
        assert json.loads(unquote(link[1]))["args"] == ["serve", str(tmp_path)]
    with page_serving(tmp_path) as server:
        page = html.unescape(get(server, "/ui/skills/a").body.decode())
        assert f"install claude-code --url http://127.0.0.1:{server.port}/mcp" in page and "SKILLS_TOKEN" not in page
        assert "cursor://anysphere.cursor-deeplink/mcp/install?name=skills&config=" in page


def test_a_skill_shows_its_copies_and_its_icon(tmp_path: Path) -> None:
    fields = "Does a thing when it is asked to.\nicon: ./icon.png"
    for place in ("one", "two"):
        folder = write_skill(tmp_path / place / "tea", description=fields)
        (folder / "icon.png").write_bytes(png())
    with page_serving(tmp_path) as server:
        page = get(server, "/ui/skills/one/tea").body.decode()
        assert 'src="/ui/raw/one/tea?file=icon.png"' in page
        assert "Also at two/tea" in words(page)


def test_long_pages_are_compressed_for_who_takes_that(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", body="word " * 2_000)
    with page_serving(tmp_path) as server:
        reply = server.send("GET", "/ui/skills/a", headers={"Accept-Encoding": "gzip"})
        assert reply.headers["Content-Encoding"] == "gzip"
        assert b"word word" in gzip.decompress(reply.body)
        assert get(server, "/ui/skills/a").headers["Content-Encoding"] is None


def test_an_author_sees_what_misses_and_who_shows_the_skill(tmp_path: Path) -> None:
    cases = [
        {"query": "pay the money back", "should_trigger": True},
        {"query": "minutes of a meeting", "should_trigger": True},
        {"query": "<b>refunds</b>", "should_trigger": False},
    ]
    write_skill(tmp_path / "refunds", description=REFUNDS, evals__any_json=json.dumps(cases), evals__odd_json="{}")
    write_skill(tmp_path / "minutes", description="Write minutes of meetings. Use when asked what was decided.")
    write_skill(tmp_path / "repayments", description=REFUNDS)
    write_skill(tmp_path / "alone", description="Paint a fence. Use when it is grey.\ndisable-model-invocation: true")
    with page_serving(tmp_path) as server:
        seen = words(get(server, "/ui/skills/refunds"))
        assert "Trigger set: 1 of 3 prompts pass" in seen
        assert "minutes comes first by the words minutes, meeting" in seen
        assert "odd.json: has no trigger set" in seen
        assert re.search(r"claude-code.* : with its whole description|claude-code[^:]*: with its description", seen)
        assert "codex : not at all; skills_search finds it" in seen
        assert re.search(r"repayments \d+%", seen)
        assert b"<b>refunds</b>" not in get(server, "/ui/skills/refunds").body
        assert "No trigger set: put prompts into evals/trigger_queries.json" in words(get(server, "/ui/skills/minutes"))
        assert "For its author" not in words(get(server, "/ui/skills/alone"))
