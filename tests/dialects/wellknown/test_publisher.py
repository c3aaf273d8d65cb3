"""Agent Skills Discovery 0.2.0 and 0.1.0: the publisher."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.build import skill, snapshot
from dialects.wellknown.indexes import DIGEST, HEX, OLD_URL, URL, published
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.dialects.wellknown import SiteEntry, decode
from mcp_skills_server.model import Skill, Snapshot, Standing
from tables import each_row


@pytest.mark.requirement("WK-6", "WK-7", "WK-9", "WK-10", "WK-12", "WK-13", "WK-16", "WK-17", "WK-19", "WK-20", "X-20")
def test_an_index_has_the_schema_and_an_entry_for_each_skill_below_any_base():
    skills = published(skill("more", ["scripts/a.sh"], description="Grüßt."), skill("lone"))
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
def test_an_artifact_stands_where_its_digest_says(suffix: str, kind: str, end: str, media_type: str):
    made = wellknown.artifact("a", DIGEST, suffix)
    assert (made.kind, made.digest, made.media_type) == (kind, DIGEST, media_type)
    assert made.path == f"/.well-known/agent-skills/a/{HEX}/{end}"


def test_copies_of_one_skill_are_published_once() -> None:
    one, other = skill("a/x"), skill("b/x")
    unproved = wellknown.publishable(snapshot(one, other))
    assert not unproved.skills and len(unproved.left_out) == 2
    for each in (one, other):
        each.files["SKILL.md"].digest = "sha256:" + "0" * 64
    assert wellknown.publishable(snapshot(one, other)) == wellknown.Choice((one,), ())
    other.files["SKILL.md"].digest = "sha256:" + "1" * 64
    assert not wellknown.publishable(snapshot(one, other)).skills


@pytest.mark.requirement("WK-2", "WK-3", "WK-4", "WK-5", "WKO-18")
def test_valid_skills_are_published_by_name_and_of_those_that_share_one_none():
    weak = skill("y/other", standing=Standing.LENIENT), skill("d", standing=Standing.UNUSABLE)
    skills = skill("acme/refunds"), skill("beta/refunds"), skill("z/a"), skill("other"), *weak
    choice = wellknown.publishable(snapshot(*skills))
    assert [each.path for each in choice.skills] == ["z/a", "other"]
    assert choice.left_out == (
        ("acme/refunds", "refunds is also the name of beta/refunds"),
        ("beta/refunds", "refunds is also the name of acme/refunds"),
    )


@pytest.mark.requirement("WK1-1", "WK1-2", "WK1-3", "WK1-4", "WK1-5", "WK1-6", "WK1-7", "X-19", "WK-63")
def test_an_old_index_lists_files_with_skill_md_first():
    one = skill("a", ["Z.md", "ANOTHER.md", "scripts/run me.sh"])
    files = ["SKILL.md", "ANOTHER.md", "Z.md", "scripts/run me.sh"]
    entry = {"name": "a", "description": "Does a.", "files": files, "version": DIGEST}
    assert wellknown.index_0_1([(one, DIGEST)]) == {"skills": [entry]}


@pytest.mark.requirement("WK1-8", "WK1-9", "X-19", "WKO-12")
@each_row("bad", ["Grüße.md", "what?.md", "a#b", "a[1].md", "a]", "tab\there", "a\x7f"])
def test_a_skill_with_a_file_name_that_0_1_0_does_not_allow_is_left_out_there(bad: str):
    fine, one = skill("fine", ["a b.md", "~!@$%^&*()_+-={}|;:',.<>`\"/x"]), skill("a", [bad])
    choice = wellknown.publishable_0_1([fine, one])
    assert choice.skills == (fine,)
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
def test_what_is_published_is_understood(skills: list[Skill], base: str):
    choice = wellknown.publishable(Snapshot({each.path: each for each in skills}))
    pairs = published(*choice.skills)
    index = decode(wellknown.encode(wellknown.index(pairs, base)), URL)
    assert (index.version, index.unusable, index.warnings) == ("0.2.0", (), ())
    site = base or "https://example.com"
    assert index.entries == tuple(
        SiteEntry(each.name, each.description, made.kind, site + made.path, made.digest) for each, made in pairs
    )
    old = decode(wellknown.encode(wellknown.index_0_1([(each, DIGEST) for each in choice.skills])), OLD_URL)
    assert old.version == "0.1.0" and len(old.entries) + len(old.unusable) == len(skills)
    for entry, each in zip(old.entries, choice.skills, strict=True) if not old.unusable else ():
        at = f"https://example.com{wellknown.DIRECTORY_0_1}{each.name}"
        assert (entry.name, entry.description) == (each.name, each.description)
        assert dict(entry.files) == {path: f"{at}/{quote(path)}" for path in each.files}
