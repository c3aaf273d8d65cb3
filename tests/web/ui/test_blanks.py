"""Blanks between words of the page, as they are rendered: no template joins two."""

from __future__ import annotations

import re
from pathlib import Path

from web.http_wire import wait_until
from web.in_process import local_page
from web.ui.serving import fetch, text_of
from web.ui.test_browser import SKILL_VIEWS, VIEWS
from wire import write_skill

INLINE = "(?:a|b|bdi|button|code|span|strong|time)"
JOINED = re.compile(rf"</{INLINE}>\w|(?:</{INLINE}>|\w)<{INLINE}(?: [^>]*)?>(?!\s)")
"""Inline elements that touch each other or a word; those of other kinds begin a line of their own."""


def joined_words(page: str) -> list[str]:
    """Return what is joined, with its surroundings. Text of a skill, and marks in it, have their own blanks."""
    ours = re.sub(r'<pre.*?</pre>|<div class="rendered".*?</div>', " ", page, flags=re.DOTALL)
    ours = re.sub(r'<span class="hidden">.*?</span>', "", ours)
    return [ours[max(0, hit.start() - 60) : hit.end() + 60] for hit in JOINED.finditer(ours)]


def test_no_words_of_a_view_are_joined(shared: tuple[str, str]) -> None:
    origin, cookie = shared
    wait_until(lambda: "checking " not in text_of(fetch(f"{origin}/ui/problems", cookie)))
    for view in (*SKILL_VIEWS, *VIEWS, "proposals", "?sort=tokens"):
        assert joined_words(text_of(fetch(f"{origin}/ui/{view}", cookie))) == [], view
    proposal = re.search(r"/ui/(proposals/[^\"]+)", text_of(fetch(f"{origin}/ui/proposals", cookie)))
    assert proposal is not None
    assert joined_words(text_of(fetch(f"{origin}/ui/{proposal[1]}", cookie))) == []


def test_no_words_of_a_change_are_joined(tmp_path: Path) -> None:
    """A change that leaves a skill out has a word on it behind the names of its files."""
    skill = write_skill(tmp_path / "tea", a_md="a\n")
    with local_page(tmp_path) as (origin, cookie):
        write_skill(tmp_path / "tea", name="Tea Pot", a_md="b\n", b_md="b\n")
        wait_until(lambda: "left out" in text_of(fetch(f"{origin}/ui/live", cookie)))
        for view in ("live", "history/tea", "skills/tea", ""):
            page = text_of(fetch(f"{origin}/ui/{view}", cookie))
            assert joined_words(page) == [], view
        diff = re.search(r"<pre class=\"diff\".*?</pre>", text_of(fetch(f"{origin}/ui/history/tea", cookie)), re.DOTALL)
        assert diff and '</span>\n<span class="plus">' in diff[0] and "\n\n" not in diff[0]
        assert skill.exists()
