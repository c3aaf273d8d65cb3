"""MCP's own resources."""

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
def test_what_is_not_said_leaves_no_key():
    assert set(resources.descriptor(skill("a"))) == {"uri", "name", "description", "mimeType", "size"}
    bare = skill("acme/a", only={}, standing=Standing.LENIENT)
    seen = resources.descriptor(bare)
    assert set(seen) == {"uri", "name", "mimeType", "size"}
    assert seen["name"] == "a"


ONE = skill("a", ["notes.md", "LICENSE"], heading="T", license="MIT")


@pytest.mark.requirement("S40-27", "S40-10")
@each_row(("path", "expected"), [
    ("references", {"uri": "skill://a/references", "name": "references", "mimeType": "inode/directory"}),
    ("SKILL.md", resources.descriptor(ONE)),
    ("notes.md", {"uri": "skill://a/notes.md", "name": "notes.md", "mimeType": "text/markdown", "size": 8}),
    ("LICENSE", {"uri": "skill://a/LICENSE", "name": "LICENSE", "size": 7}),
])  # fmt: skip
def test_a_child_of_a_directory_tells_type_and_size(path: str, expected: dict[str, Any]):
    found = (ONE, path) if path in ONE.files else None
    assert resources.child(path, f"skill://a/{path}", found) == expected


@each_row(("count", "more"), [(0, False), (1, False), (100, False), (101, True), (10_000, True)])
def test_a_completion_has_at_most_100_values_and_says_when_there_are_more(count: int, more: bool):
    asked = iter(range(count))
    seen = resources.completion(str(number) for number in asked)
    assert seen["completion"] == {"values": [str(number) for number in range(min(count, 100))], "hasMore": more}
    assert seen["resultType"] == "complete"
    assert next(asked, count) == min(101, count)


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
def test_contents_are_text_where_they_are_text_and_else_a_blob(path: str, raw: bytes, expected: dict[str, str]):
    frame = {"resultType": "complete", "ttlMs": 7, "cacheScope": "private"}
    content = {"uri": f"skill://a/{path}", **expected}
    assert resources.contents([resources.content(f"skill://a/{path}", path, raw)], 7) == {
        **frame,
        "contents": [content],
    }


@pytest.mark.requirement("X-3", "S40-18", "MCP-55")
@given(st.binary(max_size=60) | st.text(max_size=30).map(str.encode), st.sampled_from(["a.md", "a.png", "a", "a.json"]))
@example(b"\xef\xbb\xbf\r\n\r\0", "a.md")
def test_contents_give_the_very_bytes_back(raw: bytes, path: str):
    item: Any = resources.content("skill://a/x", path, raw)
    assert ("text" in item) != ("blob" in item)
    assert (item["text"].encode() if "text" in item else base64.b64decode(item["blob"], validate=True)) == raw
