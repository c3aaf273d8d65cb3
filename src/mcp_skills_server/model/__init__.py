"""Data types that every package uses.

They follow the newest specification (SEP-2640, Agent Skills); older and other protocols adapt in
`dialects/`.
"""

from mcp_skills_server.model.skill import (
    DEEPEST_PATH,
    EVALS,
    MAX_PATH,
    ORIGIN,
    SIGNATURE_FILE,
    SKILL_MD,
    Json,
    Problem,
    Reading,
    Severity,
    Skill,
    SkillFile,
    Standing,
    printable,
)
from mcp_skills_server.model.snapshot import Changes, Snapshot

__all__ = [
    "DEEPEST_PATH", "EVALS", "MAX_PATH", "ORIGIN", "SIGNATURE_FILE", "SKILL_MD", "Changes",
    "Json", "Problem", "Reading", "Severity", "Skill", "SkillFile", "Snapshot", "Standing",
    "printable",
]  # fmt: skip
