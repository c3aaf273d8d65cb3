"""The system's Chromium under Playwright, with a record of errors and requests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from wire import DEADLINE

needs_chromium = pytest.mark.needs_program("chromium")
expect.set_options(timeout=DEADLINE * 1000)
PHONE = {"width": 320, "height": 600}

# One evaluation: six of them take as long as the page itself.
_FIND_HARM = """(plain) => {
  const isHarmful = (element) => element.shadowRoot || element.matches(
    "iframe, object, embed, base, link[href*=leak], form[action*=leak], script:not([src='/ui/static/ui.js'])"
  ) || !plain && (
    [...element.attributes].some((attribute) => /^on|^style$|^srcdoc$/.test(attribute.name))
    || element.matches("a[href]") && !/^(https?|mailto|vscode|cursor):$/.test(element.protocol)
  );
  const found = [...document.querySelectorAll("*")].filter(isHarmful)
    .map((element) => element.outerHTML.slice(0, 200));
  if (window.hit != null || document.title === "hit") found.push("injected script ran");
  if (document.scripts.length > 1) found.push("two scripts");
  return found;
}"""


def find_harm(page: Page, *, plain: bool = False) -> list[str]:
    """List elements that run code, add style or frames, or link elsewhere.

    Allow `style` attributes in a `plain` text, where Chromium adds its own.
    """
    return page.evaluate(_FIND_HARM, plain)


def page_width(page: Page) -> int:
    """Return the width of the whole page, which may exceed that of the window."""
    return page.evaluate("() => document.documentElement.scrollWidth")


@dataclass
class PageRecord:
    """A page, the URLs that it `requests`, and its errors and dialogs, as `refused`."""

    page: Page
    refused: list[str] = field(default_factory=list[str])
    requests: list[str] = field(default_factory=list[str])


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Chromium's own sandbox refuses to run as root.
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            yield chromium
        finally:
            chromium.close()


@contextmanager
def open_page(chromium: Browser, **options: Any) -> Iterator[PageRecord]:
    context = chromium.new_context(**options)
    context.set_default_timeout(DEADLINE * 1000)
    seen = PageRecord(context.new_page())
    seen.page.on("console", lambda message: message.type == "error" and seen.refused.append(message.text))
    seen.page.on("pageerror", lambda error: seen.refused.append(str(error)))
    seen.page.on("request", lambda request: seen.requests.append(request.url))
    seen.page.on("dialog", lambda dialog: (seen.refused.append(f"dialog {dialog.message}"), dialog.dismiss()))
    try:
        yield seen
    finally:
        context.close()
