"""The updates that carry skills, in the forms that a client takes, and the agent's own updates of the same kinds.

The draft's own form is the nested `available_skills_update`. Who does not know it gets the same under `_meta` of an
`available_commands_update`, which every client knows. All of them are full snapshots, so the agent's own last update is
repeated with ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict, cast

from mcp_skills_server.dialects.acp.fields import (
    COMMANDS_UPDATE,
    DETAILS,
    EXTENSION_METHOD,
    NESTED,
    NOTIFICATION,
    OURS,
    SKILLS_UPDATE,
    UPDATE,
    Params,
    as_dict,
    list_in,
    messages_of,
)
from mcp_skills_server.dialects.acp.skills import AvailableSkill
from mcp_skills_server.model import Json


class AvailableSkillsUpdate(TypedDict):
    """All skills of a session, a variant of SessionUpdate."""

    sessionUpdate: str
    availableSkills: list[AvailableSkill]
    _meta: NotRequired[dict[str, Json]]


@dataclass(frozen=True, slots=True)
class Takes:
    """Which forms of the update a client takes.

    Attributes:
        nested: the draft's own, in place of commands with `_meta`.
        extension: the extension notification beside it.
    """

    nested: bool = False
    extension: bool = False


def takes(version: int, capabilities: object) -> Takes:
    """What a client takes, by the version that is spoken and the capabilities that it announced at `initialize`."""
    announced: Params = {}
    for key in ("_meta", OURS):
        capabilities = cast("Params", capabilities).get(key) if isinstance(capabilities, dict) else None
    if isinstance(capabilities, dict):
        announced = cast("Params", capabilities)
    nested, extension = (announced.get(key) not in (None, False) for key in (NESTED, NOTIFICATION))
    return Takes(version >= 2 or nested, extension)


def capability() -> dict[str, Json]:
    """What an agent that sends skills puts into its capabilities' `_meta`."""
    return {OURS: {NESTED: {}, NOTIFICATION: {}}}


def skills_update(skills: Sequence[AvailableSkill], theirs: Mapping[str, Any] | None = None) -> AvailableSkillsUpdate:
    """The draft's own update: the last one that the agent itself sent, if it did, with our skills added."""
    merged = _merged(list_in(theirs, "availableSkills"), skills)
    return cast("AvailableSkillsUpdate", {**(theirs or {}), "sessionUpdate": SKILLS_UPDATE, "availableSkills": merged})


def commands_update(skills: Sequence[AvailableSkill], theirs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The agent's last update of its commands, empty where it sent none, with the skills in `_meta`.

    No skill becomes a command: a command is called by the user, a skill is chosen by the agent.
    """
    meta: dict[str, Any] = {**as_dict((theirs or {}).get("_meta"))}
    names = [each for each in list_in(meta, "availableSkills") if isinstance(each, str)]
    meta["availableSkills"] = [*names, *(each["name"] for each in skills if each["name"] not in names)]
    meta[DETAILS] = _merged(list_in(meta, DETAILS), skills)
    commands = list_in(theirs, "availableCommands")
    return {**(theirs or {}), "sessionUpdate": COMMANDS_UPDATE, "availableCommands": commands, "_meta": meta}


def _merged(theirs: Sequence[Any], ours: Sequence[AvailableSkill]) -> list[Any]:
    """Theirs, then ours; of one name theirs, for it is the agent that uses it."""
    named = [each for each in theirs if isinstance(as_dict(each).get("name"), str)]
    names = {each["name"] for each in named}
    return [*named, *(each for each in ours if each["name"] not in names)]


def notifications(
    session_id: str,
    skills: Sequence[AvailableSkill],
    takes: Takes,
    theirs: Mapping[str, Mapping[str, Any]],
    *,
    extension: bool = True,
) -> list[tuple[str, Params]]:
    """The notifications that carry all skills of a session to a client: (method, params) of one or two.

    Args:
        session_id: of the session.
        skills: all of them.
        takes: which forms.
        theirs: the agent's own last update of each kind, by kind as in `updated`.
        extension: False to leave the extension notification out, where nothing of it has changed.
    """
    if takes.nested:
        update: Mapping[str, Any] = skills_update(skills, theirs.get(SKILLS_UPDATE))
    else:
        update = commands_update(skills, theirs.get(COMMANDS_UPDATE))
    out: list[tuple[str, Params]] = [(UPDATE, {"sessionId": session_id, "update": update})]
    if takes.extension and extension:
        own = theirs.get(EXTENSION_METHOD, {})
        merged = _merged(list_in(own, "availableSkills"), skills)
        out.append((EXTENSION_METHOD, {**own, "sessionId": session_id, "availableSkills": merged}))
    return out


def kinds(takes: Takes) -> frozenset[str]:
    """The kinds of the agent's own updates that a client that takes this gets again, with ours."""
    return frozenset((SKILLS_UPDATE if takes.nested else COMMANDS_UPDATE, *([EXTENSION_METHOD] * takes.extension)))


def message(method: str, params: Params) -> bytes:
    """A notification as a line.

    Raises:
        ValueError: the agent's own part holds what JSON cannot.
    """
    # Not ensure_ascii=False: half a surrogate pair, which JSON may hold and UTF-8 may not, stays what it was.
    fields = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def updated(message: object) -> list[tuple[str, str, Params]]:
    """(session, kind, update) of an agent's updates of commands and skills, nested or flat.

    The kind is the update's `sessionUpdate`, or the method of the extension notification.
    """
    out: list[tuple[str, str, Params]] = []
    for each in messages_of(message):
        method, params = each.get("method"), dict(as_dict(each.get("params")))
        session_id = params.pop("sessionId", None)
        update = as_dict(params.get("update", params)) if method == UPDATE else params
        kind = update.get("sessionUpdate") if method == UPDATE else method
        if isinstance(session_id, str) and kind in (COMMANDS_UPDATE, SKILLS_UPDATE, EXTENSION_METHOD):
            out.append((session_id, kind, update))
    return out
