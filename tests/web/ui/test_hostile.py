"""Skills that try to script, style, frame or send away something: in a real browser nothing of them does anything."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, urlsplit

from playwright.sync_api import Error

from web.ui import corpus
from web.ui.chromium import browser, harm, looking, needs_chromium
from web.ui.serving import page_serving


@needs_chromium
def test_sixty_hostile_skills_do_nothing_on_any_view(tmp_path: Path) -> None:
    paths = corpus.write(tmp_path)
    assert len(paths) == 60
    with page_serving(tmp_path) as server, browser() as made, looking(made) as seen:
        origin = f"http://127.0.0.1:{server.port}"
        page = seen.page
        addresses = [
            "/ui/",
            "/ui/?problem=left-out",
            f"/ui/?q={quote(corpus.MARKUP[2])}",
            f"/ui/?tag={quote(corpus.MARKUP[2])}",
        ]
        for path in paths:
            skill = quote(path)
            addresses += [f"/ui/skills/{skill}", f"/ui/files/{skill}?file=references/a.md"]
        for name in ("evil.svg", "evil.html", "fake.png"):
            addresses += [f"/ui/files/{paths[0]}?file={name}", f"/ui/raw/{paths[0]}?file={name}"]
        addresses.append(f"/ui/skills/{paths[40]}?fill=1&arg.x={quote(corpus.MARKUP[0])}")
        downloads: list[str] = []
        for address in addresses:
            try:
                answer = page.goto(origin + address)
            except Error:  # what is to be kept in a file is no page
                downloads.append(address)
                continue
            assert answer is not None and answer.status in {200, 400}, (address, answer)
            assert page.url == origin + address, address
            assert harm(page, plain="/raw/" in address) == [], address
    assert downloads == [f"/ui/raw/{paths[0]}?file=fake.png"]
    assert seen.refused == []
    foreign = {
        each
        for each in seen.asked
        if urlsplit(each).netloc != urlsplit(origin).netloc and not each.startswith("data:,")
    }
    assert foreign == set()


HARMS = (
    "<iframe></iframe>", "<object></object>", "<embed>", "<base href='https://a.example/'>",
    "<link href='/leak'>", "<form action='/leak'></form>", "<script src='/other.js'></script>", "<script></script>",
    "<script src='/ui/static/ui.js'></script>" * 2, "<p onclick='x'>", "<p style='color: red'>",
    "<a href='javascript:x'>x</a>", "<a href='data:,x'>x</a>", "<svg><a href='https://a.example/'></a></svg>",
    "<script>hit = 1; document.currentScript.remove()</script>", "<title>hit</title>",
    "<p id='a'><script>a.attachShadow({mode: 'open'}); document.currentScript.remove()</script>",
)  # fmt: skip


@needs_chromium
def test_each_harm_is_seen() -> None:
    with browser() as made, looking(made) as seen:
        seen.page.set_content("<script src='/ui/static/ui.js'></script><a href='https://a.example/'>a</a>")
        assert harm(seen.page) == []
        for found in HARMS:
            seen.page.goto("about:blank")  # a new window, in which nothing ran
            seen.page.set_content(found)
            assert harm(seen.page) != [], found


def test_raw_files_are_nothing_that_a_browser_runs(tmp_path: Path) -> None:
    paths = corpus.write(tmp_path)
    with page_serving(tmp_path) as server:
        for name in ("evil.svg", "evil.html", "SKILL.md"):
            reply = server.send("GET", f"/ui/raw/{paths[0]}?file={name}")
            assert reply.status == 200 and reply.headers["Content-Type"] == "text/plain; charset=utf-8"
            assert "sandbox" in (reply.headers["Content-Security-Policy"] or "")
            assert reply.headers["X-Content-Type-Options"] == "nosniff"
            assert reply.body == (tmp_path / paths[0] / name).read_bytes()
        reply = server.send("GET", f"/ui/raw/{paths[0]}?file=fake.png")
        assert reply.headers["Content-Type"] == "application/octet-stream"
        assert (reply.headers["Content-Disposition"] or "").startswith("attachment")
