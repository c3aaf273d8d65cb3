"""Skills that lie in the folder of another one: who may read the outer one need not be let read them."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from mcp_skills_server.model import SKILL_MD, Skill, Snapshot, Standing

_NESTED: Final = f"/{SKILL_MD}"


def nested_in(whole: Snapshot, skill: Skill) -> set[str]:
    """Where in the folder of a skill there are others, also those whose SKILL.md is no file that can be read, or just
    gone.

    Args:
        whole: all skills, as they are without grants.
        skill: one of them, whole.
    """
    out = {path.removesuffix(_NESTED) for path in skill.files if path.endswith(_NESTED)}
    before, paths = f"{skill.path}/", whole.paths(Standing.UNUSABLE)
    at = bisect_left(paths, before)
    while at < len(paths) and paths[at].startswith(before):
        if whole.skills[paths[at]].root == skill.root:
            out.add(paths[at].removeprefix(before))
        at += 1
    return out
