"""Attacks on the web UI: cross-site requests, session fixation, and reads of withheld skills."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from web.http_wire import Target, bearer_header, token_file, wait_until
from web.in_process import app_serving, local_page
from web.test_grants import ANN, BOB
from web.ui import corpus
from web.ui.serving import (
    SECRET,
    TOKENS,
    cookie_of,
    fetch,
    get,
    grant,
    page_serving,
    skill_paths,
    text_of,
    visible_text,
)
from web.ui.test_live import next_event, open_stream
from web.ui.test_sign_in import sign_in
from wire import write_skill

WITHHELD_WORDS = ("quagga", "okapi", "finance")
CONFIGURATION = "roots = ['skills', 'more']\ntoken-file = 'tokens'\n" + grant("ann", "**", may=["admin"])


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_cross_site_requests_are_refused(skills: Path, site: str) -> None:
    """A server at another port of this host is same-site: browsers send its requests with the cookie."""

    def status(site: str, mode: str, method: str = "GET", path: str = "/ui/?q=refunds&part=1") -> int:
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
        return fetch(origin + path, cookie, method, **headers).status

    with local_page(skills) as (origin, cookie):
        assert [status(site, mode) for mode in ("no-cors", "cors", "same-origin")] == [303] * 3
        assert status("same-origin", "cors") == 200
        assert status(site, "navigate") == 200
        assert status(site, "navigate", "POST", "/ui/sign-out") == 403
        assert fetch(f"{origin}/ui/", cookie).status == 200, "the refused request did not sign out"


def test_refusal_has_security_headers(skills: Path) -> None:
    with local_page(skills) as (origin, _):
        for call in ("POST /ui/", "PUT /ui/sign-in", "POST /ui/sign-out/", "OPTIONS /ui/x", "POST /ui/another"):
            method, path = call.split()
            reply = fetch(origin + path, method=method)
            assert reply.status in {403, 405}, call
            assert "frame-ancestors 'none'" in reply.headers["Content-Security-Policy"], call
            assert reply.headers["Cache-Control"] == "no-store", call
            assert reply.headers["X-Content-Type-Options"] == "nosniff", call


def test_open_redirect_and_session_fixation_are_refused(guarded: Target) -> None:
    for path in ("//evil.example/", "/%2f%2fevil.example/", "/\\evil.example", "/enter/", "/..//evil.example"):
        for target in (path, f"{path}?next=//evil.example", f"/enter?once=x&next={path}"):
            reply = get(guarded, f"/ui{target}")
            assert (reply.headers["Location"] or "/ui/sign-in") == "/ui/sign-in", target
    reply = sign_in(guarded, SECRET)
    assert reply.headers["Location"] == "/ui/"
    fixed = f"{cookie_of(reply).partition('=')[0]}={'a' * 43}"
    first = cookie_of(sign_in(guarded, SECRET, Cookie=fixed))
    assert first != fixed and get(guarded, "/ui/", Cookie=fixed).status == 303
    second = cookie_of(sign_in(guarded, SECRET, Cookie=first))
    assert second != first and get(guarded, "/ui/", Cookie=first).status == 303, "the earlier session ends"
    assert get(guarded, "/ui/", Cookie=second).status == 200


def test_cookie_is_secure_behind_trusted_tls_proxy_only(skills: Path) -> None:
    tls = {"X-Forwarded-For": "10.0.0.9", "X-Forwarded-Proto": "https", "Host": "localhost"}
    with app_serving(skills, "--ui", "--trusted-proxy", "127.0.0.1", environment=TOKENS) as server:
        for headers, is_secure in (({**tls, "Origin": "https://localhost"}, True), ({}, False)):
            cookie = sign_in(server, SECRET, **headers).headers["Set-Cookie"] or ""
            flags = {flag.strip().lower() for flag in cookie.split(";")[1:]}
            assert {"httponly", "samesite=strict", "path=/ui"} <= flags
            assert ("secure" in flags) is is_secure
    with app_serving(skills, "--ui", environment=TOKENS) as server:  # without a trusted proxy
        assert "Secure" not in (sign_in(server, SECRET, **tls).headers["Set-Cookie"] or "")


def test_event_stream_ends_when_its_token_is_revoked(tmp_path: Path, skills: Path) -> None:
    other = "fedcba9876543210"
    tokens = token_file(tmp_path, f"laptop={SECRET}", f"other={other}")
    with page_serving(skills, "--token-file", tokens) as server:
        cookie = cookie_of(sign_in(server, SECRET))
        with (
            open_stream(server, Cookie=cookie) as by_cookie,
            open_stream(server, **bearer_header(SECRET)) as by_token,
            open_stream(server, **bearer_header(other)) as of_other_token,
        ):
            token_file(tmp_path, f"other={other}")
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: get(server, "/ui/", Cookie=cookie).status == 303)
            write_skill(skills / "later")
            assert next_event(of_other_token) == "change"
            assert next_event(by_cookie) == next_event(by_token) == "", "without a last change event"


def test_raw_file_is_never_executable_content(tmp_path: Path) -> None:
    path = corpus.write(tmp_path)[0]
    with app_serving(tmp_path, "--ui") as server:
        for name in ("evil.svg", "evil.html", "SKILL.md"):
            reply = get(server, f"/ui/raw/{path}?file={name}")
            assert reply.status == 200
            assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
            assert "sandbox" in (reply.headers["Content-Security-Policy"] or "")
            assert reply.headers["X-Content-Type-Options"] == "nosniff"
            assert reply.body == (tmp_path / path / name).read_bytes()
        reply = get(server, f"/ui/raw/{path}?file=fake.png")
        assert reply.headers["Content-Type"] == "application/octet-stream"
        assert (reply.headers["Content-Disposition"] or "").startswith("attachment")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two roots. Bob may read `tea` and `outer`; `outer/quagga` is nested in the latter, `tea` shadows another."""
    for root in ("skills", "more"):
        write_skill(tmp_path / root / "tea", description="Brews tea for a guest of the zoo.")
    withheld = 'Feeds a quagga of the zoo.\ntags: ["okapi"]\narguments: [{name: okapi}]'
    for path in ("finance/quagga", "outer/quagga"):
        files = {"okapi_md": "# Okapi\n", "scripts__okapi_py": "print(1)\n"}
        write_skill(tmp_path / "skills" / path, description=withheld, **files)
    write_skill(tmp_path / "skills" / "outer", description="Feeds guests of the zoo.")
    write_skill(tmp_path / "skills" / "finance" / "Okapi", name="Okapi")
    write_skill(tmp_path / "more" / "finance" / "quagga")
    token_file(tmp_path, f"bob={BOB}", f"ann={ANN}")
    (tmp_path / "c.toml").write_text(CONFIGURATION + grant("bob", "tea", "outer"))
    return tmp_path


VIEWS = (
    "", "?problem=left-out", "?problem=any", "?format=json", "?tag=okapi", "?q=zoo",
    "?q=zoo&part=1", "?q=feeds", "?tag=x", "skills/outer",
    "skills/tea", "files/outer?file=SKILL.md", "history/outer", "history/tea", "edit/outer", "archive", "model",
    "problems", "model?era=legacy&dialect=sep-2640",
    "try?prompt=zoo", "try?prompt=feed+guests+of+the+zoo", "try?prompt=quaga", "live", "live?part=1", "sources",
    "runs", "clients", "usage", "no/such",
)  # fmt: skip


def html_of(server: Target, token: str, view: str) -> str:
    return text_of(get(server, f"/ui/{view}", **bearer_header(token)))


def test_no_view_contains_withheld_skills_or_paths_of_the_disk(folder: Path) -> None:
    usage = f"sqlite:{folder / 'usage.db'}"
    with app_serving("--config", folder / "c.toml", "--usage", usage, "--ui") as server:
        assert skill_paths(html_of(server, BOB, "")) == ["outer", "tea"]
        assert len(skill_paths(html_of(server, ANN, ""))) == 5
        assert "shadowed" in visible_text(html_of(server, ANN, "problems"))
        for view in ("skills", "files", "raw", "history"):
            withheld = get(server, f"/ui/{view}/outer/quagga?file=okapi.md", **bearer_header(BOB))
            absent = get(server, f"/ui/{view}/outer/nothing?file=okapi.md", **bearer_header(BOB))
            assert withheld.status == absent.status == 404
            assert withheld.body == absent.body
        # Withheld skills are viewed by others, change, and are removed.
        html_of(server, ANN, "skills/finance/quagga")
        for path in ("finance/quagga", "outer/quagga"):
            write_skill(folder / "skills" / path, body="# Quagga\n\nAnother okapi.\n")
        write_skill(folder / "skills" / "outer", description="Feeds guests of the zoo.", body="# Other\n")
        shutil.rmtree(folder / "skills" / "finance" / "Okapi")
        wait_until(lambda: "Other" in visible_text(html_of(server, BOB, "history/outer")))
        wait_until(lambda: "vanished" in visible_text(html_of(server, ANN, "live")))
        assert "quagga" in visible_text(html_of(server, ANN, "live"))
        assert "changed" in visible_text(html_of(server, BOB, "live"))
        for view in VIEWS:
            text = html_of(server, BOB, view).lower()
            leaks = [word for word in (*WITHHELD_WORDS, str(folder).lower()) if word in text]
            assert leaks == [], view
        for view in (*VIEWS, "skills/finance/quagga", "history/finance/quagga"):
            assert str(folder) not in html_of(server, ANN, view), view


def test_problems_of_folders_are_for_administrators_only(folder: Path) -> None:
    (folder / "skills" / "group").mkdir()
    os.mkdir(os.fsencode(folder / "skills" / "group") + b"/\xff")
    (folder / "c.toml").write_text(CONFIGURATION + grant("bob", "**"))
    with app_serving("--config", folder / "c.toml", "--ui") as server:
        summaries: list[str] = []
        for token, is_shown in ((ANN, True), (BOB, False)):
            wait_until(lambda token=token: "checking" not in html_of(server, token, ""))
            for view in ("", "problems"):
                assert ("not UTF-8" in html_of(server, token, view)) == is_shown, (view, token)
            assert "shadowed" in html_of(server, token, "")
            summaries += re.findall(r"\d+ errors?, \d+ warnings?", html_of(server, token, ""))
        assert len(summaries) == 2 and summaries[0] != summaries[1]


def test_number_of_withheld_change_is_hidden_and_stream_ends_when_its_grants_change(folder: Path) -> None:
    with page_serving("--config", folder / "c.toml") as server, open_stream(server, **bearer_header(BOB)) as of_bob:
        write_skill(folder / "skills" / "finance" / "audit")
        wait_until(lambda: "audit" in html_of(server, ANN, "live"))
        for view in ("", "live"):
            assert 'data-number="0"' in html_of(server, BOB, view)
        write_skill(folder / "skills" / "tea", description="Makes green tea.")
        assert next_event(of_bob) == "change"
        (folder / "c.toml.new").write_text(CONFIGURATION + grant("bob", "outer"))
        (folder / "c.toml.new").replace(folder / "c.toml")
        server.wait_for_log("the grants were reloaded")
        write_skill(folder / "skills" / "tea")
        assert next_event(of_bob) == ""
