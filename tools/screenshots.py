"""`python -m tools.screenshots [FOLDER]...`: take the screenshots of docs/images in Chromium at 1440x900.

Without fonts for all scripts and emoji (of Debian: fonts-dejavu-core, fonts-noto-color-emoji) they have empty boxes.
With `--all DIR` it saves every view at three widths, light and dark, in DIR instead, for a review.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from subprocess import PIPE, Popen

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
PICTURES = {"catalogue": "?q=refund+a+customer", "skill": "skills/acme/billing/refunds"}
VIEWS = (
    "", "?q=refund", "skills/acme/billing/refunds", "skills/acme/billing/refunds?tab=evaluation",
    "files/acme/billing/refunds?file=references/approval-limits.md", "model", "try?prompt=refund+a+customer",
    "try?skill=acme/billing/refunds&prompts=refund%0A-+read+a+csv", "tools?tool=skills_search&arg.query=refund&call=1",
    "problems", "usage", "live", "sources",
)  # fmt: skip
RENAME = """([before, after]) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(before, after);
}"""
WIDTHS = (1440, 768, 390)


def main() -> None:
    arguments = sys.argv[1:]
    everything: Path | None = None
    if arguments[:1] == ["--all"]:
        everything, arguments = Path(arguments[1]), arguments[2:]
    roots = arguments or [str(ROOT / "fixtures" / "skills")]
    words = [sys.executable, "-m", "mcp_skills_server", "ui", "--no-open", "--log-level", "error", *roots]
    with Popen(words, stdout=PIPE, text=True) as server, sync_playwright() as playwright:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        origin = address.partition("/ui/")[0]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": WIDTHS[0], "height": 900})
        page = context.new_page()
        page.goto(address)
        page.get_by_role("searchbox").wait_for()
        if everything is None:
            for name, view in PICTURES.items():
                page.goto(f"{origin}/ui/{view}")
                page.evaluate(RENAME, [str(ROOT), "/home/me"])  # a picture has no path of this machine
                page.screenshot(path=ROOT / "docs" / "images" / f"{name}.png")
        else:
            everything.mkdir(parents=True, exist_ok=True)
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                for colours in ("light", "dark"):
                    page.emulate_media(color_scheme=colours)
                    for number, view in enumerate(VIEWS):
                        page.goto(f"{origin}/ui/{view}")
                        page.screenshot(path=everything / f"{number:02}-{width}-{colours}.png", full_page=width < 700)
        browser.close()
        server.terminate()


if __name__ == "__main__":
    main()
