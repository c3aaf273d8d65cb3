"""MCP resources: descriptors, directory entries, completions and contents."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_skills_server.dialects import resources
from mcp_skills_server.model import Standing
from tables import each_row

from .build import skill


@pytest.mark.requirement("S40-10")
def test_descriptor_omits_absent_fields():
    assert set(resources.descriptor(skill("a"))) == {"uri", "name", "description", "mimeType", "size"}
    bare = resources.descriptor(skill("acme/a", only={}, standing=Standing.LENIENT))
    assert set(bare) == {"uri", "name", "mimeType", "size"}
    assert (bare["name"], bare["mimeType"]) == ("a", "text/markdown")


SKILL = skill("a", ["notes.md", "LICENSE"], heading="T", license="MIT")


@pytest.mark.requirement("S40-27", "S40-10")
@each_row(("path", "expected"), [
    ("references", {"uri": "skill://a/references", "name": "references", "mimeType": "inode/directory"}),
    ("SKILL.md", resources.descriptor(SKILL)),
    ("notes.md", {"uri": "skill://a/notes.md", "name": "notes.md", "mimeType": "text/markdown", "size": 8}),
    ("LICENSE", {"uri": "skill://a/LICENSE", "name": "LICENSE", "size": 7}),
])  # fmt: skip
def test_directory_entry_has_media_type_and_size(path: str, expected: dict[str, Any]):
    found = (SKILL, path) if path in SKILL.files else None
    assert resources.child(path, f"skill://a/{path}", found) == expected


@each_row(("count", "more"), [(0, False), (1, False), (100, False), (101, True), (10_000, True)])
def test_completion_has_at_most_100_values_and_reads_one_more(count: int, more: bool):
    numbers = iter(range(count))
    result = resources.completion(str(number) for number in numbers)
    assert result["completion"] == {"values": [str(number) for number in range(min(count, 100))], "hasMore": more}
    assert result["resultType"] == "complete"
    assert next(numbers, count) == min(101, count)


@pytest.mark.requirement("MCP-12", "MCP-23", "MCP-24", "MCP-55", "X-3")
@each_row(("path", "raw", "expected"), [
    ("SKILL.md", b"# T\r\n", {"mimeType": "text/markdown", "text": "# T\r\n"}),
    ("a.md", b"\xef\xbb\xbfx", {"mimeType": "text/markdown", "text": "\ufeffx"}),
    ("LICENSE", b"text", {"mimeType": "text/plain", "text": "text"}),
    ("empty", b"", {"mimeType": "text/plain", "text": ""}),
    ("a.svg", b"<svg/>", {"mimeType": "image/svg+xml", "text": "<svg/>"}),
    ("a.png", b"plain", {"mimeType": "image/png", "blob": "cGxhaW4="}),
    ("a.md", b"\xff", {"mimeType": "text/markdown", "blob": "/w=="}),
    ("data", b"\0", {"mimeType": "application/octet-stream", "blob": "AA=="}),
    ("data", b"\xff", {"mimeType": "application/octet-stream", "blob": "/w=="}),
])  # fmt: skip
def test_content_is_text_if_it_is_utf_8_text_and_else_a_blob(path: str, raw: bytes, expected: dict[str, str]):
    target = f"skill://a/{path}"
    assert resources.contents([resources.content(target, path, raw)], 7) == {
        "resultType": "complete", "ttlMs": 7, "cacheScope": "private", "contents": [{"uri": target, **expected}],
    }  # fmt: skip


@pytest.mark.requirement("X-3", "S40-18", "MCP-55")
@given(st.binary(max_size=60) | st.text(max_size=30).map(str.encode), st.sampled_from(["a.md", "a.png", "a", "a.json"]))
@example(b"\xef\xbb\xbf\r\n\r\0", "a.md")
def test_content_encodes_the_exact_bytes(raw: bytes, path: str):
    item: Any = resources.content("skill://a/x", path, raw)
    assert ("text" in item) != ("blob" in item)
    if "text" in item:
        assert item["text"].encode() == raw
    else:
        assert base64.b64decode(item["blob"], validate=True) == raw
