"""Use by principal and by host program: who sees it, that it is bounded, and that a reader of screens finds it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect
from starlette.requests import Request

from mcp_skills_server.telemetry.usage import Batch, By, Count, Line, Report, Sum, UsageStore, day_of
from mcp_skills_server.web.ui.pages import operation
from web.http_wire import client
from web.test_grants import ANN, BOB, configure
from web.ui.chromium import looking, needs_chromium
from web.ui.serving import get, own_page, page_serving, words
from web.ui.test_grants import ADMIN, GRANTS
from web.ui.views import look_at
from wire import DEADLINE, write_skill

HEADINGS = ("By principal", "By host program")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two skills, and two tokens."""
    write_skill(tmp_path / "skills" / "finance" / "refunds")
    write_skill(tmp_path / "skills" / "tea")
    (tmp_path / "tokens").write_text(f"ann={ANN}\nbob={BOB}\n")
    (tmp_path / "tokens").chmod(0o600)
    return tmp_path


def wait_for_count(place: Path) -> None:
    """Wait until a use is in the store: what the page has read of it, it shows for five seconds."""
    until = time.monotonic() + DEADLINE
    while not UsageStore(str(place / "usage.db")).report("principal").lines:
        assert time.monotonic() < until


@pytest.mark.parametrize("grants", [GRANTS + ADMIN, ""])
def test_who_may_see_others_sees_who_used_how_much(place: Path, grants: str) -> None:
    store = f"sqlite:{place / 'usage.db'}"
    with page_serving("--config", configure(place, grants), "--usage", store) as server:
        with client(server, "modern", token=ANN) as ann:
            ann.request("resources/read", {"uri": "skill://finance/refunds/SKILL.md"})
        wait_for_count(place)
        seen = words(get(server, "/ui/usage", Authorization=f"Bearer {BOB}"))
        assert seen.count(" 1 0 0 0 ") == 3
        _, by_principal, by_host = (part.partition(" Searches ")[0] for part in _parts(seen))
        assert "token:ann 1 0 0 0 " in by_principal and "wire 1 0 0 0 " in by_host
        assert "token:" not in by_host
        not_admin = words(get(server, "/ui/usage", Authorization=f"Bearer {ANN}"))
        assert all((heading in not_admin) == (not grants) for heading in HEADINGS)
        assert ("token:ann 1" in not_admin) == (not grants)


def _parts(page: str) -> tuple[str, str, str]:
    skills, _, rest = page.partition(f" {HEADINGS[0]} ")
    by_principal, _, by_host = rest.partition(f" {HEADINGS[1]} ")
    return skills, by_principal, by_host


def test_where_nobody_proves_anything_nobody_sees_who_else_there_is(place: Path) -> None:
    with page_serving(place / "skills", "--usage", f"sqlite:{place / 'usage.db'}") as server:
        with client(server, "modern") as one:
            one.request("resources/read", {"uri": "skill://tea/SKILL.md"})
        wait_for_count(place)
        seen = words(get(server, "/ui/usage"))
        assert " 1 0 0 0 " in seen
        assert not any(heading in seen for heading in HEADINGS) and "wire" not in seen


def test_no_more_than_so_many_are_shown_the_most_used_first(tmp_path: Path) -> None:
    class Counts(UsageStore):
        def report(self, by: By = "skill", days: int = 30) -> Report:
            return Report(tuple(Line(f"{by}-{number:04}", loads=9_000 - number) for number in range(5_000)), 0, 0, ())

    look, counts = look_at(tmp_path), Counts(str(tmp_path / "usage.db"))
    look = replace(look, site=replace(look.site, usage=operation.UsageReports(counts)), sees_others=True)
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""})
    page = words(bytes(anyio.run(operation.usage, request, look).body).decode())
    for by in ("principal", "host"):
        assert page.count(f"{by}-") == operation.MOST_OTHERS
        assert page.index(f"{by}-0000 9,000") < page.index(f"{by}-0001 8,999") < page.index(f"{by}-0099 8,901")


@needs_chromium
def test_the_tables_are_read_by_anybody_on_any_screen_and_without_a_script(chromium: Browser, place: Path) -> None:
    now = time.time()
    who = {"token:ann": "<b>editor</b>" * 20, "user:" + "x" * 300: "a" * 200, "": ""}
    counts = {
        Count(day_of(now), "load", "tea", "sha256:0", principal, host, "mcp"): Sum(len(who) - number, now)
        for number, (principal, host) in enumerate(who.items())
    }
    UsageStore(str(place / "usage.db")).add(Batch(counts, {}))
    given = (place / "skills", "--usage", f"sqlite:{place / 'usage.db'}")
    options = {"color_scheme": "dark", "viewport": {"width": 320, "height": 600}}
    with own_page(*given) as address, looking(chromium, **options) as seen:
        page = seen.page
        page.goto(address)
        page.goto(f"{address.partition('/ui/')[0]}/ui/usage")
        table = page.get_by_role("region", name="By principal")
        expect(table.get_by_role("row").nth(1)).to_contain_text("token:ann")
        expect(table.get_by_role("row").last).to_contain_text("anonymous")
        expect(page.get_by_role("region", name="By host program").get_by_role("row").last).to_contain_text("unknown")
        assert Axe().run(page).response["violations"] == []
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 320
        assert page.locator("main b").count() == 0
    with own_page(*given) as address, looking(chromium, java_script_enabled=False) as seen:
        seen.page.goto(address)
        seen.page.goto(f"{address.partition('/ui/')[0]}/ui/usage")
        expect(seen.page.get_by_role("region", name="By principal").get_by_text("token:ann")).to_be_visible()
