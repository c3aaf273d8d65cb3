"""The web UI in a real Chromium: live updates, keyboard, accessibility, no JavaScript, phones, hostile skills."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import APIResponse, Browser, Error, Route, expect

from web.ui import corpus
from web.ui.chromium import PHONE, PageRecord, find_harm, needs_chromium, open_page, page_width
from web.ui.serving import page_serving, signed_in
from wire import FIXTURES, write_skill

pytestmark = needs_chromium
REFUNDS = "skills/acme/billing/refunds"
SKILL_VIEWS = ("", REFUNDS, f"{REFUNDS}?text=raw",
         "files/acme/billing/refunds?file=references/approval-limits.md",
         "history/acme/billing/refunds", "edit/acme/billing/refunds", "?problem=any",
         "archive", "no/such/page", "?q=nothing-is-like-this")  # fmt: skip
VIEWS = ("usage", "model", "model?era=legacy&dialect=sep-2640", "try?prompt=handle+a+refund+request",
         "try?skill=acme/billing/refunds&prompts=refund%0A-+csv", "try", "tools",
         "tools?tool=skills_read&arg.skill=refunds&arg.path=SKILL.md&call=1", "problems",
         "live", "sources", "runs", "clients")  # fmt: skip
LIVE_STATUS = "Changes appear here as they happen."


@contextmanager
def visit(chromium: Browser, session: tuple[str, str], **options: Any) -> Iterator[tuple[PageRecord, str]]:
    origin, cookie = session
    with open_page(chromium, **options) as seen:
        name, _, value = cookie.partition("=")
        seen.page.context.add_cookies([{"name": name, "value": value, "url": origin}])
        seen.page.goto(f"{origin}/ui/")
        yield seen, origin
    assert [message for message in seen.refused if "404" not in message] == []


@contextmanager
def open_local_page(chromium: Browser, *roots: Path, **options: Any) -> Iterator[tuple[PageRecord, str]]:
    """Run the local page of these roots, and open it. Yield its record and the origin."""
    with signed_in(*roots) as session, visit(chromium, session, **options) as visited:
        yield visited


def test_catalogue_searches_while_typing_and_works_by_keyboard(chromium: Browser, shared: tuple[str, str]) -> None:
    with visit(chromium, shared) as (seen, origin):
        page, main = seen.page, seen.page.get_by_role("main")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        page.keyboard.press("/")
        expect(page.get_by_role("searchbox", name="Search")).to_be_focused()
        page.keyboard.type("refunds/")
        expect(page).to_have_url(f"{origin}/ui/?q=refunds%2F")  # the last reply, which replaces the focused element
        expect(page.locator("#count")).to_contain_text("found")
        expect(main.get_by_role("link", name="csv-profiling", exact=True)).to_have_count(0)
        page.get_by_label("Tag").select_option("data")
        expect(page.locator("#results")).to_contain_text("No skill matches.")
        page.get_by_role("searchbox").fill("")
        expect(main.get_by_role("link", name="csv-profiling", exact=True)).to_be_visible()
        assert all("part=1" in url for url in seen.requests if "/ui/?" in url)
        main.get_by_role("link", name="csv-profiling", exact=True).press("Enter")
        expect(page).to_have_url(f"{origin}/ui/skills/csv-profiling")


def test_every_view_is_reachable_by_keyboard_without_focus_trap(chromium: Browser, shared: tuple[str, str]) -> None:
    focused = """() => {
      const element = document.activeElement;
      return element && element !== document.body ? element.textContent || element.tagName : "";
    }"""
    has_outline = "() => parseFloat(getComputedStyle(document.activeElement).outlineWidth) > 0"
    with visit(chromium, shared) as (seen, _):
        page = seen.page
        views = page.get_by_role("navigation", name="Views")
        entries = views.get_by_role("link").all_text_contents()
        assert entries == ["Skills", "Problems", "Proposals", "Activity", "Sources", "Try it"]
        headings = {"Activity": "Live", "Try it": "What the model sees"}
        for name in entries:
            for _ in range(15):
                page.keyboard.press("Tab")
                if page.evaluate(focused) == name:
                    break
            assert page.evaluate(focused) == name
            assert page.evaluate(has_outline), name
            with page.expect_event("load"):  # the first link leads to the current page
                page.keyboard.press("Enter")
            expect(page.get_by_role("heading", level=1, name=headings.get(name, name))).to_be_visible()
            assert page.get_by_role("main").count() == 1
            expect(views.locator("[aria-current]")).to_have_text(name)
            for _ in range(400):  # to the end of the page
                page.keyboard.press("Tab")
                if not page.evaluate(focused):
                    break
                assert page.evaluate(has_outline), (name, page.evaluate("() => document.activeElement.outerHTML"))
            assert not page.evaluate(focused), f"{name} traps the focus"


def test_entry_of_several_views_has_tabs_and_stays_current(chromium: Browser, shared: tuple[str, str]) -> None:
    with visit(chromium, shared) as (seen, origin):
        page = seen.page
        for entry, tabs in (
            ("Activity", {"Live": "live", "Usage": "usage", "Runs": "runs", "Clients": "clients"}),
            ("Try it", {"What the model sees": "model", "Triggers": "try", "Tools": "tools"}),
        ):
            page.get_by_role("navigation", name="Views").get_by_role("link", name=entry).click()
            bar = page.get_by_role("navigation", name=entry)
            for name, address in tabs.items():  # the addresses are those of before the views had a common entry
                bar.get_by_role("link", name=name).click()
                expect(page).to_have_url(f"{origin}/ui/{address}")
                expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()
                expect(bar.locator("[aria-current=page]")).to_have_text(name)
                expect(page.get_by_role("navigation", name="Views").locator("[aria-current]")).to_have_text(entry)
        page.goto(f"{origin}/ui/{REFUNDS}")
        expect(page.get_by_role("navigation", name="Views").locator("[aria-current]")).to_have_text("Skills")


def test_model_view_unfolds_cut_skills_and_copies_instructions(chromium: Browser, shared: tuple[str, str]) -> None:
    with visit(chromium, shared, permissions=["clipboard-read", "clipboard-write"]) as (seen, origin):
        page = seen.page
        page.goto(f"{origin}/ui/model")
        region = page.get_by_role("region", name="Instructions of the server", exact=True)
        page.get_by_text("Shortened (").click()
        expect(page.get_by_role("link", name="refunds", exact=True)).to_be_visible()
        page.evaluate("() => { setTimeout = () => 0 }")  # else "Copied" disappears after 2 s
        region.get_by_role("button", name="Copy").click()
        expect(region.get_by_role("button", name="Copied")).to_be_visible()
        copied = page.evaluate("() => navigator.clipboard.readText()")
        assert copied == region.locator("pre").text_content()
        assert "<available_skills>" in copied
        page.get_by_label("Era of MCP").select_option("legacy")
        page.get_by_role("button", name="Show").click()
        expect(page.get_by_text("legacy era").first).to_be_visible()


def test_page_works_without_javascript(chromium: Browser, tmp_path: Path) -> None:
    write_skill(tmp_path / "tea", name="teas")
    with open_local_page(chromium, FIXTURES, tmp_path, java_script_enabled=False) as (seen, origin):
        page, main = seen.page, seen.page.get_by_role("main")
        page.goto(f"{origin}/ui/live")
        expect(page.get_by_role("status")).to_have_text("Reload this page to see changes.")
        page.goto(f"{origin}/ui/try")
        page.get_by_label("Prompt").fill("tea")
        page.get_by_role("button", name="Try").click()
        expect(main.get_by_role("link", name="teas", exact=True)).to_be_visible()
        page.goto(f"{origin}/ui/problems?severity=error")
        expect(page.locator("mark")).to_contain_text("name: teas")
        page.goto(f"{origin}/ui/")
        page.get_by_role("searchbox").fill("refund")
        page.get_by_role("button", name="Search").click()
        main.get_by_role("link", name="refunds", exact=True).click()
        expect(page).to_have_url(f"{origin}/ui/{REFUNDS}")
        assert page.locator("button[data-copies]:visible").count() == 0
        page.get_by_role("link", name="Files").click()
        page.get_by_role("link", name="references/approval-limits.md").click()
        expect(page.locator("#content")).to_contain_text("|")
        page.get_by_role("button", name="Another browser").click()
        expect(page.get_by_role("main")).to_contain_text(f"{origin}/ui/enter?once=")


def test_live_view_shows_changes_until_sign_out_in_another_tab(chromium: Browser, skills: Path) -> None:
    with open_local_page(chromium, skills) as (seen, origin):
        page = seen.page
        page.goto(f"{origin}/ui/live")
        state, changes = page.get_by_role("status"), page.locator("#changes")
        expect(state).to_have_text(LIVE_STATUS)
        expect(changes).to_contain_text("Nothing has changed.")
        write_skill(skills / "two")
        expect(changes.locator("li").first).to_contain_text("appeared")
        expect(changes.get_by_role("link", name="two", exact=True)).to_be_visible()
        expect(state).to_contain_text("Last change: appeared two")
        write_skill(skills / "two", description="Something else.")
        expect(changes.locator("li").first).to_contain_text("changed")
        shutil.rmtree(skills / "two")
        expect(changes.locator("li").first).to_contain_text("vanished")
        expect(changes.get_by_role("link", name="two", exact=True)).to_have_count(0)
        expect(changes.locator("li.flash")).to_have_count(1)
        page.context.request.post(f"{origin}/ui/sign-out", headers={"Origin": origin})
        write_skill(skills / "secret")
        expect(state).to_contain_text("Reload the page.")
        expect(changes).not_to_contain_text("secret")
        seen.refused.clear()  # the event stream is refused after signing out


def test_open_page_catches_up_with_edits_made_while_the_server_was_down(chromium: Browser, skills: Path) -> None:
    with open_page(chromium) as seen:
        page = seen.page
        with page_serving(skills) as server:
            page.goto(f"http://127.0.0.1:{server.port}/ui/")
            expect(page.locator(".live")).to_have_text("")
        expect(page.locator(".live")).to_have_text("The connection is lost; trying again.")
        write_skill(skills / "two")
        with page_serving(skills, "--port", str(server.port)):
            expect(page.get_by_role("link", name="two", exact=True)).to_be_visible()
            expect(page.locator(".live")).to_have_text("")


def test_late_reply_to_an_update_does_not_replace_a_newer_search(chromium: Browser, skills: Path) -> None:
    held: list[tuple[Route, APIResponse]] = []

    def hold_first_update(route: Route) -> None:
        if held or "q=refund" not in route.request.url:
            route.continue_()
        else:
            held.append((route, route.fetch()))

    write_skill(skills / "tea", description="Brews tea.")
    with open_local_page(chromium, skills) as (seen, origin):
        page = seen.page
        page.goto(f"{origin}/ui/?q=refund")
        expect(page.locator(".live")).to_have_text("")
        page.route("**/ui/?*part=1*", hold_first_update)
        with page.expect_request("**/ui/?*part=1*"):
            write_skill(skills / "refunds", description="Something about a refund.")
        page.get_by_role("searchbox").fill("tea")
        expect(page).to_have_url(f"{origin}/ui/?q=tea")
        expect(page.get_by_role("link", name="tea", exact=True)).to_be_visible()
        route, reply = held[0]
        with page.expect_response("**/ui/?q=tea&part=1"):  # the update, asked for again
            route.fulfill(response=reply)
        expect(page.get_by_role("link", name="tea", exact=True)).to_be_visible()
        expect(page.get_by_role("link", name="refunds", exact=True)).to_have_count(0)


def test_update_keeps_the_focus_on_its_link(chromium: Browser, skills: Path) -> None:
    write_skill(skills / "tea")
    with open_local_page(chromium, skills) as (seen, _):
        page, link = seen.page, seen.page.get_by_role("link", name="tea", exact=True)
        expect(page.locator(".live")).to_have_text("")
        link.focus()
        write_skill(skills / "refunds", description="Something else.")
        expect(page.locator("#results")).to_contain_text("Something else.")
        expect(link).to_be_focused()


def test_filters_are_folded_on_a_phone_unless_one_is_set(chromium: Browser, skills: Path) -> None:
    with open_local_page(chromium, skills, viewport=PHONE) as (seen, origin):
        problem = seen.page.get_by_label("Problem")
        expect(problem).to_be_hidden()
        seen.page.goto(f"{origin}/ui/?problem=any")
        expect(problem).to_be_visible()


def test_print_shows_long_texts_whole(chromium: Browser, tmp_path: Path) -> None:
    write_skill(tmp_path / "long", body="```\n" + "line " * 100 + "\nline" * 500 + "\n```\n")
    hidden_parts = """() => [...document.querySelectorAll("main *")].filter((element) =>
      /auto|scroll/.test(getComputedStyle(element).overflow + getComputedStyle(element).overflowX)
      && (element.scrollHeight > element.clientHeight || element.scrollWidth > element.clientWidth)).length"""
    with open_local_page(chromium, tmp_path) as (seen, origin):
        page = seen.page
        page.goto(f"{origin}/ui/skills/long")
        expect(page.locator(".live")).to_have_text("")
        write_skill(tmp_path / "long", description="other", body="```\n" + "word " * 100 + "\nword" * 500 + "\n```\n")
        expect(page.locator("#rendered")).to_contain_text("word")
        for view in ("skills/long", "skills/long?text=raw", "files/long?file=SKILL.md", "history/long", "model"):
            page.goto(f"{origin}/ui/{view}")
            page.emulate_media(media="screen")
            assert page.evaluate(hidden_parts) > 0, view
            page.emulate_media(media="print")
            assert page.evaluate(hidden_parts) == 0, view


def test_names_in_any_script_fit_on_a_phone(chromium: Browser, tmp_path: Path) -> None:
    names = {  # and a part of each as the page shows it
        "long" * 30: "long", "rtl\u202ecod.exe": "U+202E", "تحليل": "تحليل", "👩\u200d👩\u200d👧": "👩", "技能": "技能",
    }  # fmt: skip
    for number, name in enumerate(names):
        fields = f'"{name} {"x" * 200}"\ntags: ["{name}"]\ntitle: "{name}"\n"{name}": "{"y" * 200}"'
        files = {f"{name}/{name}.md": f"# {name}\n"}
        write_skill(tmp_path / f"skill-{number}", name=f'"{name}"', description=fields, body=f"# {name}\n", **files)
    with open_local_page(chromium, tmp_path, viewport=PHONE) as (seen, origin):
        page = seen.page
        for view in ("", *(f"skills/skill-{number}" for number in range(len(names))), "model", "problems"):
            page.goto(f"{origin}/ui/{view}")
            assert page_width(page) <= 320, view
            assert "\u202e" not in page.content(), view
        page.goto(f"{origin}/ui/")
        assert Axe().run(page).response["violations"] == []
        for number, shown in enumerate(names.values()):
            page.goto(f"{origin}/ui/skills/skill-{number}")
            expect(page.get_by_role("heading", level=1)).to_contain_text(shown)
            page.get_by_role("link", name="Files").click()
            page.get_by_role("region", name="Files").get_by_role("link").last.click()
            expect(page.locator("#content")).to_contain_text(shown)


def test_every_view_is_accessible_in_light_dark_and_narrow(chromium: Browser, shared: tuple[str, str]) -> None:
    overflowing = """() => [...document.querySelectorAll("main p, main li, main td")].filter(
      (element) => element.getBoundingClientRect().right > innerWidth
        && !element.closest("pre, .scroll, table.source")).length"""
    with open_page(chromium) as signed_out:
        signed_out.page.goto(f"{shared[0]}/ui/sign-in")
        assert Axe().run(signed_out.page).response["violations"] == []
    with visit(chromium, shared) as (seen, origin):
        page, views = seen.page, [*SKILL_VIEWS, *VIEWS, "proposals"]
        for view in views:  # the last one adds the proposal that it lists
            page.set_viewport_size({"width": 1280, "height": 720})
            page.emulate_media(color_scheme="light")
            page.goto(f"{origin}/ui/{view}")
            for rules in (None, {"runOnly": ["color-contrast"]}):  # the contrast in dark mode too
                report = Axe().run(page, options=rules).response
                assert report["violations"] == [], view
                assert report["passes"], view
                page.emulate_media(color_scheme="dark")
            for width in (320, 390, 768, 1280):
                page.set_viewport_size({"width": width, "height": 600})
                assert page_width(page) <= width, view
                report = Axe().run(page, options={"runOnly": ["target-size"]}).response
                targets = [node["html"] for each in report["violations"] for node in each["nodes"]]
                assert targets == [], (view, width)
            page.set_viewport_size(PHONE)
            assert page.evaluate(overflowing) == 0, view
            if view == "proposals":
                views.append(page.get_by_role("link", name="tea/green").get_attribute("href").removeprefix("/ui/"))
        page.goto(f"{origin}/ui/usage")
        assert Axe().run(page).response["violations"] == []
        assert page.locator("main b").count() == 0


def test_hostile_skills_inject_nothing_into_any_view(chromium: Browser, tmp_path: Path) -> None:
    paths = corpus.write(tmp_path / "skills")
    assert len(paths) == 60
    hostile = quote(corpus.MARKUP[2])
    views = ["", "?problem=left-out", f"?q={hostile}", f"?tag={hostile}", *VIEWS, "problems?from=50"]
    views += [f"try?prompt={quote(markup)}" for markup in corpus.MARKUP[:6]]
    views += [f"skills/{quote(path)}" for path in paths]
    views += [f"files/{quote(path)}?file=references/a.md" for path in (*paths[:40:8], *paths[40:])]
    for name in ("evil.svg", "evil.html", "fake.png"):
        views += [f"files/{paths[0]}?file={name}", f"raw/{paths[0]}?file={name}"]
    views.append(f"skills/{paths[40]}?fill=1&arg.x={quote(corpus.MARKUP[0])}")
    downloads: list[str] = []
    with open_local_page(chromium, tmp_path / "skills") as (seen, origin):
        page = seen.page
        page.goto(f"{origin}/ui/live")
        corpus.write(tmp_path / "skills" / "later")
        expect(page.locator("#changes li.change").first).to_be_visible()
        assert page.evaluate("() => window.hit") is None
        for view in views:
            try:
                response = page.goto(f"{origin}/ui/{view}")
            except Error:  # Playwright reports a download as an error
                downloads.append(view)
                continue
            assert response is not None and response.status in {200, 400}, (view, response)
            assert page.url == f"{origin}/ui/{view}", view
            assert find_harm(page, plain=view.startswith("raw/")) == [], view
    assert downloads == [f"raw/{paths[0]}?file=fake.png"]
    assert {urlsplit(url).netloc for url in seen.requests if not url.startswith("data:")} == {urlsplit(origin).netloc}
