"""Agent Skills Discovery 0.2.0 and 0.1.0: decoding of indexes, and verification of files."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialects.build import JSON
from dialects.wellknown.indexes import DIGEST, HEX, OLD_URL, URL, decode_index, decode_old_index, fields, old_fields
from mcp_skills_server.dialects import wellknown
from mcp_skills_server.dialects.wellknown import SCHEMA, IndexRefusedError, SiteEntry, SiteIndex, decode
from tables import each_row


@pytest.mark.requirement("WK-45", "WKO-8")
def test_unknown_fields_are_ignored():
    index = decode_index(fields(files=["x"], version="2"), version=3, extra={"a": []})
    assert index == SiteIndex("0.2.0", (SiteEntry("a", "Does a.", "archive", "https://example.com/a.tar.gz", DIGEST),))


@pytest.mark.requirement("WK-42", "WK-43", "X-23")
@each_row("schema", [SCHEMA + "/", SCHEMA.upper(), SCHEMA.replace("0.2.0", "0.3.0"), "\x1b[31m", "", None, 2, []])
def test_index_of_an_unknown_version_is_ignored_with_a_warning(schema: Any):
    index = decode(json.dumps({"$schema": schema, "skills": [fields()]}).encode(), URL)
    assert (index.version, index.entries, index.unusable) == (None, (), ())
    assert decode(json.dumps({"$schema": schema, "items": {}}).encode(), URL).version is None
    (warning,) = index.warnings
    assert "has an unknown version" in warning and warning.isprintable()


@pytest.mark.requirement("WK-44", "WK1-14", "WKO-11", "WK-63")
@each_row("url", [URL, OLD_URL, "https://example.com/docs/.well-known/skills/index.json"])
def test_index_without_a_schema_has_version_0_1_0(url: str):
    index = decode_old_index(old_fields(files=["SKILL.md", "a b/c%.md"]), url=url)
    (entry,) = index.entries
    base = url.removesuffix("index.json")
    files = {"SKILL.md": f"{base}a/SKILL.md", "a b/c%.md": f"{base}a/a%20b/c%25.md"}
    assert entry == SiteEntry("a", "Does a.", None, "", "", files)
    assert index.version == "0.1.0" and "no digests to verify files" in index.warnings[0]


@pytest.mark.requirement("WK-16")
@each_row(("url", "resolved"), [
    ("/x/a.zip", "https://example.com/x/a.zip"),
    ("a/SKILL.md", "https://example.com/.well-known/agent-skills/a/SKILL.md"),
    ("../a.zip", "https://example.com/.well-known/a.zip"),
    ("?skill=a", "https://example.com/.well-known/agent-skills/index.json?skill=a"),
    ("https://cdn.example.net/a.zip#part", "https://cdn.example.net/a.zip"),
    ("http://127.0.0.1:9/a.zip", "http://127.0.0.1:9/a.zip"),
    ("//cdn.example.net/a.zip", "https://cdn.example.net/a.zip"), ("/a%20b.zip", "https://example.com/a%20b.zip"),
])  # fmt: skip
def test_entry_url_is_resolved_against_the_index_url(url: str, resolved: str):
    (entry,) = decode_index(fields(url=url)).entries
    assert entry.url == resolved


@pytest.mark.requirement("WK-2", "WK-3", "WK-4", "WK-5", "WK-9", "WK-10", "WK-11", "WK-13", "WKO-3")
@each_row(("invalid", "reason"), [
    (None, "it is not an object"), (["a"], "it is not an object"), (fields(name=...), "there is no name"),
    (fields(name=""), "the name is empty or not text"), (fields(name="x" * 65), "at most 64"),
    (fields(name="A"), "the name holds 'A'"), (fields(name="a\n"), "the name holds '\\n'"),
    (fields(name="-a"), "hyphen"), (fields(name="a--b"), "hyphen"),
    (fields(description=...), "there is no description"),
    (fields(description=["a"]), "the description is not text"),
    (fields(description=" "), "the description is empty"), (fields(description="x" * 1025), "at most 1024"),
    (fields(description="\ud800"), "lone surrogate"), (fields(type=...), "it has no type"),
    (fields(digest=...), "its digest is not"), (fields(digest=HEX), "its digest is not"),
    (fields(digest=DIGEST.upper()), "its digest is not"), (fields(digest=DIGEST + "\n"), "its digest is not"),
    (fields(digest="sha512:" + HEX * 2), "its digest is not"), (fields(url=...), "it has no url"),
    (fields(url=""), "it is empty, or contains a character that no URL may contain"),
    (fields(url="/a b.zip"), "contains a character that no URL may contain"),
    (fields(url="\\\\evil\\a.zip"), "contains a character that no URL may contain"),
    (fields(url="/é.zip"), "contains a character that no URL may contain"),
    (fields(url="file:///etc/passwd"), "not an http or https URL"),
    (fields(url="https://user:secret@example.com/a"), "a user name or a password"),
    (fields(url="https://@example.com/a"), "a user name or a password"), (fields(url="http:///a"), "has no host"),
    (fields(url="https://%31/a"), "has no host"), (fields(url="https://a:b/c"), "cannot be read as a URL"),
    (fields(url="https://[::1/c"), "cannot be read as a URL"),
])  # fmt: skip
def test_invalid_entry_is_reported_and_the_others_are_kept(invalid: Any, reason: str):
    index = decode_index(fields(name="first"), invalid, fields(name="last"))
    assert [entry.name for entry in index.entries] == ["first", "last"]
    (unusable,) = index.unusable
    assert unusable.position == 2 and unusable.is_fault
    assert reason in unusable.reason
    assert str(unusable).isprintable() and len(str(unusable)) < 250


@pytest.mark.requirement("WK-10", "WK-46", "X-23")
def test_entry_of_an_unknown_type_is_skipped_without_a_fault():
    index = decode_index(fields(name="first", type="mcp-bundle", url=..., digest=...), fields(name="last"))
    assert [entry.name for entry in index.entries] == ["last"]
    (unusable,) = index.unusable
    assert str(unusable) == "first: its type 'mcp-bundle' is unknown" and not unusable.is_fault


def test_first_usable_entry_of_a_name_wins():
    same_name = fields(digest="none"), fields(type="new"), fields(url="/1"), fields(url="/2")
    index = decode_index(*same_name, fields(name="b"), fields(url="/3"))
    assert [(entry.name, entry.url[-2:]) for entry in index.entries] == [("a", "/1"), ("b", "gz")]
    assert [unusable.position for unusable in index.unusable] == [1, 2, 4, 6]
    assert index.unusable[-1].reason == "an entry before it has the same name"


@pytest.mark.requirement("WK1-3", "WK1-4", "WK1-5", "WK1-7", "WK1-8", "WK1-9")
@each_row(("invalid", "reason"), [
    ("a", "it is not an object"), (old_fields(description=""), "description"), (fields(), "it has no list 'files'"),
    (old_fields(files=["SKILL.md", 1]), "it has no list 'files'"), (old_fields(files=[]), "lacks SKILL.md"),
    (old_fields(files=["SKILL.md", "../a"]), "does not allow the file name '../a'"),
    (old_fields(files=["SKILL.md", "/a"]), "does not allow the file name '/a'"),
    (old_fields(files=["SKILL.md", "a\\b"]), "does not allow the file name"),
    (old_fields(files=["SKILL.md", "é"]), "does not allow the file name"),
    (old_fields(files=["SKILL.md", "SKILL.md"]), "appears twice"),
    (old_fields(files=["SKILL.md", "C:/a"]), "begins with a drive letter"),
    (old_fields(files=["SKILL.md", "a//b"]), "is not a plain path"),
    (old_fields(files=["SKILL.md", *map(str, range(1000))]), "has 1001 files, at most 1000"),
])  # fmt: skip
def test_invalid_old_entry_is_reported_and_the_others_are_kept(invalid: Any, reason: str):
    index = decode_old_index(old_fields(name="first"), invalid, old_fields(name="last"))
    assert [entry.name for entry in index.entries] == ["first", "last"]
    (unusable,) = index.unusable
    assert unusable.position == 2 and reason in unusable.reason


@each_row(("raw", "reason"), [
    (b"", "is not JSON"), (b'{"skills":\n [,]}', "is not JSON (Expecting value: line 2 column 3"),
    (b"\xff\xfe{\0}\0", "is not JSON"), (b'{"skills": [NaN]}', "is not JSON"),
    (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "is not JSON"),
    (b'{"skills": [' + b"9" * 5000 + b"]}", "is not JSON"),
    (b"<!DOCTYPE html><title>Sign in</title>", "a web page"), (b"\xef\xbb\xbf\n <html>", "a web page"),
    (b"[]", "not an object"), (b"{}", "no list 'skills'"), (b'{"skills": {"a": 1}}', "no list 'skills'"),
    (json.dumps({"$schema": SCHEMA, "skills": None}).encode(), "no list 'skills'"),
    (b'{"skills": [' + b"1," * 20_000 + b"1]}", "has 20001 entries, at most 20000"),
    (b" " * ((16 << 20) + 1), "has 16777217 bytes, at most 16777216"),
])  # fmt: skip
def test_invalid_index_is_refused_with_one_line(raw: bytes, reason: str):
    with pytest.raises(IndexRefusedError, match=re.escape(reason)) as caught:
        decode(raw, URL)
    assert str(caught.value).isprintable()


def test_index_at_its_limits_is_decoded():
    raw = json.dumps({"$schema": SCHEMA, "skills": [None] * 20_000}).encode()
    assert len(decode(raw + b" " * ((16 << 20) - len(raw)), URL).unusable) == 20_000
    assert decode_old_index(old_fields(files=["SKILL.md", *map(str, range(999))])).entries
    (unusable,) = decode_index(fields(name="x" * 65)).unusable
    assert unusable.name == "x" * 64


@given(
    st.dictionaries(st.sampled_from(["name", "type", "description", "url", "digest", "files"]), JSON),
    st.sampled_from([fields, old_fields]),
)
def test_any_entry_is_decoded_or_reported(changed: dict[str, Any], make: Any):
    entry = make(**changed)
    for index in (decode_index(entry, fields(name="z")), decode_old_index(entry, old_fields(name="z"))):
        assert index.entries[-1].name == "z"
        for each in index.entries:
            assert re.fullmatch("[a-z0-9-]{1,64}", each.name)


@given(st.text(max_size=30) | st.from_regex(r"(https?:)?//?[a-z@:\[\]%./?#\\ \t]{0,20}", fullmatch=True))
def test_any_accepted_url_is_http_or_https(url: str):
    for entry in decode_index(fields(url=url)).entries:
        assert re.match(r"https?://[A-Za-z0-9._\[\]:-]+(:[0-9]+)?([/?]|$)", entry.url)
        assert wellknown.origin(entry.url)


RAW = b"---\nname: a\ndescription: >\n  Does\n  a.\n---\nRead on.\n"
ENTRY = SiteEntry("a", "Does a.", "archive", "https://example.com/a.zip", DIGEST)


@pytest.mark.requirement("WK-14", "WK-15", "WK-27", "WK-48", "WK-49", "WK-60", "WK-61")
def test_verify_digest_refuses_other_bytes_and_malformed_digests():
    digest = "sha256:" + hashlib.sha256(RAW).hexdigest()
    wellknown.verify_digest(RAW, digest)
    for raw, other in ((RAW + b" ", digest), (RAW, ""), (RAW, HEX), (RAW, digest.upper())):
        with pytest.raises(wellknown.DigestMismatchError) as caught:
            wellknown.verify_digest(raw, other)
        assert other in str(caught.value) and str(caught.value).isprintable()


@pytest.mark.requirement("WK-12", "WK-18", "WKN-3")
def test_files_of_the_listed_skill_pass():
    files = {"SKILL.md": (RAW, False), "scripts/a.sh": (b"", True)}
    assert wellknown.compare_files(ENTRY, files) == (None, None)
    lenient = b"---\nname: a\ndescription: Does a.\nmetadata: {version: 1.0}\ncolor: red\n---\n"
    assert wellknown.compare_files(ENTRY, {"SKILL.md": (lenient, False)}) == (None, None)
    other = {"SKILL.md": (b"---\nname: a\ndescription: Does b.\n---\n", False)}
    assert wellknown.compare_files(ENTRY, other) == (None, "its SKILL.md has another description than the index")


@pytest.mark.requirement("WK-18", "WK-23", "WKN-3", "WKO-7")
@each_row(("files", "reason"), [
    ({}, "it has no SKILL.md"), ({"skill.md": RAW}, "it has no SKILL.md but 'skill.md'"),
    ({"wrapper/SKILL.md": RAW, "wrapper/a": b""}, "not at the root of its archive but in 'wrapper'"),
    ({"SKILL.md": b"Read on."}, "cannot be read: the file does not begin"),
    ({"SKILL.md": b"\xff"}, "cannot be read: byte 0xff is not UTF-8"),
    ({"SKILL.md": b"---\nname: b\ndescription: Does b.\n---\n"}, "its SKILL.md has the name 'b'"),
    ({"SKILL.md": b"---\ndescription: Does a.\n---\n"}, "there is no name"),
    ({"SKILL.md": b"---\nname: a\n---\n"}, "there is no description"),
    ({"SKILL.md": b"---\nname: a\ndescription: '%s'\n---\n" % (b"x" * 1025)}, "at most 1024"),
])  # fmt: skip
def test_files_of_another_skill_are_refused(files: dict[str, bytes], reason: str):
    refusal = wellknown.compare_files(ENTRY, {path: (raw, False) for path, raw in files.items()}).refusal
    assert refusal is not None and reason in refusal and refusal.isprintable()
