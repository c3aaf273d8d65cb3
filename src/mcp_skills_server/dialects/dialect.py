"""Interface of a protocol for skills over MCP: how it is announced, and how it finds and writes
skills.

A protocol is a module with a `Dialect`, and a row in `table.py`. Plain values in, plain values out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.model import Json, Skill, Snapshot, Standing

Entry: TypeAlias = "dict[str, Json]"
"""A skill as `skills/list` shows it."""
Result: TypeAlias = "dict[str, Json]"


class Subject(NamedTuple):
    """A skill, and all that the text about it may depend on.

    Attributes:
        skill: the skill.
        snapshot: the skills among which it is served.
        least: the standing that a skill needs to be served.
        served: what the server has beside skills.
    """

    skill: Skill
    snapshot: Snapshot
    least: Standing
    served: Served


class EntryResult(NamedTuple):
    """A `skills/get` that is answered with the skill's entry, as the same client finds it in
    `skills/list`."""

    write: Callable[[Entry], Result]


class InstructionsResult(NamedTuple):
    """A `skills/get` that is answered with the skill's instructions, its arguments filled in.

    Attributes:
        write: makes the result of the skill, its instructions, and the link text of each file that
            they refer to.
    """

    write: Callable[[Subject, str, Mapping[str, str]], Result]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dialect:
    """One protocol for skills over MCP.

    Attributes:
        name: what `--dialect` calls it.
        least: the standing that a skill needs to be shown in it.
        capabilities: what it adds to the server's capabilities.
        extensions: what it adds to `extensions` there. A client that declares one of them gets this
            dialect alone.
        entry: writes a skill for `skills/list`.
        needs_served: tells whether the entry of a skill depends on what else the server has.
        parameter: by which parameter of `skills/get` this dialect names a skill.
        find: the skill that the parameter names, of those with this standing. Raises RequestError
            when there is none.
        result: how `skills/get` is answered.
        framed: writes what surrounds a result of `skills/list` and `skills/get`; takes how many
            milliseconds a client may keep it. None where a result stands alone.
        notifications: what tells that skills changed: the notification's method by the key of the
            filter of `subscriptions/listen` that asks for it.
    """

    name: str
    least: Standing
    capabilities: Mapping[str, Json] = field(default_factory=dict[str, Json])
    extensions: Mapping[str, Json] = field(default_factory=dict[str, Json])
    entry: Callable[[Subject], Entry]
    needs_served: Callable[[Skill], bool]
    parameter: str
    find: Callable[[Snapshot, str, Standing], Skill]
    result: EntryResult | InstructionsResult
    framed: Callable[[Result, int], Result] | None = None
    notifications: Mapping[str, str] = field(default_factory=dict[str, str])
