"""The fields of ACP's messages: the names that are used here, and how one is read that may hold anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast

OURS: Final = "mcp-skills-server"
"""Under which key of `_meta` in its capabilities a client, or an agent, says that it knows our extensions."""
NESTED: Final = "availableSkillsUpdate"
"""What a client sets there that takes the draft's own form in version 1."""
NOTIFICATION: Final = "extensionNotification"
"""What a client sets there that takes the extension notification."""
EXTENSION_METHOD: Final = f"_{OURS}/available_skills_update"
DETAILS: Final = f"{OURS}/availableSkills"
"""Under which key of an `available_commands_update`'s `_meta` our entries stand."""
UPDATE: Final = "session/update"
COMMANDS_UPDATE: Final = "available_commands_update"
SKILLS_UPDATE: Final = "available_skills_update"
SETUPS: Final = frozenset(("session/new", "session/load", "session/resume", "session/fork"))
"""The requests that make a session or take one up again."""

Params: TypeAlias = dict[str, Any]


def messages_of(message: object) -> list[Params]:
    """The objects of one message or a batch."""
    several = cast("list[object]", message) if isinstance(message, list) else [message]
    return [cast("Params", each) for each in several if isinstance(each, dict)]


def as_dict(value: object) -> Params:
    """The value where it is an object, else an empty one."""
    return cast("Params", value) if isinstance(value, dict) else {}


def list_in(holder: Mapping[str, Any] | None, key: str) -> list[Any]:
    """A field where it is an array, else an empty one."""
    value = (holder or {}).get(key)
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_version(value: object) -> int | None:
    """The value where it is a version of the protocol."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
