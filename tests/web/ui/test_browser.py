"""The page in a real Chromium: what its script does, keyboard, no script at all, screen readers, narrow and dark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from web.ui.chromium import Seen, browser, looking, needs_chromium
from web.ui.serving import own_page, page_serving
from wire import FIXTURES, write_skill

pytestmark = needs_chromium
VIEWS = ("", "skills/acme/billing/refunds", "skills/acme/billing/refunds?text=raw",
         "files/acme/billing/refunds?file=references/approval-limits.md",
         "history/acme/billing/refunds", "?problem=any", "no/such/page", "?q=nothing-is-like-this")  # fmt: skip


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as made:
        yield made


@contextmanager
def opened(chromium: Browser, *roots: Path, **options: Any) -> Iterator[tuple[Seen, str]]:
    """One's own page, signed in, and its origin."""
    with own_page(*roots) as address, looking(chromium, **options) as seen:
        seen.page.goto(address)
        expect(seen.page.get_by_role("heading", name="Skills", exact=True)).to_be_visible(timeout=20_000)
        yield seen, address.partition("/ui/")[0]
    assert seen.refused == []


def test_the_secret_leaves_the_address(chromium: Browser) -> None:
    with opened(chromium, FIXTURES) as (seen, origin):
        assert seen.page.url == f"{origin}/ui/"
        assert seen.page.evaluate("() => document.cookie") == ""


def test_the_list_follows_what_is_typed(chromium: Browser) -> None:
    with opened(chromium, FIXTURES) as (seen, origin):
        page = seen.page
        main = page.get_by_role("main")
        assert main.count() == 1
        page.get_by_role("searchbox", name="Search").type("refund")
        expect(page.locator("#count")).to_contain_text("found")
        expect(main.get_by_role("link", name="refunds", exact=True)).to_be_visible()
        expect(main.get_by_role("link", name="csv-profiling", exact=True)).to_have_count(0)
        expect(page).to_have_url(f"{origin}/ui/?q=refund")
        page.get_by_label("Tag").select_option("data")
        expect(page.locator("#results")).to_contain_text("No skill fits.")
        page.get_by_role("searchbox").fill("")
        expect(main.get_by_role("link", name="csv-profiling", exact=True)).to_be_visible()
        assert all("part=1" in each for each in seen.asked if "/ui/?" in each)


def test_it_can_be_led_by_keys_alone(chromium: Browser) -> None:
    with opened(chromium, FIXTURES) as (seen, origin):
        page = seen.page
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        page.keyboard.press("/")
        expect(page.get_by_role("searchbox")).to_be_focused()
        page.keyboard.type("refunds/")
        expect(page).to_have_url(f"{origin}/ui/?q=refunds%2F")  # the last answer, which replaces what has the focus
        link = page.get_by_role("main").get_by_role("link", name="refunds", exact=True)
        for _ in range(12):
            page.keyboard.press("Tab")
            if link.evaluate("each => each === document.activeElement"):
                break
        expect(link).to_be_focused()
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{origin}/ui/skills/acme/billing/refunds")


def test_a_button_copies_what_stands_beside_it(chromium: Browser) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    with opened(chromium, FIXTURES, permissions=permissions) as (seen, origin):
        page = seen.page
        page.goto(f"{origin}/ui/skills/acme/billing/refunds")
        page.get_by_role("link", name="As it is").click()
        page.evaluate("() => { setTimeout = () => 0 }")  # or its words are there for 2 s
        page.locator("button[data-copies=raw]").click()
        expect(page.locator("button[data-copies=raw]")).to_have_text("Copied")
        wanted = (FIXTURES / "acme" / "billing" / "refunds" / "SKILL.md").read_text(encoding="utf-8")
        assert page.evaluate("() => navigator.clipboard.readText()") == wanted


def test_it_works_without_a_script(chromium: Browser) -> None:
    with opened(chromium, FIXTURES, java_script_enabled=False) as (seen, origin):
        page = seen.page
        page.get_by_role("searchbox").fill("refund")
        page.get_by_role("button", name="Search").click()
        page.get_by_role("main").get_by_role("link", name="refunds", exact=True).click()
        expect(page).to_have_url(f"{origin}/ui/skills/acme/billing/refunds")
        assert page.locator("button[data-copies]:visible").count() == 0
        page.get_by_role("link", name="references/approval-limits.md").click()
        expect(page.locator("#content")).to_contain_text("|")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_arguments_are_filled_in_by_a_form(chromium: Browser, tmp_path: Path) -> None:
    fields = "x\narguments: [{name: city, required: true}]"
    write_skill(tmp_path / "weather", description=fields, body="Weather of {{city}}\n")
    with opened(chromium, tmp_path) as (seen, origin):
        seen.page.goto(f"{origin}/ui/skills/weather")
        seen.page.get_by_label("city (required)").fill("Bonn & <Köln>")
        seen.page.get_by_role("button", name="Fill in").click()
        expect(seen.page.locator("#filled")).to_have_text("\nWeather of Bonn & <Köln>\n", use_inner_text=False)


def test_a_token_signs_in_by_the_form(chromium: Browser) -> None:
    with page_serving(FIXTURES, environment={"MCP_SKILLS_TOKENS": "laptop=0123456789abcdef"}) as server:
        with looking(chromium) as seen:
            page = seen.page
            page.goto(f"http://127.0.0.1:{server.port}/ui/")
            page.get_by_label("Token").fill("wrong-wrong-wrong-wrong")
            page.get_by_role("button", name="Sign in").click()
            expect(page.get_by_role("alert")).to_contain_text("no token")
            page.get_by_label("Token").fill("0123456789abcdef")
            page.get_by_role("button", name="Sign in").click()
            expect(page.get_by_role("heading", name="Skills", exact=True)).to_be_visible()
        assert [each for each in seen.refused if "403" not in each] == []


def test_a_skill_that_went_is_said_and_leads_back(chromium: Browser, tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    write_skill(tmp_path / "b")
    with own_page(tmp_path) as address, looking(chromium) as seen:
        page = seen.page
        page.goto(address)
        page.get_by_role("link", name="a", exact=True).click()
        page.wait_for_url("**/skills/a")  # until its script listens
        gone = page.get_by_role("status").filter(has_text="not there any more")
        expect(gone).to_be_hidden()
        shutil.rmtree(tmp_path / "a")
        until = monotonic() + 20
        while page.request.get(page.url).status != 404:
            assert monotonic() < until
        page.evaluate("() => dispatchEvent(new Event('focus'))")  # who comes back to the page, which is still open
        expect(gone).to_be_visible()
        until = monotonic() + 20
        while page.reload().status != 404:  # type: ignore[union-attr]
            assert monotonic() < until
        expect(page.get_by_role("status")).to_contain_text("not there any more")
        page.get_by_role("link", name="Back to all skills").click()
        expect(page.get_by_role("link", name="b", exact=True)).to_be_visible()


def test_names_of_any_script_fit_on_a_telephone(chromium: Browser, tmp_path: Path) -> None:
    names = {
        "long" * 30: "long",
        "rtl\u202ecod.exe": "U+202E",
        "تحليل": "تحليل",
        "👩\u200d👩\u200d👧 party": "party",
        "技能": "技能",
    }
    for number, name in enumerate(names):
        fields = f'"{name} {"x" * 200}"\ntags: ["{name}"]\ntitle: "{name}"\n"{name}": "{"y" * 200}"'
        files = {f"{name}/{name}.md": f"# {name}\n"}
        write_skill(tmp_path / f"skill-{number}", name=f'"{name}"', description=fields, body=f"# {name}\n", **files)
    with opened(chromium, tmp_path, viewport={"width": 320, "height": 600}) as (seen, origin):
        page = seen.page
        for view in (
            "",
            *(f"skills/skill-{number}" for number in range(len(names))),
            "model",
            "problems",
            "try?prompt=x",
        ):
            page.goto(f"{origin}/ui/{view}")
            assert page.evaluate("() => document.documentElement.scrollWidth") <= 320, view
            assert "\u202e" not in page.content(), view
            assert Axe().run(page).response["violations"] == [], view
        for number, shown in enumerate(names.values()):
            page.goto(f"{origin}/ui/skills/skill-{number}")
            expect(page.get_by_role("heading", level=1)).to_contain_text(shown)
            page.get_by_role("region", name="Files").get_by_role("link").last.click()
            expect(page.locator("#content")).to_contain_text(shown)


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing(chromium: Browser, colours: str) -> None:
    with own_page(FIXTURES) as address, looking(chromium, color_scheme=colours) as seen:
        page: Page = seen.page
        page.goto(address)
        origin = address.partition("/ui/")[0]
        for view in (*VIEWS, "sign-in"):
            page.goto(f"{origin}/ui/{view}")
            found = Axe().run(page).response
            wrong = [(each["id"], [node["html"] for node in each["nodes"]]) for each in found["violations"]]
            assert wrong == [] and len(found["passes"]) > 10, view


def test_nothing_is_wider_than_a_telephone(chromium: Browser) -> None:
    beyond = """() => [...document.querySelectorAll("main p, main li, main td")].filter(
      (each) => each.getBoundingClientRect().right > innerWidth && !each.closest("pre, .scroll")).length"""
    with opened(chromium, FIXTURES, viewport={"width": 320, "height": 600}) as (seen, origin):
        for view in VIEWS[:6]:
            seen.page.goto(f"{origin}/ui/{view}")
            assert seen.page.evaluate("() => document.documentElement.scrollWidth") <= 320, view
            assert seen.page.evaluate(beyond) == 0, view
