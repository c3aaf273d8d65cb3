"""Skills that try to script, style, frame or send away something: in a real browser nothing of them does anything."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, urlsplit

from playwright.sync_api import Error

from web.ui import corpus
from web.ui.chromium import browser, looking, needs_chromium
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
            assert page.evaluate("() => window.hit") is None, address
            assert page.title() != "hit", address
            assert page.url == origin + address, address
            assert page.locator("iframe, object, embed, base, link[href*=leak], form[action*=leak]").count() == 0, (
                address
            )
            scripts = page.locator("script").evaluate_all("all => all.map(each => each.getAttribute('src'))")
            assert scripts in (["/ui/static/ui.js"], []), address
            if "/raw/" in address:
                continue  # what else is there is the browser's own way to show plain text
            handlers = "all => all.filter(e => [...e.attributes].some(a => /^on|^style$|^srcdoc$/.test(a.name))).length"
            assert page.locator("*").evaluate_all(handlers) == 0, address
            wrong = "all => all.map(e => e.protocol).filter(p => !/^(https?|mailto):$/.test(p))"
            assert page.locator("a[href]").evaluate_all(wrong) == [], address
    assert downloads == [f"/ui/raw/{paths[0]}?file=fake.png"]
    assert seen.refused == []
    foreign = {
        each
        for each in seen.asked
        if urlsplit(each).netloc != urlsplit(origin).netloc and not each.startswith("data:,")
    }
    assert foreign == set()


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
