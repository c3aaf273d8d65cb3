"""Limits of the AI Catalog."""

from __future__ import annotations

import json
from typing import Any

import published
from mcp_skills_server.dialects import jsonrpc
from mcp_skills_server.dialects.aicatalog import CatalogSkill, catalog
from mcp_skills_server.model import Skill
from tables import each_row

from .build import digest, skill


@each_row(("given", "shown"), [(0, None), (1, None), (2, 2), (5, 5), (6, 5)])
def test_catalog_lists_the_index_and_500_skills_with_2_to_5_queries(given: int, shown: int | None) -> None:
    published = CatalogSkill(skill("a", version="1.0"), "/a.zip", digest("a"), "application/zip", ["How?"] * given)
    document: Any = catalog("https://me@example.com:8000", "/index.json", [published] * 501, has_card=False)
    assert document["host"] == {"displayName": "example.com-8000"}
    assert len(document["entries"]) == 501
    assert document["entries"][0]["url"] == "https://me@example.com:8000/index.json"
    last = document["entries"][-1]
    assert (last["type"], last["displayName"], last["version"]) == ("application/agent-skills+zip", "a", "1.0")
    assert last.get("representativeQueries") == (shown and ["How?"] * shown)


def entries_of(one: Skill, media_type: str, signature: str | None = None, **options: Any) -> list[Any]:
    """Return the entries of a site with its card and this skill: the card, the index and the skill."""
    entry = CatalogSkill(one, "/a", digest("a"), media_type, signature=signature)
    document: Any = catalog("https://example.com", "/index.json", [entry], has_card=True, **options)
    assert published.faults(published.ARD if options else published.AI_CATALOG, document) == []
    return document["entries"]


DESCRIBED = {"displayName", "description", "version"}


def test_catalog_repeats_nothing_that_an_artifact_says_itself() -> None:
    one = skill("a", title="A title", version="1.0")
    card, index, entry = entries_of(one, "text/markdown")
    assert ("displayName" in card, "displayName" in index) == (False, True)
    assert not DESCRIBED & entry.keys()
    assert [shown.keys() >= DESCRIBED for shown in entries_of(one, "application/zip")] == [False, False, True]
    in_ard = entries_of(one, "text/markdown", for_ard=True)
    assert in_ard[0]["displayName"] == "Agent Skills" and in_ard[2].keys() >= DESCRIBED


def test_skill_called_index_has_an_identifier_of_its_own() -> None:
    identifiers = [entry["identifier"] for entry in entries_of(skill("index"), "application/zip")]
    assert identifiers[1:] == ["urn:air:example.com:skills:index", "urn:air:example.com:skill:index"]


def test_signature_is_an_attestation_that_the_site_contributes() -> None:
    signed, path = skill("a", ["skill.oms.sig"]), "/a/skill.oms.sig"
    attestation = {
        "type": "OpenSSF-Model-Signature", "uri": f"https://example.com{path}", "digest": digest("a/skill.oms.sig"),
        "size": 13,
    }  # fmt: skip
    (*_, entry) = entries_of(signed, "application/zip", signature=path)
    assert entry["trustManifests"] == [{"contributor": "https://example.com", "attestations": [attestation]}]
    assert "trustManifests" not in entries_of(signed, "application/zip", signature=path, for_ard=True)[2]


# A lone surrogate, two that are one character, one in the wrong order, and noncharacters.
@each_row(("given", "shown"), [
    ("a\ud800b", "a\ufffdb"), ("\ud83d\ude00", "\U0001f600"), ("\ude00\ud83d", "\ufffd\ufffd"),
    ("\ufdd0\uffff", "\ufffd\ufffd"), ("\U0010fffe\U0001fffd\ufffc", "\ufffd\U0001fffd\ufffc"), ("日本 é", "日本 é"),
])  # fmt: skip
def test_text_of_the_catalog_is_valid_i_json(given: str, shown: str) -> None:
    one = skill("a", title=given, version=given, description=given)
    entry = CatalogSkill(one, "/a", digest("a"), "application/zip", [given, given])
    document: Any = catalog("https://example.com", "/i", [entry], has_card=True)
    assert json.loads(jsonrpc.dump(document).decode("utf-8")) == document
    last = document["entries"][-1]
    assert [last[key] for key in sorted(DESCRIBED)] == [shown] * 3
    assert last["representativeQueries"] == [shown] * 2
