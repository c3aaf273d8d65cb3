"""The limits of an entry that another server lists."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_skills_server.dialects.listed import EntryRefusedError, parse_entry
from tables import each_row

from .build import digest


def entry(files: int = 2, size: int = 0, length: int = 19) -> dict[str, Any]:
    """An entry with so many files, of which one has a size, and a URI of this length."""
    base = f"skill://{'x' * (length - 19)}/a/"
    names = ["SKILL.md", *(f"f{number}" for number in range(files - 1))]
    listed = [{"uri": base + name, "digest": digest(name), "size": size if name == "f0" else 0} for name in names]
    return {"uri": f"{base}SKILL.md", "frontmatter": {"name": "a", "description": "Does a."}, "resources": listed}


@each_row(("fits", "beyond"), [
    (entry(files=512), entry(files=513)), (entry(size=16 << 20), entry(size=(16 << 20) + 1)),
    (entry(length=2048), entry(length=2049)), (entry(size=0), entry(size=-1)),
])  # fmt: skip
def test_limits_hold_to_the_file_the_byte_and_the_character(fits: dict[str, Any], beyond: dict[str, Any]) -> None:
    assert parse_entry(fits).is_proved and not parse_entry({**fits, "resources": "dynamic"}).is_proved
    with pytest.raises(EntryRefusedError):
        parse_entry(beyond)
