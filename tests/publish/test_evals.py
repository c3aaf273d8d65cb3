"""The folder evals of a skill is its author's: it is served from a folder, and published only when asked."""

from __future__ import annotations

from pathlib import Path

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.publish.publication import Publication
from tables import each_row
from wire import write_skill


@each_row(("signed", "asked", "published"), [(False, False, False), (False, True, True), (True, False, True)])
def test_evals_are_left_out_of_what_is_published(tmp_path: Path, signed: bool, asked: bool, published: bool) -> None:
    place = write_skill(tmp_path / "a", references__guide_md="x", evals__evals_json="{}")
    if signed:  # its signature is about all files
        (place / "skill.oms.sig").write_text("x")
    with Registry([tmp_path]) as registry:
        assert "evals/evals.json" in registry.snapshot.skills["a"].files
        publication = Publication(registry, evals=asked)
        edition = publication.edition()
        assert ("evals/evals.json" in publication.unpacked(edition.skills["a"])) is published
        named = {each.path for each in publication.tree(edition)}
        assert any(each.endswith("/a/evals/evals.json") for each in named) is published
        assert (b"evals" in edition.index_0_1) is published
        assert publication.edition().digest == edition.digest
