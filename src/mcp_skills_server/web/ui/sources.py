"""What a viewer is shown of where skills come from."""

from __future__ import annotations

import os

from mcp_skills_server.format import identity
from mcp_skills_server.model import Problem
from mcp_skills_server.web.ui.look import Look


def source_name(look: Look, root: int) -> str:
    """The name of a root: its origin or its folder. Of places on the disk only the operator sees more than the name."""
    found = look.runtime.registry.roots[root]
    if found.origin is not None:
        return found.origin if look.site.local else identity.shown_origin(found.origin)
    return found.shown if look.site.local else os.path.basename(found.path) or "folder"


def shown_problem(look: Look, problem: Problem) -> Problem:
    """A problem as a viewer reads it: where folders lie on the server's disk is the operator's matter."""
    hint = problem.hint and without_folders(look, problem.hint)
    return problem._replace(message=without_folders(look, problem.message), hint=hint)


def without_folders(look: Look, text: str) -> str:
    """What is said of a skill or a root, with the names of roots in place of where they lie on the server's disk."""
    if look.site.local:
        return text
    for root in sorted(look.runtime.registry.roots, key=lambda each: -len(each.path)):
        for place in dict.fromkeys((root.path, root.given, root.shown)):
            if os.sep in place:
                text = text.replace(place, source_name(look, root.index))
    return text
