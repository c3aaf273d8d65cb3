"""tools/interop/skills.schema.json: the specification's examples, and what our client accepts and refuses."""

from __future__ import annotations

from typing import Any

import pytest
from tools.interop.schema import schema_checks, schema_faults

from mcp_skills_server.dialects.remote_entries import EntryRefusedError, parse_entry
from tables import each_row

DIGEST = "sha256:" + 16 * "a1b2"


def skill(path: str = "acme/billing/refunds", *files: str, **changes: Any) -> dict[str, Any]:
    """Return an entry of the kind that the specification shows, with these changes."""
    base = f"skill://{path}/"
    resources = [{"uri": base + file, "digest": DIGEST, "size": 10} for file in ("SKILL.md", *files)]
    frontmatter = {"name": path.rpartition("/")[2], "description": "Refund a customer by the rules of the company."}
    return {"uri": f"{base}SKILL.md", "frontmatter": frontmatter, "resources": resources} | changes


def file(**changes: Any) -> dict[str, Any]:
    return skill(resources=[{"uri": "skill://acme/billing/refunds/SKILL.md", "digest": DIGEST, "size": 1} | changes])


CACHED = {"resultType": "complete", "ttlMs": 300_000, "cacheScope": "public"}
LISTED = {**CACHED, "skills": [skill(), skill("reports/daily", resources="dynamic")]}


@each_row(("definition", "answer"), [
    ("ListSkillsResult", LISTED), ("ListSkillsResult", {**CACHED, "skills": [], "nextCursor": "n", "_meta": {}}),
    ("GetSkillResult", {**CACHED, "skill": skill("pdf-processing", "references/FORMS.md", "scripts/extract.py")}),
    ("GetSkillResult", {**CACHED, "skill": skill(uri="github://o/r/refunds/SKILL.md", frontmatter={
        "name": "refunds", "description": "x", "license": "Apache-2.0", "metadata": {"version": "2.1.0"}})}),
    ("ReadResourceDirectoryResult", {"resultType": "complete", "resources": [
        {"uri": "skill://pdf-processing/templates/invoice.md", "name": "invoice.md", "mimeType": "text/markdown"},
        {"uri": "skill://pdf-processing/templates/regional", "name": "regional", "mimeType": "inode/directory"}]}),
    ("SkillsSettings", {}), ("SkillsSettings", {"directoryRead": True, "revision": "2"}),
])  # fmt: skip
def test_example_of_the_specification_is_valid(definition: str, answer: object) -> None:
    assert schema_faults(definition, answer) == []


@each_row(("definition", "answer"), [
    *(("ListSkillsResult", {key: LISTED[key] for key in LISTED.keys() - {lost}}) for lost in LISTED),
    ("ListSkillsResult", {**LISTED, "ttlMs": -1}), ("ListSkillsResult", {**LISTED, "ttlMs": 0.5}),
    ("ListSkillsResult", {**LISTED, "cacheScope": "shared"}), ("ListSkillsResult", {**LISTED, "nextCursor": None}),
    ("GetSkillResult", {**CACHED, "skill": skill(), "nextCursor": "n"}), ("GetSkillResult", CACHED),
    ("ReadResourceDirectoryResult", {"resultType": "complete", "resources": [{"uri": "skill://a/", "name": "a"}]}),
    ("ReadResourceDirectoryResult", {"resources": []}), ("SkillsSettings", {"directoryRead": "yes"}),
    ("SkillsSettings", None), ("SkillsSettings", {"revision": 2}),
])  # fmt: skip
def test_answer_that_breaks_the_specification_is_invalid(definition: str, answer: object) -> None:
    assert schema_faults(definition, answer) != []


@pytest.mark.requirement("S40-12", "S40-18", "S40-38")
@each_row("entry", [
    *({key: value for key, value in skill().items() if key != lost} for lost in skill()),
    skill(uri="skill://acme/billing/refunds"), skill(resources="static"), skill(resources=None), skill(resources=[]),
    file(digest="sha256:a1b2"), file(digest=DIGEST.upper()), file(size=-1), file(size="1"), file(size=None),
    file(uri="skill://acme/billing/refunds/other.md"), skill(frontmatter={"name": "refunds"}),
    skill(frontmatter={"description": "x"}), skill(frontmatter=["refunds"]),
    skill(frontmatter={"name": 1, "description": "x"}),
])  # fmt: skip
def test_entry_that_the_schema_refuses_is_refused_by_sources(entry: dict[str, Any]) -> None:
    assert schema_faults("Skill", entry) != []
    with pytest.raises(EntryRefusedError):
        parse_entry(entry)


@each_row("entry", [skill(), skill("a", "b/c.md"), skill(resources="dynamic"), skill(more={"x": 1}), file(size=0)])
def test_entry_that_the_schema_allows_is_read_by_sources(entry: dict[str, Any]) -> None:
    assert schema_faults("Skill", entry) == []
    assert parse_entry(entry).uri == entry["uri"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_every_answer_about_the_fixtures_is_valid(era: str) -> None:
    checks = schema_checks(era, None)
    assert [check for check in checks if check.status != "SUCCESS"] == []
    assert {check.id.partition(" ")[0] for check in checks} >= {"settings", "page", "skill", "folder"}
