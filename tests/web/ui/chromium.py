"""The system's Chromium, led by playwright, with whatever a page was not allowed to do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from wire import DEADLINE

needs_chromium = pytest.mark.needs_program("chromium")
expect.set_options(timeout=DEADLINE * 1000)
# What playwright starts in the process of a test is its matter.
quiet = pytest.mark.filterwarnings("default")


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
    """What on a page is not to be there when hostile text is shown: what runs, styles, frames or leads elsewhere.

    Args:
        page: on which it is.
        plain: it is a text, which the browser shows in its own way, with a style of its own.
    """
    return page.evaluate(_HARM, plain)


@dataclass
class Seen:
    """What a context's pages did."""

    page: Page
    refused: list[str] = field(default_factory=list[str])
    """What the policy of a page kept from it, and errors of scripts."""
    asked: list[str] = field(default_factory=list[str])
    """Every address that was asked for."""


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
    context: BrowserContext = made.new_context(**options)
    context.set_default_timeout(DEADLINE * 1000)
    page = context.new_page()
    seen = Seen(page)
    page.on("console", lambda message: message.type == "error" and seen.refused.append(message.text))
    page.on("pageerror", lambda error: seen.refused.append(str(error)))
    page.on("request", lambda request: seen.asked.append(request.url))
    page.on("dialog", lambda dialog: (seen.refused.append(f"dialog {dialog.message}"), dialog.dismiss()))
    try:
        yield seen
    finally:
        context.close()
