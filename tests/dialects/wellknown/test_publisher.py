"""Agent Skills Discovery 0.2.0 and 0.1.0: encoding of indexes, and choice of skills."""

from __future__ import annotations

import json
from dataclasses import replace
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.build import skill, snapshot
from dialects.wellknown.indexes import DIGEST, HEX, OLD_URL, URL
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.dialects.wellknown import Artifact, SiteEntry, decode
from mcp_skills_server.model import Skill, Snapshot, Standing
from tables import each_row


def with_artifacts(*skills: Skill) -> list[tuple[Skill, Artifact]]:
    suffixes = {"skill-md": "", "archive": ".tar.gz"}
    return [(each, wellknown.artifact(each.name, DIGEST, suffixes[wellknown.kind(each)])) for each in skills]


@pytest.mark.requirement("WK-6", "WK-7", "WK-9", "WK-10", "WK-12", "WK-13", "WK-16", "WK-17")
@pytest.mark.requirement("WK-19", "WK-20", "WK-63", "X-20")
def test_index_has_the_schema_and_an_entry_for_each_skill():
    skills = with_artifacts(skill("more", ["scripts/a.sh"], description="Grüßt."), skill("lone"))
    for base in ("", "https://cdn.example.com", "https://cdn.example.com/v1/", "/behind/a/proxy"):
        at = f"{base.rstrip('/')}/.well-known/agent-skills"
        more = {"name": "more", "type": "archive", "description": "Grüßt.", "url": f"{at}/more/{HEX}/more.tar.gz"}
        lone = {"name": "lone", "type": "skill-md", "description": "Does lone.", "url": f"{at}/lone/{HEX}/SKILL.md"}
        schema = "https://schemas.agentskills.io/discovery/0.2.0/schema.json"
        index = wellknown.index(skills, base)
        assert index == {"$schema": schema, "skills": [{**each, "digest": DIGEST} for each in (more, lone)]}
        raw = wellknown.encode(index)
        assert json.loads(raw) == index
        assert "Grüßt.".encode() in raw and raw.endswith(b"}\n") and raw.count(b"\n") == 1


@pytest.mark.requirement("WK-32", "WK-33", "WK-34", "X-7")
@each_row(("suffix", "kind", "end", "media_type"), [
    ("", "skill-md", "SKILL.md", "text/markdown"), (".tar.gz", "archive", "a.tar.gz", "application/gzip"),
    (".zip", "archive", "a.zip", "application/zip"),
])  # fmt: skip
def test_artifact_path_has_the_digest(suffix: str, kind: str, end: str, media_type: str):
    artifact = wellknown.artifact("a", DIGEST, suffix)
    assert (artifact.kind, artifact.digest, artifact.media_type) == (kind, DIGEST, media_type)
    assert artifact.path == f"/.well-known/agent-skills/a/{HEX}/{end}"


def test_identical_copies_of_a_skill_are_published_once() -> None:
    one, other = skill("a/x"), skill("b/x")
    different = wellknown.publishable(snapshot(one, other))
    assert not different.skills and len(different.left_out) == 2
    same = replace(other, files=one.files)
    assert wellknown.publishable(snapshot(one, same)) == wellknown.Choice((one,), ())


@pytest.mark.requirement("WK-2", "WK-3", "WK-4", "WK-5", "WKO-18")
def test_valid_skills_with_unique_names_are_published():
    weak = skill("y/other", standing=Standing.LENIENT), skill("d", standing=Standing.UNUSABLE)
    skills = skill("acme/refunds"), skill("beta/refunds"), skill("z/a"), skill("other"), *weak
    choice = wellknown.publishable(snapshot(*skills))
    assert [each.path for each in choice.skills] == ["z/a", "other"]
    assert choice.left_out == (
        ("acme/refunds", "refunds is also the name of beta/refunds"),
        ("beta/refunds", "refunds is also the name of acme/refunds"),
    )


@pytest.mark.requirement("WK1-1", "WK1-2", "WK1-3", "WK1-4", "WK1-5", "WK1-6", "WK1-7", "X-19", "WK-63")
def test_old_index_lists_files_with_skill_md_first():
    one = skill("a", ["Z.md", "ANOTHER.md", "scripts/run me.sh"])
    files = ["SKILL.md", "ANOTHER.md", "Z.md", "scripts/run me.sh"]
    entry = {"name": "a", "description": "Does a.", "files": files, "version": DIGEST}
    assert wellknown.index_0_1([(one, DIGEST)]) == {"skills": [entry]}


@pytest.mark.requirement("WK1-8", "WK1-9", "X-19", "WKO-12")
@each_row("name", ["Grüße.md", "what?.md", "a#b", "a[1].md", "a]", "tab\there", "a\x7f"])
def test_skill_with_a_file_name_that_0_1_0_forbids_is_left_out(name: str):
    allowed, forbidden = skill("fine", ["a b.md", "~!@$%^&*()_+-={}|;:',.<>`\"/x"]), skill("a", [name])
    choice = wellknown.publishable_0_1([allowed, forbidden])
    assert choice.skills == (allowed,)
    ((path, reason),) = choice.left_out
    assert path == "a" and reason.startswith("discovery 0.1.0 does not allow the file name") and reason.isprintable()


_SKILL = st.builds(
    lambda name, description, files: skill(name, files, description=description),
    st.from_regex(r"[a-z0-9]{1,5}(-[a-z0-9]{1,5}){0,3}", fullmatch=True),
    st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=50).filter(str.strip),
    st.lists(st.from_regex(r"[a-z]{1,5}(/[a-z ]{0,3}[a-z]){0,2}", fullmatch=True), max_size=3).filter(
        lambda paths: not any(other.startswith(path + "/") for path in paths for other in paths)
    ),
)


@pytest.mark.requirement("WK1-10", "WK1-14")
@given(st.lists(_SKILL, max_size=5, unique_by=lambda each: each.name), st.sampled_from(["", "https://cdn.example/x"]))
def test_encoded_indexes_are_decoded_to_the_same_skills(skills: list[Skill], base: str):
    published = wellknown.publishable(Snapshot({each.path: each for each in skills})).skills
    pairs = with_artifacts(*published)
    index = decode(wellknown.encode(wellknown.index(pairs, base)), URL)
    assert (index.version, index.unusable, index.warnings) == ("0.2.0", (), ())
    site = base or "https://example.com"
    assert index.entries == tuple(
        SiteEntry(each.name, each.description, artifact.kind, site + artifact.path, artifact.digest)
        for each, artifact in pairs
    )
    old = decode(wellknown.encode(wellknown.index_0_1([(each, DIGEST) for each in published])), OLD_URL)
    assert old.version == "0.1.0"
    assert len(old.entries) + len(old.unusable) == len(skills)
    if old.unusable:
        return
    for entry, each in zip(old.entries, published, strict=True):
        at = f"https://example.com{wellknown.DIRECTORY_0_1}{each.name}"
        assert (entry.name, entry.description) == (each.name, each.description)
        assert dict(entry.files) == {path: f"{at}/{quote(path)}" for path in each.files}
