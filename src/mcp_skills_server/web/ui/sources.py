"""What a viewer is shown of where skills come from."""

from __future__ import annotations

import os

from mcp_skills_server.web.ui.look import Look


def source_name(look: Look, root: int) -> str:
    """The name of a root: its origin, or its folder, of which others than the operator see the last part alone."""
    found = look.runtime.registry.roots[root]
    if found.origin is not None:
        return found.origin
    return found.shown if look.site.local else os.path.basename(found.path) or "folder"
