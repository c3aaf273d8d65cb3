"""Tags, wherever and however the author wrote them: one rule for every protocol that shows them."""

from __future__ import annotations

from collections.abc import Mapping

from mcp_skills_server.format import hidden
from mcp_skills_server.model import Json


def tags_of(frontmatter: Mapping[str, Json]) -> list[Json]:
    """`tags` from the top level, else from `metadata`: a list, or one text with commas or blanks between (X-14).

    Hidden characters are left out.
    """
    metadata = frontmatter.get("metadata")
    value = frontmatter.get("tags", metadata.get("tags") if isinstance(metadata, dict) else None)
    if isinstance(value, str):
        found = value.split(",") if "," in value else value.split()
    else:
        found = [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
    return [tag for each in found if (tag := hidden.without(each).strip())]
