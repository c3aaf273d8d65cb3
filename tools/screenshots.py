"""Make the pictures of the page for docs/images: the program on fixtures/skills, and the Chromium of this machine.

`make screenshots` starts it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT = 1100, 700
VIEWS = (
    ("catalogue", "?q=a customer wants money back", "light"),
    ("skill", "skills/acme/billing/refunds#text", "dark"),
)
"""Name of the picture, what stands behind /ui/, and the colours."""


def _shot(page: Page, origin: str, view: str, name: str) -> None:
    page.goto(f"{origin}/ui/{view}")
    page.screenshot(path=IMAGES / f"{name}.png")
    print(f"{name}.png: {(IMAGES / f'{name}.png').stat().st_size:,} bytes")


def main() -> None:
    """Make all pictures."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is not installed; install it, such as by apt-get install chromium")
    with tempfile.TemporaryDirectory() as state:
        words = [sys.executable, "-m", "mcp_skills_server", "ui", "fixtures/skills", "--no-open"]
        process = subprocess.Popen(
            [*words, "--usage", f"sqlite:{state}/none.db", "--log-level", "error"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            origin = address.partition("/ui/")[0]
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
                page = context.new_page()
                page.goto(address)
                expect(page.get_by_role("heading", name="Skills", exact=True)).to_be_visible(timeout=20_000)
                for name, view, colours in VIEWS:
                    page.emulate_media(color_scheme="dark" if colours == "dark" else "light")
                    _shot(page, origin, view, name)
                browser.close()
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
