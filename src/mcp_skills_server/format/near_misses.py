"""Near misses: files outside of skills that are skills but for their names. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from mcp_skills_server.codes import problem
from mcp_skills_server.format.ignored import ARCHIVES
from mcp_skills_server.model import SKILL_MD, Problem

_NO_LETTERS: Final = re.compile(r"[\W\d_]+")
_NEAR: Final = frozenset((
    "skill", "skillmd", "skillsmd", "skilltxt", "skillmdtxt", "skillmdmd", "skillmdx",
    "skillmarkdown", "skillcopymd",
))  # fmt: skip
"""Letters of names that people and systems write for SKILL.md, such as `SKILL (1).md`."""


def candidates(names: Collection[str], beside_skills: bool) -> Iterator[str]:
    """Yield the names of a folder's files that may be near misses, in order.

    `beside_skills` is True for a folder that holds skills directly, or may.
    """
    texts = {name for name in names if name.lower().endswith(".md")}
    for name in sorted(names):
        is_alone = beside_skills or texts == {name}
        is_archive = beside_skills and name.lower().endswith(ARCHIVES)
        if _is_near(name) or is_archive or (name in texts and is_alone):
            yield name


def judge(location: str, raw: bytes, beside_skills: bool) -> Problem | None:
    """Return the note on a candidate at a root-relative path, or None if it is no near miss."""
    from mcp_skills_server.format.frontmatter import parse  # late: most folders have no candidate

    folder, _, name = location.rpartition("/")
    if name.lower().endswith(ARCHIVES):
        hint = "unpack it, or give it as a ROOT of its own"
        return problem("near-miss", f"{location} is an archive, and is not searched", hint=hint)
    fields = parse(raw).frontmatter or {}
    own = fields.get("name")
    if not (isinstance(own, str) and isinstance(fields.get("description"), str)):
        return None
    if not (_is_near(name) or beside_skills or folder.rpartition("/")[2] in {own, name[:-3]}):
        return None
    return problem("near-miss", f"{location} begins as a skill does, but has another name")


def _is_near(name: str) -> bool:
    return name.lower() != SKILL_MD.lower() and _NO_LETTERS.sub("", name.lower()) in _NEAR
