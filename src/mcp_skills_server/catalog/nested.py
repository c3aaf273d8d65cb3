"""Skills that lie in the folder of another one: who may read the outer one need not be let read them."""

from __future__ import annotations

from bisect import bisect_left

from mcp_skills_server.model import Skill, Snapshot, Standing


def nested_in(whole: Snapshot, skill: Skill) -> set[str]:
    """Return where in the folder of a skill there are others.

    That includes one whose SKILL.md is no file that can be read, which a gate refuses, or whose SKILL.md is just gone.

    Args:
        whole: all skills, as they are without grants.
        skill: one of them, whole.
    """
    out = set(skill.nested)
    before, paths = f"{skill.path}/", whole.paths(Standing.UNUSABLE)
    at = bisect_left(paths, before)
    while at < len(paths) and paths[at].startswith(before):
        if whole.skills[paths[at]].root == skill.root:
            out.add(paths[at].removeprefix(before))
        at += 1
    return out
