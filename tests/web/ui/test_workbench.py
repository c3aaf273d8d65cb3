"""Authoring on the page: live edits, trigger queries, switches, and commands for hosts."""

from __future__ import annotations

import gzip
import html
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import unquote, urlencode

import pytest
from playwright.sync_api import Browser, expect

from catalog.forest import write_files
from commands import calls
from forkserver import run
from mcp_skills_server.hosts import edit
from mcp_skills_server.hosts.table import HOSTS
from mcp_skills_server.installation import start_command
from web.http_wire import Reply, bearer_header, http_serving, token_file, wait_until
from web.in_process import app_serving, local_page
from web.test_grants import ANN, BOB, configure
from web.ui.chromium import needs_chromium
from web.ui.serving import fetch, get, grant, signed_in, skill_paths, text_of, visible_text
from web.ui.test_browser import open_local_page
from web.ui.test_skill import PNG
from wire import FIXTURES, Wire, write_skill

REFUNDS = "Issue refunds to customers. Use when money is to be paid back."


@needs_chromium
def test_catalogue_follows_edits(chromium: Browser, tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    with open_local_page(chromium, tmp_path) as (seen, _):
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
def test_catalogue_asks_again_after_a_file_was_being_changed(chromium: Browser, skills: Path) -> None:
    with open_local_page(chromium, skills) as (seen, _):
        page = seen.page
        expect(page.locator(".live")).to_have_text("")
        page.route("**/ui/?part=1", lambda route: route.fulfill(status=503), times=1)
        write_skill(skills / "two")
        expect(page.get_by_role("link", name="two", exact=True)).to_be_visible()
        write_skill(skills / "three")
        expect(page.get_by_role("link", name="three", exact=True)).to_be_visible()
        seen.refused.clear()  # the console reports the 503


@needs_chromium
def test_skill_view_follows_own_edits_until_skill_is_removed(chromium: Browser, skills: Path) -> None:
    write_skill(skills / "other")
    with open_local_page(chromium, skills) as (seen, _):
        page = seen.page
        page.get_by_role("link", name="refunds", exact=True).click()
        page.wait_for_url("**/skills/refunds")  # else the status below is that of the catalogue
        expect(page.locator(".live")).to_have_text("")
        requests = len(seen.requests)
        write_skill(skills / "other", description="Something else.")
        write_skill(skills / "refunds", body="# Second\n")
        expect(page.locator("#rendered")).to_contain_text("Second")
        updates = [url for url in seen.requests[requests:] if "part=1" in url]
        assert len(updates) == 1, "an edit of another skill causes no update"
        write_skill(skills / "refunds", name="refund")
        expect(page.get_by_role("region", name="Problems")).to_contain_text("name")
        gone = page.get_by_role("status").filter(has_text="does not exist any more")
        expect(gone).to_be_hidden()
        shutil.rmtree(skills / "refunds")
        expect(gone).to_be_visible()
        write_skill(skills / "refunds", body="# Third\n")
        expect(page.locator("#rendered")).to_contain_text("Third")
        expect(gone).to_be_hidden()
        shutil.rmtree(skills / "refunds")
        expect(gone).to_be_visible()
        wait_until(lambda: page.reload().status == 404)  # type: ignore[union-attr]
        expect(page.get_by_role("status")).to_contain_text("does not exist any more")
        page.get_by_role("link", name="Back to all skills").click()
        expect(page.get_by_role("link", name="other", exact=True)).to_be_visible()


@needs_chromium
def test_argument_form_keeps_typed_values_on_change(chromium: Browser, tmp_path: Path) -> None:
    fields = "x\narguments: [{name: city, required: true}]"
    write_skill(tmp_path / "weather", description=fields, body="Weather of {{city}}\n")
    with open_local_page(chromium, tmp_path) as (seen, origin):
        page = seen.page
        page.goto(f"{origin}/ui/skills/weather")
        expect(page.locator(".live")).to_have_text("")
        city = page.get_by_label("city (required)")
        city.fill("Bonn & <Köln>")
        write_skill(tmp_path / "weather", description=fields, body="Rain in {{city}}\n")
        expect(page.locator(".live")).to_contain_text("This page has changed.")
        expect(city).to_have_value("Bonn & <Köln>")
        page.get_by_role("button", name="Fill in").click()
        expect(page.locator("#filled")).to_have_text("\nRain in Bonn & <Köln>\n", use_inner_text=False)


@needs_chromium
def test_trigger_queries_are_checked_and_saved_in_the_skill(chromium: Browser, tmp_path: Path) -> None:
    queries = "a customer wants the money back\n- profile a csv\n- refund"
    shutil.copytree(FIXTURES, tmp_path / "skills")
    with open_local_page(chromium, tmp_path / "skills") as (seen, origin):
        page, main = seen.page, seen.page.get_by_role("main")
        page.goto(f"{origin}/ui/skills/acme/billing/refunds?tab=evaluation")
        page.get_by_role("link", name="Try prompts for it").click()
        page.get_by_label("Queries").fill(queries)
        page.get_by_role("button", name="Check").click()
        expect(main).to_contain_text("2 of 3 pass")
        expect(main).to_contain_text("not found; first is csv-profiling")
        page.get_by_role("button", name="Save them").click()
        expect(main).to_contain_text("Saved in evals/trigger_queries.json")
        expect(page.get_by_label("Queries")).to_have_value(queries)
    saved = tmp_path / "skills/acme/billing/refunds/evals/trigger_queries.json"
    assert [case["should_trigger"] for case in json.loads(saved.read_bytes())] == [True, False, False]


def post_status(path: str, origin: str, cookie: str = "", site: str = "", **fields: str) -> int:
    """Submit a form from a page of `site`, by default the server's own. Return the status."""
    return fetch(f"{origin}/ui/{path}", cookie, "POST", fields, Origin=site or origin).status


def test_saving_queries_is_refused_cross_site_and_outside_the_skill(tmp_path: Path) -> None:
    skill, linked = (write_skill(tmp_path / "skills" / name) for name in "ab")
    (tmp_path / "outside").mkdir()
    (linked / "evals").symlink_to(tmp_path / "outside")
    write_skill(tmp_path / "far")
    inner = write_skill(tmp_path / "far" / "inner")
    (tmp_path / "skills" / "c").symlink_to(tmp_path / "far")
    with local_page(tmp_path / "skills") as (origin, cookie):
        assert post_status("try", origin, cookie, "http://evil.example", skill="a", prompts="x") == 403
        assert post_status("try", origin, skill="a", prompts="x") == 403
        refusal = text_of(fetch(f"{origin}/ui/try", "", "POST", {"skill": "a"}, Origin=origin))
        assert "You are not signed in any more." in refusal and "<title>Forbidden - mcp-skills-server" in refusal
        for invalid in (
            {"skill": "../outside", "prompts": "x"},
            {"skill": "a"},
            {"skill": "b", "prompts": "x"},
            {"skill": "c", "prompts": "x"},
            {"skill": "c/inner", "prompts": "x"},
            {"skill": "a", "prompts": "x" * 70_000},
        ):
            assert post_status("try", origin, cookie, **invalid) == 400, invalid
        assert not (skill / "evals").exists()
        assert not [*(tmp_path / "outside").iterdir()]
        assert not (inner / "evals").exists()
        assert post_status("try", origin, cookie, skill="a", prompts="x") == 303
        assert (skill / "evals/trigger_queries.json").is_file()


def test_saving_queries_keeps_a_set_that_the_form_cannot_show(skills: Path) -> None:
    def entries(*queries: str) -> str:
        return json.dumps([{"query": each, "should_trigger": True} for each in queries])

    place = skills / "refunds" / "evals" / "trigger_queries.json"
    place.parent.mkdir()
    place.write_text(entries("pay back"), encoding="utf-8")
    with local_page(skills) as (origin, cookie):
        assert post_status("try", origin, cookie, skill="refunds", prompts="x") == 303
        assert json.loads(place.read_bytes())[0]["query"] == "x"
        for kept in (entries(*map(str, range(21))), entries("a\nb"), entries("- a"), entries("x" * 2_001), "[{"):
            place.write_text(kept, encoding="utf-8")
            shown = f"{origin}/ui/raw/refunds?file=evals/trigger_queries.json"
            wait_until(lambda kept=kept, shown=shown: text_of(fetch(shown, cookie)) == kept)
            assert post_status("try", origin, cookie, skill="refunds", prompts="x") == 400, kept
            assert place.read_text(encoding="utf-8") == kept
    place.write_text(entries("pay back"), encoding="utf-8")
    place.with_name("evals.json").write_text(entries(*map(str, range(20))), encoding="utf-8")
    with local_page(skills) as (origin, cookie):  # the form shows the queries of the other file alone
        assert post_status("try", origin, cookie, skill="refunds", prompts="x") == 400
        assert place.read_text(encoding="utf-8") == entries("pay back")


def test_local_skills_are_switched_off_until_none_is_left_and_on(tmp_path: Path) -> None:
    for name in ("tea", "coffee"):
        write_skill(tmp_path / "drinks" / name)
    off = tmp_path / "skills-off.txt"
    with local_page(tmp_path) as (origin, cookie):
        assert 'name="off" value="drinks/tea"' in text_of(fetch(f"{origin}/ui/skills/drinks/tea", cookie))
        assert post_status("switch", origin, cookie, "http://evil.example", off="drinks/tea") == 403
        assert post_status("switch", origin, off="drinks/tea") == 403
        for invalid in ({"off": "drinks"}, {"on": "0:drinks/tea"}, {"on": "7:../x"}, {}):
            assert post_status("switch", origin, cookie, **invalid) == 400, invalid
        assert not off.exists()
        assert post_status("switch", origin, cookie, off="drinks/tea") == 303
        page = text_of(fetch(f"{origin}/ui/", cookie))
        assert "Switched off" in page and 'name="on" value="0:drinks/tea"' in page
        page = text_of(fetch(f"{origin}/ui/skills/drinks/tea?switched=off", cookie))
        assert "It was switched off" in page and 'value="0:drinks/tea"><button class="main">Undo<' in page
        assert ">Switch on<" in text_of(fetch(f"{origin}/ui/skills/drinks/tea", cookie))
        assert off.read_text(encoding="utf-8").splitlines()[1:] == ["drinks/tea"]
        assert post_status("switch", origin, cookie, off="drinks/coffee") == 303
        page = text_of(fetch(f"{origin}/ui/", cookie))
        assert f" new my-skill --directory {tmp_path}</code>" in html.unescape(page), "for the first skill"
        assert f"<title>Skills - {tmp_path.name}</title>" in page
        assert post_status("switch", origin, cookie, on="0:drinks/coffee") == 303
        assert post_status("switch", origin, cookie, on="0:drinks/tea") == 303
        page = text_of(fetch(f"{origin}/ui/skills/drinks/tea?switched=on", cookie))
        assert "It was switched on. Undo" in visible_text(page) and 'name="off" value="drinks/tea"' in page
        assert not off.exists()


def test_administrators_of_a_server_switch_skills_and_are_recorded(tmp_path: Path) -> None:
    def switch(token: str, **fields: str) -> Reply:
        headers = bearer_header(token) | {"Sec-Fetch-Site": "same-origin"}
        return server.send("POST", "/ui/switch", urlencode(fields).encode(), headers)

    write_skill(tmp_path / "skills" / "tea")
    token_file(tmp_path, f"ann={ANN}", f"bob={BOB}")
    audit = tmp_path / "audit"
    grants = configure(tmp_path, grant("bob", "**") + grant("ann", "**", may=["admin"]))
    with app_serving("--config", grants, "--audit-log", audit, "--ui") as server:
        assert "Switch off" not in text_of(get(server, "/ui/skills/tea", **bearer_header(BOB)))
        assert switch(BOB, off="tea").status == 403
        assert "Switch off" in text_of(get(server, "/ui/skills/tea", **bearer_header(ANN)))
        assert switch(ANN, off="tea").headers["Location"] == "/ui/skills/tea?switched=off"
        page = get(server, "/ui/skills/tea", **bearer_header(ANN))
        assert "switched off" in visible_text(page) and str(tmp_path) not in text_of(page)
        assert get(server, "/ui/skills/tea", **bearer_header(BOB)).status == 404
        assert switch(BOB, on="0:tea").status == 403
        assert switch(ANN, on="0:tea").headers["Location"] == "/ui/skills/tea?switched=on"
    records = [json.loads(line) for line in audit.read_text().splitlines()]
    switches = [record for record in records if record["event"].startswith("switch")]
    assert [(record["event"], record["principal"], record["skill"]) for record in switches] == [
        ("switch-off", "token:ann", "tea"), ("switch-on", "token:ann", "tea"),
    ]  # fmt: skip


def test_own_hosts_come_first(skills: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathlib.Path.home", lambda: tmp_path)
    write_files(tmp_path, {".cursor/mcp.json": "{}"})
    with local_page(skills) as (origin, cookie):
        page = visible_text(fetch(f"{origin}/ui/skills/refunds?tab=evaluation", cookie))
    cut = page.partition("What each host shows its model unasked")[2]
    assert cut.index("Cursor (yours, assumed)") < cut.index("Claude Desktop")
    added = page.partition("Add to a host")[2]
    assert added.index("Cursor yours") < added.index("Claude Desktop")


def test_administrator_sees_who_may_see_a_skill_and_why(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "tea")
    token_file(tmp_path, f"ann={ANN}", f"bob={BOB} groups=chefs")
    grants = '[[grant]]\nwho = ["group:chefs"]\nskills = ["t*"]\nmay = ["scripts"]\n'
    config = configure(tmp_path, grants + grant("ann", "**", may=["admin"]))
    with app_serving("--config", config, "--ui") as server:
        page = visible_text(get(server, "/ui/skills/tea", **bearer_header(ANN)))
        assert "Who may see it" in page
        assert "group:chefs read, scripts by group:chefs on t*" in page
        assert "token:bob read, scripts by group:chefs on t*" in page
        assert "token:ann read, admin by token:ann on **" in page
        assert "Who may see it" not in visible_text(get(server, "/ui/skills/tea", **bearer_header(BOB)))


def test_server_page_is_read_only_and_compressed(skills: Path) -> None:
    write_skill(skills / "polite-greetings", body="word " * 2_000)
    with app_serving(skills, "--ui") as server:
        origin = server.origin
        assert post_status("try", origin, skill="refunds", prompts="y") == 403
        assert post_status("switch", origin, off="refunds") == 403
        assert "Save them" not in visible_text(get(server, "/ui/try?skill=refunds&prompts=y"))
        assert "Switch off" not in text_of(get(server, "/ui/skills/refunds"))
        assert "polite-greetings" in visible_text(get(server, "/ui/?q=politte-greetngs+xyzzy")), "a similar name"
        assert get(server, "/ui/static/mark.svg").headers["Content-Type"].startswith("image/svg+xml")
        plain = get(server, "/ui/skills/polite-greetings")
        assert plain.headers["Content-Encoding"] is None
        assert b"word word" in plain.body
        compressed = get(server, "/ui/skills/polite-greetings", **{"Accept-Encoding": "gzip"})
        assert compressed.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(compressed.body) == plain.body


def test_skill_view_shows_command_configuration_and_deeplink_of_hosts(skills: Path) -> None:
    with local_page(skills) as (origin, cookie):
        page = html.unescape(text_of(fetch(f"{origin}/ui/skills/refunds", cookie)))
        assert str(skills / "refunds") in page and '"mcpServers"' in page
        assert page.count(f" install cursor {skills}</code>") == 1
        link = re.search(r'href="vscode:mcp/install\?([^"]*)"', page)
        entry = json.loads(unquote(link[1] if link else ""))
        assert [entry["command"], *entry["args"]] == [*start_command(), "serve", str(skills)]
    with app_serving(skills, "--ui") as server:
        page = html.unescape(text_of(get(server, "/ui/skills/refunds")))
        assert (
            f">mcp-skills-server install claude-code --url http://127.0.0.1:{server.port}/mcp" in page
            and "SKILLS_TOKEN" not in page
        )
        assert "cursor://anysphere.cursor-deeplink/mcp/install?name=skills&config=" in page


def test_command_that_probes_this_server_works_as_copied(skills: Path) -> None:
    def probed(page: str) -> list[str]:
        command = re.search(r'<code id="probe">(.*)</code>', page)
        return shlex.split(html.unescape(command[1] if command else ""))

    with local_page(skills) as (origin, cookie):
        words = probed(text_of(fetch(f"{origin}/ui/skills/refunds", cookie)))
    assert words[:-1] == [*start_command(), "probe"]
    assert shlex.split(words[-1]) == [*start_command(), "serve", str(skills)]
    with http_serving(skills, "--ui") as server:
        wait_until(lambda: probed(text_of(get(server, "/ui/skills/refunds"))) != [])  # after the first scan
        program, *words = probed(text_of(get(server, "/ui/skills/refunds")))
        done = calls.run(*words)
    assert (program, done.returncode, "0 rules broken" in done.stdout) == ("mcp-skills-server", 0, True), done


def test_commands_and_entries_of_the_local_page_work_as_copied(tmp_path: Path) -> None:
    """In another folder, and with the program on no PATH. The roots are a folder and an archive."""
    root = write_skill(tmp_path / "my skills" / "refunds").parent
    write_skill(tmp_path / "packed" / "tea")
    archive = shutil.make_archive(str(tmp_path / "drinks"), "zip", tmp_path / "packed")
    home = tmp_path / "home"
    home.mkdir()

    def run_copied(command: str) -> None:
        environment = os.environ | {"HOME": str(home), "PATH": "/nowhere"}
        run(shlex.split(command), cwd=home, env=environment, stdin=subprocess.DEVNULL, check=True)

    with signed_in(root, archive) as (origin, cookie):
        page = html.unescape(text_of(fetch(f"{origin}/ui/skills/refunds", cookie)))
    commands = re.findall(r'<code id="command-[^"]*">(.*)</code>', page)
    snippets = re.findall(r'<pre id="host-([^"]*)" tabindex="0">(.*?)</pre>', page, re.DOTALL)
    assert len(commands) == len(snippets) == len(HOSTS)
    started = set[tuple[str, ...]]()
    for key, text in snippets:
        (entry,) = edit.entries_of(text.encode(), HOSTS[key], start_command(), "skills").values()
        started.add(tuple(edit.command_line_of(entry)))
    (words,) = started
    assert words == (*start_command(), "serve", str(root), archive)
    with ExitStack() as stack:
        wire = Wire([*words])
        stack.callback(wire.kill)
        wire.open()
        assert {entry["uri"] for entry in wire.every_skill()} == {"skill://refunds/SKILL.md", "skill://tea/SKILL.md"}
    for command in commands[::8]:  # all begin alike; `install` is tested for each host
        run_copied(command)
    empty = tmp_path / "no skills"
    empty.mkdir()
    with signed_in(empty) as (origin, cookie):
        (new,) = re.findall(r'<code id="new">(.*)</code>', html.unescape(text_of(fetch(f"{origin}/ui/", cookie))))
        run_copied(new)
        wait_until(lambda: skill_paths(fetch(f"{origin}/ui/", cookie)) == ["my-skill"])


def test_page_of_a_started_server_offers_no_entries(tmp_path: Path) -> None:
    """The words of its command may be secrets, so that none could be complete."""
    write_skill(tmp_path / "tea")
    words = shlex.join(["mcp+stdio:" + sys.executable, "-m", "mcp_skills_server", "serve", str(tmp_path)])
    with signed_in(words) as (origin, cookie):
        page = text_of(fetch(f"{origin}/ui/skills/tea", cookie))
    assert "What it costs" in page and "Add to a host" not in page


def test_page_without_a_folder_of_its_own_offers_no_new_skill(tmp_path: Path) -> None:
    """A skill would be written into the folder with the archive's copies."""
    (tmp_path / "packed").mkdir()
    write_skill(tmp_path / "packed" / "tea", name="")
    archive = shutil.make_archive(str(tmp_path / "drinks"), "zip", tmp_path / "packed")
    with signed_in(archive, "--exclude", "*") as (origin, cookie):
        page = text_of(fetch(f"{origin}/ui/", cookie))
    assert "There is no skill yet" in page and archive in page and 'id="new"' not in page


def test_author_sees_failed_queries_hosts_neighbours_copies_and_icon(tmp_path: Path) -> None:
    cases = [
        {"query": "pay the money back", "should_trigger": True},
        {"query": "minutes of a meeting", "should_trigger": True},
        {"query": "<b>refunds</b>", "should_trigger": False},
    ]
    write_skill(tmp_path / "refunds", description=REFUNDS, evals__any_json=json.dumps(cases), evals__odd_json="{}")
    write_skill(tmp_path / "minutes", description="Write minutes of meetings. Use when asked what was decided.")
    write_skill(tmp_path / "repayments", description=REFUNDS)
    write_skill(tmp_path / "alone", description="Paint a fence. Use when it is grey.\ndisable-model-invocation: true")
    for folder in ("one", "two"):
        copy = write_skill(tmp_path / folder / "tea", description="Brews tea.\nicon: ./icon.png")
        (copy / "icon.png").write_bytes(PNG)
    bitmap = write_skill(tmp_path / "bitmap", description="Draws bitmaps.\nicon: icon.bmp")
    (bitmap / "icon.bmp").write_bytes(b"BM")
    with app_serving(tmp_path, "--ui") as server:
        page = get(server, "/ui/skills/refunds?tab=evaluation")
        text = visible_text(page)
        assert "Trigger set: 1 of 3 prompts pass" in text
        assert "minutes, by the words minutes, meeting" in text
        assert "odd.json: has no trigger set" in text
        assert re.search(r"Claude Code[^:]*: with its description", text)
        assert "Codex : not at all; skills_search finds it" in text
        assert all(host.title in text for host in HOSTS.values())
        assert re.search(r"repayments \d+%", text)
        assert b"<b>refunds</b>" not in page.body
        assert "No trigger set: put prompts into evals/trigger_queries.json" in visible_text(
            get(server, "/ui/skills/minutes?tab=evaluation")
        )
        assert "nothing to evaluate" in visible_text(get(server, "/ui/skills/alone?tab=evaluation"))
        copy = text_of(get(server, "/ui/skills/one/tea"))
        assert 'src="/ui/raw/one/tea?file=icon.png"' in copy
        assert "Also at two/tea" in visible_text(copy)
        # of other kinds the page sends no picture, but a download
        assert 'class="icon"' not in text_of(get(server, "/ui/skills/bitmap"))
