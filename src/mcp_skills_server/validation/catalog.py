"""Rules that read the whole catalog: what shows only among several skills."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from mcp_skills_server.format.dependencies import Served, resolve
from mcp_skills_server.model import SKILL_MD, Snapshot, Standing
from mcp_skills_server.validation.rule import Finding, Rules

_NAMED: Final = 5

RULES = Rules[Snapshot]()


@RULES.rule("name-shared", deep=True)
def _name_shared(snapshot: Snapshot) -> Iterator[Finding]:
    for path in snapshot.paths(Standing.VALID):
        name = snapshot.skills[path].name
        sharing = snapshot.named(name, Standing.VALID)
        if len(sharing) > 1:
            yield Finding(f"the name {name} is also that of {_others(path, sharing)}", skill=path)


def _others(path: str, sharing: Sequence[str]) -> str:
    """Return the paths beside this one, a few by name: the name of ten thousand skills must not make each line so
    long.
    """
    named = [each for each in sharing[: _NAMED + 1] if each != path][:_NAMED]
    left = len(sharing) - 1 - len(named)
    return ", ".join(named) + (f" and {left:,} more" if left else "")


@RULES.rule("dependency-unresolved", deep=True)
def _dependency_unresolved(snapshot: Snapshot) -> Iterator[Finding]:
    """Of `dependencies` only skills' resources are judged; tools and prompts are the server's matter."""
    for path in snapshot.paths(Standing.VALID):
        for missing in resolve(snapshot.skills[path], snapshot, Served(), Standing.VALID).missing:
            if missing.startswith("resource skill://"):
                message = f"the {missing} that it depends on is no file of a served skill"
                yield Finding(message, path=SKILL_MD, skill=path)
