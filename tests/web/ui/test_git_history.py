"""What git knows of a skill that is fetched, as the page shows it: to administrators, and as foreign text."""

from __future__ import annotations

from pathlib import Path

import pytest

from sources.git.conftest import BASE
from sources.git.remotes import Upstream, skill
from web.ui.serving import get, page_serving, words

pytestmark = pytest.mark.needs_program("git")
OPS, BOB = "opss-made-up-token-0123456789", "bobs-made-up-token-0123456789"
GRANTS = """
roots = ['{url}']
token-file = 'tokens'
[[grant]]
who = ["token:bob"]
skills = ["**"]
[[grant]]
who = ["token:ops"]
skills = ["**"]
may = ["admin"]
"""
HEAD = (
    'tree {tree}\nparent {parent}\nauthor Eve &amp; "x" <x> 99999999999999 +0000\ncommitter c <c> 1 +0000\n\n<b>done\n'
)


def test_administrators_see_the_commits_of_a_repository_and_nothing_of_them_is_markup(tmp_path: Path) -> None:
    upstream = Upstream(tmp_path / "acme.git")
    parent = upstream.commit(BASE)
    upstream.commit({**BASE, **skill("alpha", "Other <script>words</script>.")}, "other", parent=parent)
    tree = upstream.git("rev-parse", "other^{tree}")
    raw = HEAD.format(tree=tree, parent=parent).encode()
    commit = upstream.git("hash-object", "-t", "commit", "-w", "--stdin", "--literally", given=raw)
    upstream.git("update-ref", "refs/heads/main", commit)
    (tmp_path / "tokens").write_text(f"bob={BOB}\nops={OPS}\n", encoding="utf-8")
    (tmp_path / "tokens").chmod(0o600)
    (tmp_path / "c.toml").write_text(GRANTS.format(url=upstream.url), encoding="utf-8")
    with page_serving("--config", tmp_path / "c.toml", "--cache-dir", tmp_path / "cache") as server:
        for view in ("history/skills/alpha", "skills/skills/alpha"):
            assert get(server, f"/ui/{view}", Authorization=f"Bearer {BOB}").status == 200
        plain = words(get(server, "/ui/history/skills/alpha", Authorization=f"Bearer {BOB}"))
        assert "Git commits" not in plain and "Eve" not in plain
        reply = get(server, "/ui/history/skills/alpha", Authorization=f"Bearer {OPS}")
        shown = words(reply)
        assert "Git commits" in shown and "+Other <script>words</script>." in shown and commit[:12] in shown
        assert 'Eve &amp; "x"' in shown and "<b>done" in shown
        for tag in ("<b>", "<script>"):
            assert tag not in reply.body.decode()
        assert "9999-12-31" in shown
