"""Whether something may be run for somebody. Asked by conversations and by the Skills Protocol alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from mcp_skills_server.access.grants import Permissions
from mcp_skills_server.model import Skill, printable

_WHAT: Final[Mapping[str, str]] = {"scripts": "A script of", "code": "Code with the files of"}


def policy(permissions: Permissions | None, skill: Skill | None, what: Literal["scripts", "code"]) -> str | None:
    """Why this is not run, None where the grants allow it. What the options allow is for whoever runs it.

    Args:
        permissions: of whoever asks; None where the options alone decide.
        skill: whose script it is, or whose files are beside the code; None for code beside which there is no skill.
        what: "scripts" for what a skill has, "code" for what comes with a call.
    """
    if permissions is None or (permissions.may_any(what) if skill is None else permissions.may(what, skill.path)):
        return None
    thing = "Code" if skill is None else f"{_WHAT[what]} {printable(skill.path)}"
    return (
        f"{thing} is not run for you: whoever runs this server has not granted it. Reach the result another way, or "
        "ask the user"
    )
