"""What the model sees, the playground, problems, live changes, sources, runs and clients, in a real Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from web.ui import corpus
from web.ui.chromium import browser, harm, looking, needs_chromium
from web.ui.serving import own_page, page_serving
from web.ui.test_browser import opened
from wire import FIXTURES, ROOT, write_skill

pytestmark = needs_chromium
BROKEN = ROOT / "fixtures" / "broken"
VIEWS = ("usage", "model", "model?era=legacy&dialect=sep-2640", "try?prompt=handle+a+refund+request",
         "try?skill=acme/billing/refunds&prompts=refund%0A-+csv", "try", "tools",
         "tools?tool=skills_read&arg.skill=refunds&arg.path=SKILL.md&call=1", "problems",
         "live", "sources", "runs", "clients")  # fmt: skip


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as made:
        yield made


def test_every_view_is_reached_from_every_other_by_its_name(chromium: Browser) -> None:
    with opened(chromium, FIXTURES) as (seen, _):
        page = seen.page
        for name in (
            "What the model sees",
            "Trigger playground",
            "Tools",
            "Problems",
            "Usage",
            "Live",
            "Sources",
            "Runs",
            "Clients",
        ):
            page.get_by_role("navigation", name="Views").get_by_role("link", name=name).click()
            expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()
            assert page.get_by_role("main").count() == 1
            current = page.get_by_role("navigation", name="Views").locator("[aria-current=page]")
            expect(current).to_have_text(name)


def test_every_view_is_reached_by_keys_alone_and_keeps_nobody(chromium: Browser) -> None:
    seen_by_keys = """() => {
      const at = document.activeElement;
      return at && at !== document.body ? at.textContent || at.tagName : "";
    }"""
    outlined = "() => parseFloat(getComputedStyle(document.activeElement).outlineWidth) > 0"
    with opened(chromium, FIXTURES) as (seen, _):
        page = seen.page
        names = page.get_by_role("navigation", name="Views").get_by_role("link").all_text_contents()
        assert len(names) == 10
        for name in names:
            for _ in range(15):
                page.keyboard.press("Tab")
                if page.evaluate(seen_by_keys) == name:
                    break
            assert page.evaluate(seen_by_keys) == name and page.evaluate(outlined), name
            with page.expect_event("load"):  # the first leads to the page that is open
                page.keyboard.press("Enter")
            expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()
            for _ in range(400):  # to the end of the page
                page.keyboard.press("Tab")
                if not page.evaluate(seen_by_keys):
                    break
                assert page.evaluate(outlined), (name, page.evaluate("() => document.activeElement.outerHTML"))
            assert not page.evaluate(seen_by_keys), f"{name} keeps the focus"


def test_what_was_cut_unfolds_and_the_text_is_copied(chromium: Browser) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    with opened(chromium, FIXTURES, BROKEN, permissions=permissions) as (seen, origin):
        page = seen.page
        page.goto(f"{origin}/ui/model")
        region = page.get_by_role("region", name="Instructions", exact=True)
        region.get_by_text("What was cut").click()
        expect(region.get_by_role("link", name="refunds", exact=True)).to_be_visible()
        page.evaluate("() => { setTimeout = () => 0 }")  # or its words are there for 2 s
        region.get_by_role("button", name="Copy").click()
        expect(region.get_by_role("button", name="Copied")).to_be_visible()
        copied = page.evaluate("() => navigator.clipboard.readText()")
        assert copied == region.locator("pre").text_content() and "<available_skills>" in copied
        page.get_by_label("Era of MCP").select_option("legacy")
        page.get_by_role("button", name="Show").click()
        expect(page.get_by_text("legacy era").first).to_be_visible()


def test_a_prompt_is_tried_by_keys_alone(chromium: Browser) -> None:
    with opened(chromium, FIXTURES) as (seen, origin):
        page = seen.page
        page.goto(f"{origin}/ui/try")
        page.get_by_label("Prompt").focus()
        page.keyboard.type("a customer wants a refund")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.get_by_role("main").get_by_role("link", name="refunds", exact=True).first).to_be_visible()
        expect(page.get_by_label("Prompt")).to_have_value("a customer wants a refund")


def test_a_problem_stands_beside_its_line(chromium: Browser) -> None:
    with opened(chromium, BROKEN) as (seen, origin):
        page = seen.page
        page.goto(f"{origin}/ui/problems")
        page.get_by_label("Code").select_option("license-type")
        page.get_by_role("button", name="Show").click()
        expect(page.locator("mark")).to_have_count(1)
        expect(page.locator("mark")).to_contain_text("license")
        expect(page.get_by_role("main").get_by_role("link", name="license-type", exact=True)).to_be_visible()


def test_changes_show_as_they_happen(chromium: Browser, tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    with own_page(tmp_path) as address, looking(chromium) as seen:
        page = seen.page
        page.goto(address)
        page.goto(f"{address.partition('/ui/')[0]}/ui/live")
        expect(page.get_by_role("status")).to_have_text("Changes show here as they happen.")
        expect(page.locator("#changes")).to_contain_text("Nothing has changed.")
        write_skill(tmp_path / "two")
        expect(page.locator("#changes li").first).to_contain_text("appeared")
        expect(page.locator("#changes").get_by_role("link", name="two", exact=True)).to_be_visible()
        expect(page.get_by_role("status")).to_contain_text("The last change: appeared two")
        write_skill(tmp_path / "two", description="Something else.")
        expect(page.locator("#changes li").first).to_contain_text("changed")
        shutil.rmtree(tmp_path / "two")
        expect(page.locator("#changes li").first).to_contain_text("vanished")
        expect(page.locator("#changes").get_by_role("link", name="two", exact=True)).to_have_count(0)
        expect(page.locator("#changes li.flash")).to_have_count(1)
    assert seen.refused == []


def test_whoever_signs_out_elsewhere_hears_of_nothing_any_more(chromium: Browser, tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    with own_page(tmp_path) as address, looking(chromium) as seen:
        page = seen.page
        page.goto(address)
        page.goto(f"{address.partition('/ui/')[0]}/ui/live")
        expect(page.get_by_role("status")).to_have_text("Changes show here as they happen.")
        other = page.context.new_page()
        other.goto(page.url)
        other.get_by_role("button", name="Sign out").click()
        expect(other.get_by_role("heading", name="Sign in")).to_be_visible()
        write_skill(tmp_path / "two")
        expect(page.get_by_role("status")).to_contain_text("Load the page again.")
        expect(page.locator("#changes")).not_to_contain_text("two")


def test_a_server_that_ends_is_said_to_be_lost(chromium: Browser, tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    with looking(chromium) as seen:
        with page_serving(tmp_path) as server:
            seen.page.goto(f"http://127.0.0.1:{server.port}/ui/live")
            expect(seen.page.get_by_role("status")).to_have_text("Changes show here as they happen.")
        expect(seen.page.get_by_role("status")).to_have_text("The connection is lost; trying again.")


def test_the_views_work_without_a_script(chromium: Browser, tmp_path: Path) -> None:
    write_skill(tmp_path / "tea", name="teas")
    with opened(chromium, tmp_path, java_script_enabled=False) as (seen, origin):
        page = seen.page
        write_skill(tmp_path / "coffee", description="Brews coffee.")
        page.goto(f"{origin}/ui/live")
        expect(page.get_by_role("status")).to_have_text("Load this page again for what is new.")
        page.goto(f"{origin}/ui/try")
        page.get_by_label("Prompt").fill("tea")
        page.get_by_role("button", name="Try").click()
        expect(page.get_by_role("main").get_by_role("link", name="teas", exact=True)).to_be_visible()
        page.goto(f"{origin}/ui/problems?severity=error")
        expect(page.locator("mark")).to_contain_text("name: teas")


@pytest.mark.parametrize(("colours", "rules"), [("light", None), ("dark", {"runOnly": ["color-contrast"]})])
def test_axe_finds_nothing(chromium: Browser, colours: str, rules: dict[str, list[str]] | None) -> None:
    with own_page(FIXTURES, BROKEN) as address, looking(chromium, color_scheme=colours) as seen:
        origin = address.partition("/ui/")[0]
        seen.page.goto(address)
        for view in VIEWS:
            seen.page.goto(f"{origin}/ui/{view}")
            found = Axe().run(seen.page, options=rules).response
            wrong = [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found["violations"]]
            assert wrong == [] and found["passes"], view


def test_nothing_is_wider_than_a_telephone(chromium: Browser) -> None:
    with opened(chromium, FIXTURES, BROKEN, viewport={"width": 320, "height": 600}) as (seen, origin):
        for view in VIEWS:
            seen.page.goto(f"{origin}/ui/{view}")
            assert seen.page.evaluate("() => document.documentElement.scrollWidth") <= 320, view


def test_sixty_hostile_skills_do_nothing_on_these_views(chromium: Browser, tmp_path: Path) -> None:
    assert len(corpus.write(tmp_path / "skills")) == 60
    with own_page(tmp_path / "skills") as address, looking(chromium) as seen:
        page, origin = seen.page, address.partition("/ui/")[0]
        page.goto(address)
        page.goto(f"{origin}/ui/live")
        corpus.write(tmp_path / "skills" / "later")
        expect(page.locator("#changes li.change").first).to_be_visible()
        assert page.evaluate("() => window.hit") is None
        more = [f"try?prompt={quote(each)}" for each in corpus.MARKUP[:6]]
        more += [f"problems?from={start}" for start in (50, 100)]
        for view in (*VIEWS, *more):
            answer = page.goto(f"{origin}/ui/{view}")
            assert answer is not None and answer.status == 200, view
            assert harm(page) == [], view
    assert seen.refused == []
    assert {urlsplit(each).netloc for each in seen.asked if not each.startswith("data:")} == {urlsplit(origin).netloc}
