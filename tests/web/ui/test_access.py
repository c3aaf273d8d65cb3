"""Grants hold on every view of the page, and a session is known by each of several processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from web.ui.serving import get, names, page_serving, words
from wire import write_skill

ANN, BOB, OPS = (f"{name}s-made-up-token-0123456789" for name in ("ann", "bob", "ops"))
GRANTS = """
roots = ['skills']
token-file = 'tokens'
[[grant]]
who = ["token:ann"]
skills = ["finance/**"]
[[grant]]
who = ["token:bob"]
skills = ["tea"]
[[grant]]
who = ["token:ops"]
skills = ["**"]
may = ["admin"]
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Four skills, one of them broken, and three tokens."""
    for path in ("finance/refunds", "finance/tax", "tea"):
        write_skill(tmp_path / "skills" / path, notes_md="# Notes\n", description='Does it\ntags: ["secret-tag"]')
    write_skill(tmp_path / "skills" / "finance" / "Bad", name="Bad")
    (tmp_path / "tokens").write_text(f"ann={ANN}\nbob={BOB}\nops={OPS}\n", encoding="utf-8")
    (tmp_path / "tokens").chmod(0o600)
    (tmp_path / "c.toml").write_text(GRANTS, encoding="utf-8")
    return tmp_path


def test_grants_hold_on_every_view(place: Path) -> None:
    with page_serving("--config", place / "c.toml") as server:
        ann, bob, ops = ({"Authorization": f"Bearer {each}"} for each in (ANN, BOB, OPS))
        assert names(get(server, "/ui/", **ann)) == ["finance/Bad", "finance/refunds", "finance/tax"]
        assert names(get(server, "/ui/", **bob)) == ["tea"]
        assert len(names(get(server, "/ui/", **ops))) == 4
        assert names(get(server, "/ui/?q=refunds", **bob)) == []
        assert names(get(server, "/ui/?q=refunds", **ann))[:1] == ["finance/refunds"]
        for path in ("?q=refunds&part=1", "?tag=secret-tag", "?format=json", "?problem=left-out", "?problem=any", ""):
            assert "finance" not in words(get(server, f"/ui/{path}", **bob)), path
        for view in ("skills", "files", "raw", "history"):
            address = f"/ui/{view}/finance/tax?file=notes.md"
            assert get(server, address, **ann).status == 200
            hidden, absent = get(server, address, **bob), get(server, address.replace("tax", "no"), **bob)
            assert hidden.status == absent.status == 404
            assert hidden.body == absent.body  # as what was never there
