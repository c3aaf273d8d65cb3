"""Agent Skills Discovery 0.2.0 and 0.1.0: the publisher."""

from __future__ import annotations

import json
from typing import Any
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
def test_an_index_has_the_schema_and_an_entry_for_each_skill():
    assert wellknown.index(published(skill("lone"), skill("more", ["scripts/a.sh"]))) == {
        "$schema": "https://schemas.agentskills.io/discovery/0.2.0/schema.json",
        "skills": [
            {
                "name": "lone",
                "type": "skill-md",
                "description": "Does lone.",
                "url": f"/.well-known/agent-skills/lone/{HEX}/SKILL.md",
                "digest": DIGEST,
            },
            {
                "name": "more",
                "type": "archive",
                "description": "Does more.",
                "url": f"/.well-known/agent-skills/more/{HEX}/more.tar.gz",
                "digest": DIGEST,
            },
        ],
    }


@pytest.mark.requirement("WK-16", "X-20")
@each_row(
    ("base", "start"),
    [
        ("", "/.well-known/"),
        ("https://cdn.example.com", "https://cdn.example.com/.well-known/"),
        ("https://cdn.example.com/v1/", "https://cdn.example.com/v1/.well-known/"),
        ("/behind/a/proxy", "/behind/a/proxy/.well-known/"),
    ],
)
def test_urls_are_path_absolute_or_absolute(base: str, start: str):
    index: Any = wellknown.index(published(skill("a")), base)
    assert index["skills"][0]["url"] == f"{start}agent-skills/a/{HEX}/SKILL.md"


@pytest.mark.requirement("WK-32", "WK-33", "WK-34", "X-7")
@each_row(
    ("suffix", "kind", "end", "media_type"),
    [
        ("", "skill-md", "SKILL.md", "text/markdown"),
        (".tar.gz", "archive", "a.tar.gz", "application/gzip"),
        (".zip", "archive", "a.zip", "application/zip"),
    ],
)
def test_an_artifact_stands_where_its_digest_says(suffix: str, kind: str, end: str, media_type: str):
    made = wellknown.artifact("a", DIGEST, suffix)
    assert (made.kind, made.digest, made.media_type) == (kind, DIGEST, media_type)
    assert made.path == f"/.well-known/agent-skills/a/{HEX}/{end}"


@pytest.mark.requirement("WK-2", "WK-3", "WK-4", "WK-5", "WKO-18")
def test_valid_skills_are_chosen_by_name():
    skills = [skill("z/a"), skill("b"), skill("y/b", standing=Standing.LENIENT), skill("d", standing=Standing.UNUSABLE)]
    choice = wellknown.publishable(snapshot(*skills))
    assert [each.name for each in choice.skills] == ["a", "b"]
    assert choice.left_out == ()


def test_copies_of_one_skill_are_published_once() -> None:
    one, other = skill("a/x"), skill("b/x")
    unproved = wellknown.publishable(snapshot(one, other))
    assert not unproved.skills and len(unproved.left_out) == 2
    for each in (one, other):
        each.files["SKILL.md"].digest = "sha256:" + "0" * 64
    assert wellknown.publishable(snapshot(one, other)) == wellknown.Choice((one,), ())
    other.files["SKILL.md"].digest = "sha256:" + "1" * 64
    assert not wellknown.publishable(snapshot(one, other)).skills


def test_of_skills_that_share_a_name_none_is_published_and_each_is_told():
    choice = wellknown.publishable(snapshot(skill("acme/refunds"), skill("beta/refunds"), skill("other")))
    assert [each.path for each in choice.skills] == ["other"]
    assert choice.left_out == (
        ("acme/refunds", "refunds is also the name of beta/refunds"),
        ("beta/refunds", "refunds is also the name of acme/refunds"),
    )


@pytest.mark.requirement("WK1-1", "WK1-2", "WK1-3", "WK1-4", "WK1-5", "WK1-6", "WK1-7", "X-19", "WK-63")
def test_an_old_index_lists_files_with_skill_md_first():
    one = skill("a", ["Z.md", "ANOTHER.md", "scripts/run me.sh"])
    assert wellknown.index_0_1([(one, DIGEST)]) == {
        "skills": [
            {
                "name": "a",
                "description": "Does a.",
                "files": ["SKILL.md", "ANOTHER.md", "Z.md", "scripts/run me.sh"],
                "version": DIGEST,
            }
        ]
    }


@pytest.mark.requirement("WK1-8", "WK1-9", "X-19", "WKO-12")
@each_row("bad", ["Grüße.md", "what?.md", "a#b", "a[1].md", "a]", "tab\there", "a\x7f"])
def test_a_skill_with_a_file_name_that_0_1_0_does_not_allow_is_left_out_there(bad: str):
    fine, one = skill("fine", ["a b.md", "~!@$%^&*()_+-={}|;:',.<>`\"/x"]), skill("a", [bad])
    choice = wellknown.publishable_0_1([fine, one])
    assert choice.skills == (fine,)
    ((path, reason),) = choice.left_out
    assert path == "a" and reason.startswith("discovery 0.1.0 does not allow the file name") and reason.isprintable()


def test_an_encoded_index_is_utf8_in_the_order_given_and_ends_in_a_line_break():
    index = wellknown.index(published(skill("b", description="Grüßt."), skill("a")))
    raw = wellknown.encode(index)
    assert json.loads(raw) == index
    assert "Grüßt.".encode() in raw and raw.endswith(b"}\n") and raw.count(b"\n") == 1


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
    assert index.entries == tuple(
        SiteEntry(
            each.name, each.description, artifact.kind, (base or "https://example.com") + artifact.path, artifact.digest
        )
        for each, artifact in pairs
    )
    old = decode(wellknown.encode(wellknown.index_0_1([(each, DIGEST) for each in choice.skills])), OLD_URL)
    assert old.version == "0.1.0" and len(old.entries) + len(old.unusable) == len(skills)
    for entry, each in zip(old.entries, choice.skills, strict=True) if not old.unusable else ():
        assert entry.name == each.name and entry.description == each.description
        assert dict(entry.files) == {
            path: f"https://example.com{wellknown.DIRECTORY_0_1}{each.name}/{quote(path)}" for path in entry.files
        }
        assert entry.files.keys() == each.files.keys()
