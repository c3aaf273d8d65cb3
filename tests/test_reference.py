"""The reference page of the library, which `make docs` builds."""

from __future__ import annotations

import re
from pathlib import Path

import mcp_skills_server

PAGE = Path(__file__).parent.parent / "docs" / "reference.md"


def test_the_reference_has_every_exported_name_once() -> None:
    named = re.findall(r"^::: mcp_skills_server\.(\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(set(mcp_skills_server.__all__) - {"__version__"})
