"""Limits of a skill entry listed by another server."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_skills_server.dialects.remote_entries import EntryRefusedError, parse_entry
from tables import each_row

from .build import digest


def entry(files: int = 2, size: int = 0, length: int = 19) -> dict[str, Any]:
    """Return an entry of `files` files, one of which has `size` bytes, with a URI of `length` characters."""
    base = f"skill://{'x' * (length - 19)}/a/"
    names = ["SKILL.md", *(f"f{number}" for number in range(files - 1))]
    resources = [{"uri": base + name, "digest": digest(name), "size": 0} for name in names]
    resources[1]["size"] = size
    return {"uri": f"{base}SKILL.md", "frontmatter": {"name": "a", "description": "Does a."}, "resources": resources}


@each_row(("largest", "too_large"), [
    (entry(files=512), entry(files=513)), (entry(size=16 << 20), entry(size=(16 << 20) + 1)),
    (entry(length=2048), entry(length=2049)), (entry(size=0), entry(size=-1)),
])  # fmt: skip
def test_entry_beyond_a_limit_is_refused(largest: dict[str, Any], too_large: dict[str, Any]) -> None:
    assert parse_entry(largest).is_proved
    assert not parse_entry({**largest, "resources": "dynamic"}).is_proved
    with pytest.raises(EntryRefusedError):
        parse_entry(too_large)
