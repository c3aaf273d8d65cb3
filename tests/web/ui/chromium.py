"""The system's Chromium, led by playwright, and what its pages did that they were not allowed to."""

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

# One question: six of them take as long as the page itself.
_HARM = """(plain) => {
  const harms = (each) => each.shadowRoot || each.matches(
    "iframe, object, embed, base, link[href*=leak], form[action*=leak], script:not([src='/ui/static/ui.js'])"
  ) || !plain && (
    [...each.attributes].some((one) => /^on|^style$|^srcdoc$/.test(one.name))
    || each.matches("a[href]") && !/^(https?|mailto|vscode|cursor):$/.test(each.protocol)
  );
  const found = [...document.querySelectorAll("*")].filter(harms).map((each) => each.outerHTML.slice(0, 200));
  if (window.hit != null || document.title === "hit") found.push("it ran");
  if (document.scripts.length > 1) found.push("two scripts");
  return found;
}"""


def harm(page: Page, *, plain: bool = False) -> list[str]:
    """What runs, styles, frames or leads elsewhere on a page; a `plain` text has the browser's own style."""
    return page.evaluate(_HARM, plain)


def width(page: Page) -> int:
    """The width of the whole page, of which a narrow window shows a part."""
    return page.evaluate("() => document.documentElement.scrollWidth")


@dataclass
class Seen:
    """A page, what its policy refused with errors of scripts, and every address that was asked for."""

    page: Page
    refused: list[str] = field(default_factory=list[str])
    asked: list[str] = field(default_factory=list[str])


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser that ends with the `with`."""
    with sync_playwright() as playwright:
        # As root it has no sandbox of its own.
        made = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            yield made
        finally:
            made.close()


@contextmanager
def looking(made: Browser, **options: Any) -> Iterator[Seen]:
    """A page of a context of its own."""
    context = made.new_context(**options)
    context.set_default_timeout(DEADLINE * 1000)
    seen = Seen(context.new_page())
    seen.page.on("console", lambda message: message.type == "error" and seen.refused.append(message.text))
    seen.page.on("pageerror", lambda error: seen.refused.append(str(error)))
    seen.page.on("request", lambda request: seen.asked.append(request.url))
    seen.page.on("dialog", lambda dialog: (seen.refused.append(f"dialog {dialog.message}"), dialog.dismiss()))
    try:
        yield seen
    finally:
        context.close()
