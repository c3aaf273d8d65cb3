"""What other pages, other names, other sessions and other principals could get out of the page."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from web.http_wire import Server, bearing, token_file, until
from web.test_grants import ANN, BOB
from web.ui import corpus
from web.ui.serving import SECRET, TOKENS, ask, cookie_of, get, grant, names, own_page, page_serving, signed_in, words
from web.ui.test_live import following
from web.ui.test_sign_in import sign_in
from wire import write_skill

SECRETS = ("quagga", "okapi", "finance")
GRANTS = "roots = ['skills', 'more']\ntoken-file = 'tokens'\n" + grant("ann", "**", may=["admin"])
TWO = grant("bob", "tea", "outer")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_another_page_has_a_browser_ask_is_asked_by_nobody(skills: Path, site: str) -> None:
    """A server at another port of this machine is of the same site: a browser sends it and us each other's cookies."""

    def fetched(site: str, mode: str, method: str = "GET", path: str = "/ui/?q=refunds&part=1") -> int:
        return ask(origin + path, cookie, method, **{"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode})[0]

    with signed_in(skills) as (origin, cookie):
        assert [fetched(site, mode) for mode in ("no-cors", "cors", "same-origin")] == [303] * 3
        assert fetched("same-origin", "cors") == 200
        assert fetched(site, "navigate") == 200
        assert fetched(site, "navigate", "POST", "/ui/sign-out") == 403
        assert ask(f"{origin}/ui/", cookie)[0] == 200, "nobody is signed out by another page"


def test_ones_own_page_is_reached_by_no_other_name(skills: Path) -> None:
    """A name that comes to mean this machine would make a foreign page one of the same origin."""
    with own_page(skills) as address:
        for named in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "user@localhost"):
            for host in (named, f"{named}:{urlsplit(address).port}"):
                status, headers, _ = ask(address, Host=host)
                assert status == 403 and "Set-Cookie" not in headers, host
        assert ask(address)[0] == 303, "the secret is still good"


def test_what_is_refused_has_the_headers_too(skills: Path) -> None:
    with own_page(skills) as address:
        for call in ("POST /ui/", "PUT /ui/sign-in", "POST /ui/sign-out/", "OPTIONS /ui/x", "GET /ui/enter"):
            method, path = call.split()
            status, headers, _ = ask(address.partition("/ui/")[0] + path, method=method)
            assert status in {403, 405}, call
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"], call
            assert headers["Cache-Control"] == "no-store" and headers["X-Content-Type-Options"] == "nosniff", call


def test_nobody_is_led_elsewhere_nor_into_a_session_that_another_chose(guarded: Server) -> None:
    for path in ("//evil.example/", "/%2f%2fevil.example/", "/\\evil.example", "/enter/", "/..//evil.example"):
        for given in (path, f"{path}?next=//evil.example", f"/enter?once=x&next={path}"):
            reply = get(guarded, f"/ui{given}")
            assert (reply.headers["Location"] or "/ui/sign-in") == "/ui/sign-in", given
    reply = sign_in(guarded, SECRET)
    assert reply.headers["Location"] == "/ui/"
    chosen = f"{cookie_of(reply.headers).partition('=')[0]}={'a' * 43}"
    given = cookie_of(sign_in(guarded, SECRET, Cookie=chosen).headers)
    assert given != chosen and get(guarded, "/ui/", Cookie=chosen).status == 303
    again = cookie_of(sign_in(guarded, SECRET, Cookie=given).headers)
    assert again != given and get(guarded, "/ui/", Cookie=given).status == 303, "the one before ends"
    assert get(guarded, "/ui/", Cookie=again).status == 200


def test_behind_a_proxy_with_tls_the_cookie_is_for_tls_alone(skills: Path) -> None:
    with page_serving(skills, "--trusted-proxy", "127.0.0.1", environment=TOKENS) as server:
        tls = {"X-Forwarded-For": "10.0.0.9", "X-Forwarded-Proto": "https", "Host": "localhost"}
        for more, secure in ((tls, True), ({}, False)):
            origin = "https://localhost" if secure else f"http://127.0.0.1:{server.port}"
            given = sign_in(server, SECRET, Origin=origin, **more).headers["Set-Cookie"] or ""
            flags = {each.strip().lower() for each in given.split(";")[1:]}
            assert {"httponly", "samesite=strict", "path=/ui"} <= flags and ("secure" in flags) is secure
    with page_serving(skills, environment=TOKENS) as server:  # which believes nobody
        assert "Secure" not in (sign_in(server, SECRET, **tls).headers["Set-Cookie"] or "")


def test_a_stream_ends_with_the_token_that_opened_it(tmp_path: Path, skills: Path) -> None:
    other = "fedcba9876543210"
    tokens = token_file(tmp_path, f"laptop={SECRET}", f"other={other}")
    with page_serving(skills, "--token-file", tokens) as server:
        cookie = cookie_of(sign_in(server, SECRET).headers)
        with (
            following(server, Cookie=cookie) as by_cookie,
            following(server, **bearing(SECRET)) as by_token,
            following(server, **bearing(other)) as stays,
        ):
            token_file(tmp_path, f"other={other}")
            server.process.send_signal(signal.SIGHUP)
            until(lambda: get(server, "/ui/", Cookie=cookie).status == 303)
            write_skill(skills / "later")
            assert stays.event() == "change"
            assert by_cookie.event() == by_token.event() == "", "not even that something changed"


def test_raw_files_are_nothing_that_a_browser_runs(tmp_path: Path) -> None:
    path = corpus.write(tmp_path)[0]
    with page_serving(tmp_path) as server:
        for name in ("evil.svg", "evil.html", "SKILL.md"):
            reply = get(server, f"/ui/raw/{path}?file={name}")
            assert reply.status == 200 and reply.headers["Content-Type"] == "text/plain; charset=utf-8"
            assert "sandbox" in (reply.headers["Content-Security-Policy"] or "")
            assert reply.headers["X-Content-Type-Options"] == "nosniff"
            assert reply.body == (tmp_path / path / name).read_bytes()
        reply = get(server, f"/ui/raw/{path}?file=fake.png")
        assert reply.headers["Content-Type"] == "application/octet-stream"
        assert (reply.headers["Content-Disposition"] or "").startswith("attachment")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Skills of two roots of which bob may read two; one of them has another skill in it, and hides one."""
    for root in ("skills", "more"):
        write_skill(tmp_path / root / "tea", description="Brews tea for a guest of the zoo.")
    hidden = 'Feeds a quagga of the zoo.\ntags: ["okapi"]\narguments: [{name: okapi}]'
    for path in ("finance/quagga", "outer/quagga"):
        files = {"okapi_md": "# Okapi\n", "scripts__okapi_py": "print(1)\n"}
        write_skill(tmp_path / "skills" / path, description=hidden, **files)
    write_skill(tmp_path / "skills" / "outer", description="Feeds guests of the zoo.")
    write_skill(tmp_path / "skills" / "finance" / "Okapi", name="Okapi")
    write_skill(tmp_path / "more" / "finance" / "quagga")
    token_file(tmp_path, f"bob={BOB}", f"ann={ANN}")
    (tmp_path / "c.toml").write_text(GRANTS + TWO)
    return tmp_path


VIEWS = (
    "", "?problem=left-out", "?problem=any", "?format=json", "?tag=okapi", "?q=zoo",
    "?q=zoo&part=1", "?q=feeds", "?tag=x", "skills/outer",
    "skills/tea", "files/outer?file=SKILL.md", "history/outer", "history/tea", "model", "problems",
    "model?era=legacy&dialect=sep-2640",
    "try?prompt=zoo", "try?prompt=feed+guests+of+the+zoo", "try?prompt=quaga", "live", "live?part=1", "sources",
    "runs", "clients", "usage", "no/such",
)  # fmt: skip


def shown(server: Server, token: str, view: str) -> str:
    return get(server, f"/ui/{view}", **bearing(token)).body.decode()


def test_no_view_has_what_one_may_not_read_nor_says_where_on_the_disk_it_lies(place: Path) -> None:
    with page_serving("--config", place / "c.toml", "--usage", f"sqlite:{place / 'usage.db'}") as server:
        assert names(shown(server, BOB, "")) == ["outer", "tea"]
        assert len(names(shown(server, ANN, ""))) == 5 and "shadowed" in words(shown(server, ANN, "problems"))
        for view in ("skills", "files", "raw", "history"):
            there, not_there = (
                get(server, f"/ui/{view}/outer/{name}?file=okapi.md", **bearing(BOB)) for name in ("quagga", "nothing")
            )
            assert (there.status, there.body) == (404, not_there.body) and not_there.status == 404
        # It is looked at and used by others, changes, and goes.
        shown(server, ANN, "skills/finance/quagga")
        for path in ("finance/quagga", "outer/quagga"):
            write_skill(place / "skills" / path, body="# Quagga\n\nAnother okapi.\n")
        write_skill(place / "skills" / "outer", description="Feeds guests of the zoo.", body="# Other\n")
        shutil.rmtree(place / "skills" / "finance" / "Okapi")
        until(lambda: "Other" in words(shown(server, BOB, "history/outer")))
        until(lambda: "vanished" in words(shown(server, ANN, "live")))
        assert "quagga" in words(shown(server, ANN, "live")) and "changed" in words(shown(server, BOB, "live"))
        for view in VIEWS:
            text = shown(server, BOB, view)
            assert not [each for each in (*SECRETS, str(place).lower()) if each in text.lower()], view
        for view in (*VIEWS, "skills/finance/quagga", "history/finance/quagga"):
            assert str(place) not in shown(server, ANN, view), view


def test_changes_of_what_is_withheld_are_unknown_and_a_stream_ends_with_its_grants(place: Path) -> None:
    with page_serving("--config", place / "c.toml") as server:
        before, first = (shown(server, token, "live") for token in (BOB, ANN))
        assert 'data-number="0"' in before and "Nothing has changed" in before and "Nothing has changed" in first
        with following(server, **bearing(ANN)) as ann:
            write_skill(place / "skills" / "finance" / "audit")
            assert ann.event() == "change"
        assert shown(server, BOB, "live") == before
        with following(server, **bearing(BOB)) as bob:
            write_skill(place / "skills" / "tea", description="Makes green tea.")
            assert bob.event() == "change"
            assert "audit" in words(shown(server, ANN, "live"))
            seen = words(shown(server, BOB, "live"))
            assert "audit" not in seen and "changed" in seen
            (place / "c.toml.new").write_text(GRANTS + grant("bob", "outer"))
            (place / "c.toml.new").replace(place / "c.toml")
            server.said("reloaded|in force")
            write_skill(place / "skills" / "tea")
            assert bob.event() == ""
