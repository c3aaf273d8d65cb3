"""Grants hold on every view: who may not read a skill finds no trace of it, of its changes or of its runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest

from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.telemetry.events import Event, Use
from mcp_skills_server.web.ui.pages import operation
from web.http_wire import Server, client
from web.test_grants import ANN, BOB, configure
from web.ui.serving import get, page_serving, words
from web.ui.test_live import following
from web.ui.views import look_at
from wire import write_skill

GRANTS = """
[[grant]]
who = ["token:ann"]
skills = ["finance/**"]

[[grant]]
who = ["token:bob"]
skills = ["tea"]
"""
ADMIN = """
[[grant]]
who = ["token:bob"]
skills = ["**"]
may = ["admin"]
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two skills with a problem each, and two tokens."""
    write_skill(tmp_path / "skills" / "finance" / "refunds", name="refundz", description="Speaks of the xylophone.")
    write_skill(tmp_path / "skills" / "tea", name="teas", description="Makes tea.")
    (tmp_path / "tokens").write_text(f"ann={ANN}\nbob={BOB}\n")
    (tmp_path / "tokens").chmod(0o600)
    return tmp_path


def as_(server: Server, token: str, view: str) -> str:
    reply = get(server, f"/ui/{view}", Authorization=f"Bearer {token}")
    assert reply.status in {200, 403, 404}, (view, reply.status)
    return words(reply) + reply.body.decode()


def test_changes_of_what_is_withheld_are_not_even_known_to_have_been(place: Path) -> None:
    with page_serving("--config", configure(place, GRANTS)) as server:
        assert "Nothing has changed" in as_(server, ANN, "live") and "Nothing has changed" in as_(server, BOB, "live")
        before = as_(server, BOB, "live")
        assert 'data-number="0"' in before
        with following(server, Authorization=f"Bearer {ANN}") as ann:
            write_skill(place / "skills" / "finance" / "audit")
            assert ann.event() == "change"
        assert as_(server, BOB, "live") == before
        with following(server, Authorization=f"Bearer {BOB}") as bob:
            write_skill(place / "skills" / "tea", description="Makes green tea.")
            assert bob.event() == "change"
        assert "audit" in as_(server, ANN, "live")
        seen = as_(server, BOB, "live")
        assert "audit" not in seen and "changed" in seen


def test_changes_inside_a_skill_that_are_withheld_are_none_of_the_outer_one(place: Path) -> None:
    inner = place / "skills" / "tea" / "finance-only"
    write_skill(inner, secret_md="x")
    with page_serving("--config", configure(place, GRANTS + ADMIN.replace("bob", "ann"))) as server:
        before = as_(server, BOB, "live")
        with following(server, Authorization=f"Bearer {ANN}") as ann:
            (inner / "secret.md").write_text("y")
            assert ann.event() == "change"
        assert "secret.md" in as_(server, ANN, "live") and as_(server, BOB, "live") == before
        with following(server, Authorization=f"Bearer {ANN}") as ann:
            shutil.rmtree(inner)
            assert ann.event() == "change"
        assert "vanished" in as_(server, ANN, "live") and as_(server, BOB, "live") == before


def test_a_stream_ends_where_grants_are_others(place: Path) -> None:
    file = configure(place, GRANTS)
    with page_serving("--config", file) as server, following(server, Authorization=f"Bearer {ANN}") as ann:
        configure(place, GRANTS.replace("finance/**", "tea"))
        server.said("read again|in force")
        write_skill(place / "skills" / "finance" / "audit")
        assert ann.event() == ""


def test_runs_and_clients_are_for_who_may_be_an_administrator(place: Path) -> None:
    with page_serving("--config", configure(place, GRANTS + ADMIN)) as server:
        with client(server, "modern", token=ANN) as ann:
            ann.request("skills/list")
        for view in ("runs", "clients"):
            assert get(server, f"/ui/{view}", Authorization=f"Bearer {ANN}").status == 403
            assert f"/ui/{view}" not in as_(server, ANN, "")
        assert "token:ann" in as_(server, BOB, "clients")


def test_a_skill_that_the_viewer_has_not_is_not_named_by_its_runs(place: Path) -> None:
    who = Principal("token", "bob")
    grants = Grants([Grant((who.id,), (Pattern("tea"),))], local=False)
    look = look_at(place, grants=grants, principal=who)
    for skill in ("tea", "finance/refunds", ""):
        use = Use("run", skill, f"scripts/{skill.partition('/')[0]}.py", "")
        begun = Event(time=1, protocol="mcp", method="tools/call", outcome="begun", uses=(use,))
        look.site.activity.take(begun)
    page = words(bytes(anyio.run(operation.runs, None, look).body).decode())
    assert "tea" in page and "finance" not in page and page.count("of a skill that you may not read") == 1
    assert "code sent with the call" in page
