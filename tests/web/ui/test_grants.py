"""Grants hold on every view: who may not read a skill finds no trace of it, of its changes or of its runs."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.telemetry.events import Event, Use
from mcp_skills_server.web.ui.pages import operation
from web.http_wire import Server, bearing, token_file
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
    token_file(tmp_path, f"ann={ANN}", f"bob={BOB}")
    return tmp_path


def as_(server: Server, token: str, view: str) -> str:
    reply = get(server, f"/ui/{view}", **bearing(token))
    assert reply.status in {200, 403, 404}, (view, reply.status)
    return words(reply) + reply.body.decode()


def test_changes_of_what_is_withheld_are_not_even_known_to_have_been(place: Path) -> None:
    with page_serving("--config", configure(place, GRANTS)) as server:
        assert "Nothing has changed" in as_(server, ANN, "live") and "Nothing has changed" in as_(server, BOB, "live")
        before = as_(server, BOB, "live")
        assert 'data-number="0"' in before
        with following(server, **bearing(ANN)) as ann:
            write_skill(place / "skills" / "finance" / "audit")
            assert ann.event() == "change"
        assert as_(server, BOB, "live") == before
        with following(server, **bearing(BOB)) as bob:
            write_skill(place / "skills" / "tea", description="Makes green tea.")
            assert bob.event() == "change"
        assert "audit" in as_(server, ANN, "live")
        seen = as_(server, BOB, "live")
        assert "audit" not in seen and "changed" in seen


def test_a_stream_ends_where_grants_are_others(place: Path) -> None:
    file = configure(place, GRANTS)
    with page_serving("--config", file) as server, following(server, **bearing(ANN)) as ann:
        configure(place, GRANTS.replace("finance/**", "tea"))
        server.said("read again|in force")
        write_skill(place / "skills" / "finance" / "audit")
        assert ann.event() == ""


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
    assert "code that came with the call" in page
