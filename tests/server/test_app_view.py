"""The document of the MCP App in a real Chromium, in two hosts: a plain one, and the bridge of the package ext-apps.

The bridge runs where `make interop` has installed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Frame, Page, Route, expect
from tools.interop.setup import EXT_APPS, MODULES

from web.ui import corpus
from web.ui.chromium import browser, looking, needs_chromium
from wire import FIXTURES, Wire, serving, write_skill

pytestmark = needs_chromium
HERE = Path(__file__).parent / "app_host"
ORIGIN = "http://host.test"
VIEWS = {"skills_list": "ui://mcp-skills-server/catalogue", "skills_load": "ui://mcp-skills-server/skill"}
CAPABILITIES = {"serverTools": {}, "updateModelContext": {"text": {}}}
LIST: dict[str, Any] = {"name": "skills_list", "arguments": {}}
FOREIGN = """() => {
  const made = "LI H2 P DL DT DD BUTTON ARTICLE PRE UL DETAILS SUMMARY".split(" ");
  const attributes = ["dir", "aria-label", "open"];
  const found = [...document.querySelectorAll("#list *, #loaded *, #status *")].filter((each) =>
    !made.includes(each.tagName) || each.getAttributeNames().some((name) => !attributes.includes(name)));
  return [window.hit, document.title, document.scripts.length, ...found.map((each) => each.outerHTML.slice(0, 200))];
}"""
"""What in a view is neither of our document nor an element that our script makes."""
OURS = [None, "Skills", 1]
COLOURS = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}
BACK = "getComputedStyle(document.body).backgroundColor"
SIZE = """() => JSON.stringify(
  { width: innerWidth, height: Math.ceil(document.documentElement.getBoundingClientRect().height) })"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser in which each test opens a context of its own."""
    with browser() as made:
        yield made


@pytest.fixture(params=["plain", pytest.param("ext-apps", marks=pytest.mark.skipif(
    not (MODULES / EXT_APPS).exists(), reason="make interop installs ext-apps"
))])  # fmt: skip
def kind(request: pytest.FixtureRequest) -> str:
    """The host: its module in `app_host`."""
    return request.param


def _file(route: Route) -> None:
    path = unquote(urlsplit(route.request.url).path).lstrip("/")
    place = MODULES / path.removeprefix("modules/") if path.startswith("modules/") else HERE / path
    kind = "text/html" if path.endswith(".html") else "text/javascript"
    route.fulfill(path=place, content_type=kind)


@contextmanager
def shown(
    chromium: Browser, kind: str, wire: Wire, call: dict[str, Any], *, theme: str = "light", **options: Any
) -> Iterator[tuple[Page, Frame]]:
    """A host that shows the view of this call."""
    capabilities = options.pop("capabilities", CAPABILITIES)
    (content,) = wire.request("resources/read", {"uri": VIEWS[call["name"]]})["contents"]
    result = wire.request("tools/call", call)
    with looking(chromium, **options) as seen:
        page = seen.page
        page.route(f"{ORIGIN}/**", _file)
        page.expose_function("callTool", lambda params: wire.request("tools/call", params))
        page.goto(f"{ORIGIN}/host.html")
        given = {
            "kind": kind, "html": content["text"], "theme": theme, "capabilities": capabilities,
            "input": call["arguments"], "result": {key: value for key, value in result.items() if key != "_meta"},
        }  # fmt: skip
        page.evaluate("(given) => start(given)", given)
        frame = page.frames[1]
        expect(frame.locator("#catalogue, #skill").filter(visible=True)).to_have_count(1)
        yield page, frame
        assert seen.refused == []
        assert {urlsplit(each).netloc for each in seen.asked if each != "about:srcdoc"} == {"host.test"}


@pytest.fixture(scope="module")
def fixtures() -> Iterator[Wire]:
    """A server on the fixtures that the tests of one era share."""
    with serving(FIXTURES, era="modern") as wire:
        yield wire


@pytest.mark.parametrize("theme", COLOURS)
@pytest.mark.parametrize("width", [320, 1280])
def test_the_view_fits_its_host(chromium: Browser, kind: str, fixtures: Wire, theme: str, width: int) -> None:
    with shown(chromium, kind, fixtures, LIST, theme=theme, viewport={"width": width, "height": 700}) as (page, frame):
        for place in ("#catalogue", "#skill"):
            expect(frame.locator(place)).to_be_visible()
            assert frame.evaluate(BACK) == COLOURS[theme]
            assert frame.evaluate("document.documentElement.scrollWidth") <= width
            assert Axe().run(frame).response["violations"] == []
            page.wait_for_function("(size) => JSON.stringify(sizes.at(-1)) === size", arg=frame.evaluate(SIZE))
            frame.get_by_role("button", name="Load refunds").or_(frame.get_by_role("button", name="All")).click()
        body = frame.locator("body")
        for other, colour in COLOURS.items():
            page.evaluate("(theme) => bridge.sendHostContextChange({theme})", other)
            expect(body).to_have_css("background-color", colour)  # the view's policy lets no poll be evaluated
        variables = {"--color-background-primary": "rgb(1, 2, 3)"}
        page.evaluate("(variables) => bridge.sendHostContextChange({styles: {variables}})", variables)
        expect(body).to_have_css("background-color", "rgb(1, 2, 3)")


def test_a_skill_is_loaded_by_keyboard_and_the_model_is_told(chromium: Browser, kind: str, wire: Wire) -> None:
    with shown(chromium, kind, wire, LIST) as (page, frame):
        first = frame.get_by_role("button", name="Load refunds", exact=True)
        first.focus()
        page.keyboard.press("Enter")
        expect(frame.get_by_role("heading", name="refunds")).to_be_visible()
        expect(frame.locator("h1")).to_be_focused()
        expect(frame.locator("#loaded pre")).to_contain_text("# Refunds")
        page.wait_for_function("modelContext.length === 1 && modelContext[0].text.includes('# Refunds')")
        frame.get_by_role("button", name="All skills").press("Enter")
        expect(first).to_be_focused()
        frame.get_by_role("button", name="Load meeting-notes", exact=True).click()
        expect(frame.locator("#loaded article")).to_have_count(2)  # one session, the same that was begun
        page.wait_for_function("modelContext.length === 2")


def test_the_catalogue_is_searched_and_goes_on(chromium: Browser, kind: str, tmp_path: Path) -> None:
    for number in range(60):
        write_skill(tmp_path / f"skill-{number:02}", description=f"Does thing {number} when it is asked to.")
    with serving(tmp_path) as wire, shown(chromium, kind, wire, LIST) as (page, frame):
        items = frame.locator("#list li")
        expect(items).to_have_count(50)
        frame.get_by_role("button", name="More skills").click()
        expect(items).to_have_count(60)
        expect(frame.get_by_role("button", name="More skills")).to_be_hidden()
        frame.get_by_label("Search skills").fill("skill-07")
        page.keyboard.press("Enter")
        expect(items.first).to_contain_text("skill-07")
        (tmp_path / "skill-07" / "SKILL.md").unlink()
        wire.logs(b"skill-07")
        frame.get_by_role("button", name="Load skill-07").click()
        expect(frame.get_by_role("status")).to_contain_text("skill-07")
        expect(frame.locator("#status.error")).to_be_visible()


def test_a_host_that_passes_no_calls_on_sees_no_buttons(chromium: Browser, kind: str, fixtures: Wire) -> None:
    call = {"name": "skills_load", "arguments": {"names": ["refunds"]}}
    with shown(chromium, kind, fixtures, call, capabilities={}) as (page, frame):
        expect(frame.locator("#loaded pre")).to_contain_text("# Refunds")
        expect(frame.get_by_role("button")).to_have_count(0)
        page.evaluate("bridge.sendToolCancelled({reason: 'Enough.'})")
        expect(frame.get_by_role("status")).to_have_text("Cancelled. Enough.")
        assert page.evaluate("bridge.teardownResource({})") == {}


def test_hostile_texts_stay_text(chromium: Browser, kind: str, tmp_path: Path) -> None:
    paths = corpus.write(tmp_path)
    with serving(tmp_path) as wire, shown(chromium, kind, wire, LIST) as (_, frame):
        frame.get_by_role("button", name="More skills").click()
        expect(frame.locator("#list li")).to_have_count(len(paths))
        assert frame.evaluate(FOREIGN) == OURS
        for text in corpus.MARKUP[:3]:
            expect(frame.locator("#list")).to_contain_text(text)
        for number in (0, 7, 45, len(paths) - 1):
            frame.get_by_role("button", name="Load ").nth(number).click()
            expect(frame.locator("#skill")).to_be_visible()
            assert frame.evaluate(FOREIGN) == OURS
            frame.get_by_role("button", name="All skills").click()
