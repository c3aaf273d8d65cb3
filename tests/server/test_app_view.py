"""The views of the MCP App in Chromium, within a plain host and the bridge of ext-apps.

The bridge needs the package that `make interop` installs.
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

from dispatching import Direct, local_serving
from web.ui import corpus
from web.ui.chromium import browser, needs_chromium, open_page
from wire import FIXTURES, Client, write_skill

pytestmark = needs_chromium
HERE = Path(__file__).parent / "app_host"
ORIGIN = "http://host.test"
VIEWS = {"skills_list": "ui://mcp-skills-server/catalogue", "skills_load": "ui://mcp-skills-server/skill"}
CAPABILITIES = {"serverTools": {}, "updateModelContext": {"text": {}}}
LIST: dict[str, Any] = {"name": "skills_list", "arguments": {}}
FIND_FOREIGN = """() => {
  const created = "LI H2 P DL DT DD BUTTON ARTICLE PRE UL DETAILS SUMMARY".split(" ");
  const attributes = ["dir", "aria-label", "open"];
  const found = [...document.querySelectorAll("#list *, #loaded *, #status *")].filter((each) =>
    !created.includes(each.tagName) || each.getAttributeNames().some((name) => !attributes.includes(name)));
  return [window.hit, document.title, document.scripts.length, ...found.map((each) => each.outerHTML.slice(0, 200))];
}"""
"""Finds global effects, and elements and attributes that the view's script does not create."""
NOT_FOREIGN = [None, "Skills", 1]
COLOURS = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
SIZE = """() => JSON.stringify(
  { width: innerWidth, height: Math.ceil(document.documentElement.getBoundingClientRect().height) })"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(params=["plain", pytest.param("ext-apps", marks=pytest.mark.skipif(
    not (MODULES / EXT_APPS).exists(), reason="make interop installs ext-apps"
))])  # fmt: skip
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def serve_file(route: Route) -> None:
    """Serve a file of the host page, or a package below `modules/`."""
    name = unquote(urlsplit(route.request.url).path).lstrip("/")
    path = HERE / name
    if name.startswith("modules/"):
        path = MODULES / name.removeprefix("modules/")
    media_type = "text/javascript"
    if name.endswith(".html"):
        media_type = "text/html"
    route.fulfill(path=path, content_type=media_type)


@contextmanager
def view_in_host(
    chromium: Browser, kind: str, wire: Client, call: dict[str, Any], *, theme: str = "light", **options: Any
) -> Iterator[tuple[Page, Frame]]:
    """Yield a host's page, and the frame with the view of this tool call."""
    capabilities = options.pop("capabilities", CAPABILITIES)
    (content,) = wire.request("resources/read", {"uri": VIEWS[call["name"]]})["contents"]
    result = wire.request("tools/call", call)
    with open_page(chromium, **options) as visit:
        page = visit.page
        page.route(f"{ORIGIN}/**", serve_file)
        page.expose_function("callTool", lambda params: wire.request("tools/call", params))
        page.goto(f"{ORIGIN}/host.html")
        arguments = {
            "kind": kind, "html": content["text"], "theme": theme, "capabilities": capabilities,
            "input": call["arguments"], "result": {key: value for key, value in result.items() if key != "_meta"},
        }  # fmt: skip
        page.evaluate("(given) => start(given)", arguments)
        frame = page.frames[1]
        expect(frame.locator("#catalogue, #skill").filter(visible=True)).to_have_count(1)
        yield page, frame
        assert visit.refused == []
        addresses = {urlsplit(each).netloc for each in visit.requests if each != "about:srcdoc"}
        assert addresses == {"host.test"}


@pytest.fixture(scope="module")
def fixtures() -> Iterator[Direct]:
    with local_serving(FIXTURES, era="modern") as wire:
        yield wire


@pytest.mark.parametrize(("theme", "width"), [("light", 320), ("dark", 1280)])
def test_view_adapts_to_its_host(chromium: Browser, kind: str, fixtures: Direct, theme: str, width: int) -> None:
    viewport = {"width": width, "height": 700}
    with view_in_host(chromium, kind, fixtures, LIST, theme=theme, viewport=viewport) as (page, frame):
        for view in ("#catalogue", "#skill"):
            expect(frame.locator(view)).to_be_visible()
            assert frame.evaluate(BACKGROUND) == COLOURS[theme]
            assert frame.evaluate("document.documentElement.scrollWidth") <= width
            assert Axe().run(frame).response["violations"] == []
            page.wait_for_function("(size) => JSON.stringify(sizes.at(-1)) === size", arg=frame.evaluate(SIZE))
            back = frame.get_by_role("button", name="All")
            frame.get_by_role("button", name="Load refunds").or_(back).click()
        body = frame.locator("body")
        for other, colour in COLOURS.items():
            page.evaluate("(theme) => bridge.sendHostContextChange({theme})", other)
            expect(body).to_have_css("background-color", colour)  # the view's CSP forbids a polled script
        variables = {"--color-background-primary": "rgb(1, 2, 3)"}
        page.evaluate("(variables) => bridge.sendHostContextChange({styles: {variables}})", variables)
        expect(body).to_have_css("background-color", "rgb(1, 2, 3)")


def test_skill_is_loaded_by_keyboard_into_the_model_context(chromium: Browser, kind: str, direct: Direct) -> None:
    with view_in_host(chromium, kind, direct, LIST) as (page, frame):
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
        expect(frame.locator("#loaded article")).to_have_count(2)  # both in one session
        page.wait_for_function("modelContext.length === 2")


def test_catalogue_has_pages_search_and_error_messages(chromium: Browser, kind: str, tmp_path: Path) -> None:
    for number in range(60):
        write_skill(tmp_path / f"skill-{number:02}", description=f"Does thing {number} when it is asked to.")
    with local_serving(tmp_path) as wire, view_in_host(chromium, kind, wire, LIST) as (page, frame):
        items = frame.locator("#list li")
        expect(items).to_have_count(50)
        frame.get_by_role("button", name="More skills").click()
        expect(items).to_have_count(60)
        expect(frame.get_by_role("button", name="More skills")).to_be_hidden()
        frame.get_by_label("Search skills").fill("skill-07")
        page.keyboard.press("Enter")
        expect(items.first).to_contain_text("skill-07")
        (tmp_path / "skill-07" / "SKILL.md").unlink()
        wire.until("notifications/skills/list_changed")
        frame.get_by_role("button", name="Load skill-07").click()
        expect(frame.get_by_role("status")).to_contain_text("skill-07")
        expect(frame.locator("#status.error")).to_be_visible()


def test_host_without_tool_calls_shows_no_buttons(chromium: Browser, kind: str, fixtures: Direct) -> None:
    call = {"name": "skills_load", "arguments": {"names": ["refunds"]}}
    with view_in_host(chromium, kind, fixtures, call, capabilities={}) as (page, frame):
        expect(frame.locator("#loaded pre")).to_contain_text("# Refunds")
        expect(frame.get_by_role("button")).to_have_count(0)
        page.evaluate("bridge.sendToolCancelled({reason: 'Enough.'})")
        expect(frame.get_by_role("status")).to_have_text("Cancelled. Enough.")
        assert page.evaluate("bridge.teardownResource({})") == {}


def test_hostile_texts_are_shown_as_text(chromium: Browser, kind: str, tmp_path: Path) -> None:
    corpus.write(tmp_path)
    usable = 49  # the other names have markup
    with local_serving(tmp_path) as wire, view_in_host(chromium, kind, wire, LIST) as (_, frame):
        expect(frame.locator("#list li")).to_have_count(usable)
        assert frame.evaluate(FIND_FOREIGN) == NOT_FOREIGN
        for text in corpus.MARKUP[:3]:
            expect(frame.locator("#list")).to_contain_text(text)
        for number in (0, 7, 45, usable - 1):
            frame.get_by_role("button", name="Load ").nth(number).click()
            expect(frame.locator("#skill")).to_be_visible()
            assert frame.evaluate(FIND_FOREIGN) == NOT_FOREIGN
            frame.get_by_role("button", name="All skills").click()
