"""Where skills come from: what each viewer is shown of it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from catalog.forest import plant, skill_md
from mcp_skills_server.catalog.registry import MirroredRoot, Registry
from mcp_skills_server.sources.mirrors import SourceState
from mcp_skills_server.web.ui.pages import operation
from web.ui.serving import get, page_serving, words
from web.ui.views import look_at

SITE = "https://skills.example"


def mirrored(tmp_path: Path) -> Registry:
    plant(tmp_path / "own", {"one/SKILL.md": skill_md("one")})
    plant(tmp_path / "copy", {"two/SKILL.md": skill_md("other")})
    (tmp_path / "empty").mkdir()
    registry = Registry([tmp_path / "own", MirroredRoot(str(tmp_path / "copy"), SITE), tmp_path / "empty"], quiet_s=0)
    registry.load()
    return registry


def test_each_source_has_its_revision_its_looks_and_its_last_error(tmp_path: Path) -> None:
    state = SourceState(SITE, True, "does not answer", "abc123", looked=1e9, next_look=2e9)
    look = replace(look_at(registry=mirrored(tmp_path), sources=[state]), is_admin=True)
    own, site, empty = operation.source_rows(look)
    assert (own.name, own.skills, own.state, own.trouble) == ("own", 1, None, "")
    assert (site.name, site.revision, site.skills, site.left_out) == (SITE, "abc123", 1, 1)
    assert (site.state, site.trouble) == (state, "does not answer")
    assert (empty.name, empty.skills) == ("empty", 0)


def test_others_than_the_operator_see_the_sources_of_their_skills_and_no_errors_of_them(tmp_path: Path) -> None:
    state = SourceState(SITE, True, "/secret/place: does not answer", "abc123")
    rows = operation.source_rows(replace(look_at(registry=mirrored(tmp_path), sources=[state]), is_admin=False))
    assert [each.name for each in rows] == ["own", SITE]
    assert "secret" not in rows[1].trouble and rows[1].trouble


def test_the_view_says_when_it_was_looked_and_will_be(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "s.zip", "w") as archive:
        archive.writestr("one/SKILL.md", skill_md("one"))
    begun = time.time()
    plant(tmp_path / "own", {"two/SKILL.md": skill_md("two")})
    with page_serving(tmp_path / "s.zip", tmp_path / "own") as server:
        text = words(get(server, "/ui/sources"))
        assert "own none 1 a local folder none" in text
        assert time.strftime("%Y", time.gmtime(begun)) in text or "s.zip" in text
        assert str(tmp_path / "own") not in text
