"""Texts and questions are folded to the same words."""

from __future__ import annotations

from dataclasses import replace

from dialects import build
from mcp_skills_server.runtime.search_index import WEIGHTS
from mcp_skills_server.runtime.search_text import names_of, texts_of, title_words


def test_a_skill_has_a_text_for_each_weight_and_goes_by_its_name_and_its_path() -> None:
    skill = build.skill("acme/release-notes", title="Notes", tags=["Zebras"], description="Writes them.")
    skill = replace(skill, reading=skill.reading._replace(opening="Begins so."))
    texts = texts_of(skill)
    *fields, opening = texts
    assert opening == "Begins so."
    named = [each for each in WEIGHTS if each != "concepts"]  # the index adds these
    assert dict(zip(named, fields, strict=True))["tags"] == "Zebras"
    assert names_of(texts) == {"releasenotes", "acmereleasenotes"}


def test_of_a_plural_the_singular_is_spelt_too() -> None:
    assert title_words(("release-notes", "Glass", "tags 2", "description")) == {
        "release", "notes", "note", "glass", "tags",
    }  # fmt: skip
