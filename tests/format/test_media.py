"""Media types by file name, text detection, and Git LFS pointers."""

from __future__ import annotations

import mimetypes

import pytest

from mcp_skills_server.format.media import as_text, is_lfs_pointer, media_type
from tables import each_row


@pytest.mark.requirement("S40-10")
@each_row(("path", "expected"), [
    ("SKILL.md", "text/markdown"), ("references/a.MD", "text/markdown"), ("scripts/run.py", "text/x-python"),
    ("scripts/run.sh", "application/x-sh"), ("scripts/run.ts", "text/x-typescript"),
    ("a.json", "application/json"), ("a.yaml", "application/yaml"), ("a.html", "text/html"), ("a.csv", "text/csv"),
    ("a.svg", "image/svg+xml"), ("a.png", "image/png"), ("a.JPG", "image/jpeg"), ("a.pdf", "application/pdf"),
    ("a.zip", "application/zip"), ("a.tar.md", "text/markdown"), ("a.unheard-of", None), ("LICENSE", None),
    ("folder.md/LICENSE", None), ("trailing.", None), ("", None), ("a/.json", "application/json"),
])  # fmt: skip
def test_media_type_depends_on_the_name_only(path: str, expected: str | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(mimetypes.types_map, ".md", "application/x-genesis-rom")
    mimetypes.add_type("application/x-genesis-rom", ".md")
    assert media_type(path) == expected


@each_row(("raw", "kind", "expected"), [
    (b"text", "text/plain", "text"), (b"text", None, "text"), (b"", None, ""), (b"a\0b", "text/plain", "a\0b"),
    (b"a\0b", None, None), (b"caf\xe9", "text/plain", None), (b"caf\xe9", None, None),
    (b"text", "image/png", None), (b"text", "application/octet-stream", None), (b"text", "application/pdf", None),
    *((b"text", kind, "text") for kind in (
        "text/x-anything", "application/json", "application/ld+json", "image/svg+xml")),
    (b"\xef\xbb\xbfa\r\nb", "text/markdown", "\ufeffa\r\nb"),
])  # fmt: skip
def test_text_has_a_text_type_and_is_utf_8(raw: bytes, kind: str | None, expected: str | None):
    assert as_text(raw, kind) == expected


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"


def test_lfs_pointer_is_short_and_begins_with_its_version() -> None:
    assert is_lfs_pointer(POINTER)
    for raw in (b"", b"The " + POINTER, POINTER + b"x" * 1024, POINTER[:30]):
        assert not is_lfs_pointer(raw)
