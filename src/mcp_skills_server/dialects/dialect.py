"""Interface of a dialect: one protocol for skills over MCP, its capabilities and its encoders.

A dialect is a module with a `Dialect` and a row in `table.py`. Its functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.model import Json, Skill, Snapshot, Standing

Entry: TypeAlias = "dict[str, Json]"
"""A skill as `skills/list` shows it."""
Result: TypeAlias = "dict[str, Json]"


def is_initial(settings: Mapping[str, Any]) -> bool:
    """Return whether the settings of an extension are of its initial revision, the one known here.

    A peer does not enable an extension of a revision that it does not know (S40-55).
    """
    return settings.get("revision") is None


def cacheable(result: Mapping[str, Json], ttl_ms: int, next_cursor: str | None = None) -> Result:
    """Add the envelope of MCP's complete results that a client may cache, and a page's cursor."""
    out: Result = {"resultType": "complete", **result, "ttlMs": ttl_ms, "cacheScope": "private"}
    if next_cursor is not None:
        out["nextCursor"] = next_cursor
    return out


class EntryContext(NamedTuple):
    """A skill with the context that its entry depends on.

    `snapshot` and `least` select the skills among which it is served; `served` are the server's
    other tools, prompts and resources.
    """

    skill: Skill
    snapshot: Snapshot
    least: Standing
    served: Served


class EntryResult(NamedTuple):
    """A `skills/get` result made of the skill's entry in the client's `skills/list`."""

    write: Callable[[Entry], Result]


class InstructionsResult(NamedTuple):
    """A `skills/get` result made of the skill's instructions, with arguments filled in."""

    # from the skill, its instructions, and the link text by path of each linked file
    write: Callable[[EntryContext, str, Mapping[str, str]], Result]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dialect:
    """One protocol for skills over MCP.

    Attributes:
        name: its value of `--dialect`.
        least: the lowest standing of a skill that it lists.
        capabilities: its additions to the server's capabilities.
        extensions: its additions to `extensions` there; a client that declares one gets it alone.
        entry: encodes a skill for `skills/list`.
        needs_served: returns True if a skill's entry depends on the server's other features.
        parameter: the parameter of `skills/get` that identifies a skill.
        find: returns the skill of a parameter, with at least this standing, or raises RequestError.
        result: the kind of result of `skills/get`.
        with_envelope: wraps a result of `skills/list` or `skills/get` with its lifetime in ms.
        notifications: the list-changed method, by its key in the filter of `subscriptions/listen`.
    """

    name: str
    least: Standing
    capabilities: Mapping[str, Json] = field(default_factory=dict[str, Json])
    extensions: Mapping[str, Json] = field(default_factory=dict[str, Json])
    entry: Callable[[EntryContext], Entry]
    needs_served: Callable[[Skill], bool]
    parameter: str
    find: Callable[[Snapshot, str, Standing], Skill]
    result: EntryResult | InstructionsResult
    with_envelope: Callable[[Result, int], Result] | None = None
    notifications: Mapping[str, str] = field(default_factory=dict[str, str])
