"""What counts as a pointer of Git LFS."""

from __future__ import annotations

from mcp_skills_server.format.lfs import is_pointer
from tables import each_row

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"


@each_row(
    ("raw", "expected"),
    [(POINTER, True), (b"", False), (b"The " + POINTER, False), (POINTER + b"x" * 1024, False), (POINTER[:30], False)],
)
def test_a_pointer_is_short_and_begins_with_its_version(raw: bytes, expected: bool) -> None:
    assert is_pointer(raw) is expected
