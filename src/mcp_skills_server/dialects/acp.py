"""Encoding of skills for the Agent Client Protocol (ACP), and decoding of its messages.

Pure functions over plain values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, count
from typing import Any, Final, NamedTuple, NotRequired, TypeAlias, TypedDict, cast

from mcp_skills_server.format import hidden, identity
from mcp_skills_server.format.fields import items, mapping, split_tools
from mcp_skills_server.model import ORIGIN, Json, Skill, Snapshot, Standing

META_KEY: Final = "mcp-skills-server"
"""The key in the `_meta` of capabilities that announces this project's extensions."""
NESTED: Final = "availableSkillsUpdate"
"""Flag below `META_KEY`: the client accepts the draft's `available_skills_update` in version 1."""
NOTIFICATION: Final = "extensionNotification"
"""Flag below `META_KEY`: the client accepts the extension notification."""
EXTENSION_METHOD: Final = f"_{META_KEY}/available_skills_update"
DETAILS: Final = f"{META_KEY}/availableSkills"
"""The key of full skill entries in the `_meta` of an `available_commands_update`."""
UPDATE: Final = "session/update"
COMMANDS_UPDATE: Final = "available_commands_update"
SKILLS_UPDATE: Final = "available_skills_update"
KINDS: Final = (COMMANDS_UPDATE, SKILLS_UPDATE, EXTENSION_METHOD)
"""The updates of skills and commands, by `sessionUpdate` or method."""
SETUPS: Final = frozenset(("session/new", "session/load", "session/resume", "session/fork"))
"""The requests that create, load, resume or fork a session."""

Params: TypeAlias = dict[str, Any]
_CREATING: Final = frozenset(("session/new", "session/fork"))
_ENDINGS: Final = frozenset(("session/close", "session/delete"))
Key: TypeAlias = tuple[str, object]
"""A request id with its type: 1, "1", true and null differ, but 1 and 1.0 are equal as in
JavaScript."""
_SERVER_NAME: Final = "skills"
"""The base name of the added MCP server, numbered if it is taken."""


def as_version(value: object) -> int | None:
    """Return the value if it is a protocol version (an integer), else None."""
    if type(value) is int:
        return value
    return None


class InitializeRequest(NamedTuple):
    """An `initialize` request: the requested protocol version and the raw client capabilities."""

    key: Key | None
    version: int
    capabilities: object


class SessionRequest(NamedTuple):
    """A request that opens a session; `session_id` is None if the answer assigns it."""

    key: Key | None
    session_id: str | None


class SessionEnd(NamedTuple):
    """A request that ends a session."""

    key: Key | None
    session_id: str | None


Request: TypeAlias = InitializeRequest | SessionRequest | SessionEnd


class AgentResponse(NamedTuple):
    """A JSON-RPC response; `result` is None for an error."""

    key: Key
    result: Params | None


def parse_request(message: object) -> Request | None:
    """Return a client's request if it is `initialize`, or opens or ends a session, else None."""
    fields = mapping(message)
    method, params = fields.get("method"), mapping(fields.get("params"))
    if "id" not in fields or not isinstance(method, str):
        return None
    key, session_id = _key(fields["id"]), params.get("sessionId")
    if not isinstance(session_id, str):
        session_id = None
    if method == "initialize":
        announced = params.get("capabilities", params.get("clientCapabilities"))
        version = as_version(params.get("protocolVersion")) or 1
        return InitializeRequest(key, version, announced)
    if method in SETUPS:
        return SessionRequest(key, None if method in _CREATING else session_id)
    if method in _ENDINGS:
        return SessionEnd(key, session_id)
    return None


def parse_response(message: object) -> AgentResponse | None:
    """Return the agent's response, or None for any other message."""
    fields = mapping(message)
    key = _key(fields.get("id"))
    if "method" in fields or key is None or not ("result" in fields or "error" in fields):
        return None
    if fields.get("error") is None:
        return AgentResponse(key, mapping(fields.get("result")))
    if key[1] is None:  # reports an unreadable message, not the request of id null
        return None
    return AgentResponse(key, None)


def opened_session_id(request: SessionRequest, response: AgentResponse) -> str | None:
    """Return the id of the session that this response opens, or None after an error."""
    if response.result is None:
        return None
    session_id = response.result.get("sessionId")
    if isinstance(session_id, str):
        return session_id
    return request.session_id


def negotiated_version(request: InitializeRequest, response: AgentResponse) -> int:
    """Return the negotiated protocol version, by default the requested one."""
    return as_version((response.result or {}).get("protocolVersion")) or request.version


def starts_servers(version: int, result: Params) -> bool:
    """Return whether the agent can start stdio MCP servers; version 1 always can."""
    if version < 2:
        return True
    capabilities = mapping(result.get("capabilities"))
    holders = (mapping(capabilities.get("session")), capabilities)
    return any(mapping(holder.get("mcp")).get("stdio") not in (None, False) for holder in holders)


def _key(identifier: object) -> Key | None:
    if isinstance(identifier, bool):
        return "bool", identifier
    if isinstance(identifier, int | float):
        return "number", identifier
    if identifier is None or isinstance(identifier, str):
        return (type(identifier).__name__, identifier)
    return None


def server(name: str, command: Sequence[str], version: int) -> dict[str, Any]:
    """Return a McpServerStdio that runs `command`, for the agent to start."""
    program, *args = command
    out: dict[str, Any] = {"name": name, "command": program, "args": args, "env": []}
    if version >= 2:
        out["type"] = "stdio"
    return out


def with_server(request: object, make: Callable[[str], Mapping[str, Any]]) -> str | None:
    """Return a request that opens a session with an MCP server added, or None if it takes none.

    `make` returns the server for a name, which is unique in the request.
    """
    fields = mapping(request)
    params = fields.get("params")
    if not isinstance(params, dict):
        return None
    params = cast("Params", params)
    if not isinstance(params.get("mcpServers"), list | None):
        return None
    servers = items(params.get("mcpServers"))
    taken = [mapping(other).get("name") for other in servers]
    added = {**params, "mcpServers": [*servers, make(_free_name(taken))]}
    return json.dumps({**fields, "params": added})


def _free_name(taken: Sequence[object]) -> str:
    names = {name for name in taken if isinstance(name, str)}
    numbered = (f"{_SERVER_NAME}-{number}" for number in count(2))
    return next(name for name in chain([_SERVER_NAME], numbered) if name not in names)


class AvailableSkill(TypedDict):
    """A skill in ACP's form; the client lists it and the agent uses it."""

    name: str
    description: str
    license: NotRequired[str]
    compatibility: NotRequired[str]
    allowedTools: NotRequired[list[str]]
    _meta: NotRequired[dict[str, Json]]


class Available(NamedTuple):
    """The skills sent over ACP, sorted by name, and (path, reason) of the other valid ones."""

    skills: tuple[AvailableSkill, ...]
    left_out: tuple[tuple[str, str], ...] = ()


def entry(skill: Skill) -> AvailableSkill:
    """Return a skill as an AvailableSkill, with its `metadata` and its origin in `_meta`.

    Empty fields are omitted. Hidden characters are removed, except in `_meta`.
    """
    fields = skill.frontmatter
    out: dict[str, Any] = {"name": skill.name, "description": hidden.strip(skill.description)}
    for key in ("license", "compatibility"):
        value = fields.get(key)
        if value:
            out[key] = hidden.strip(value) if isinstance(value, str) else value
    tools = split_tools(fields.get("allowed-tools"))
    if tools:
        out["allowedTools"] = tools
    meta = {**mapping(fields.get("metadata"))}
    if origin := identity.origin(skill):
        meta[ORIGIN] = origin
    if meta:
        out["_meta"] = meta
    return cast("AvailableSkill", out)


def available(snapshot: Snapshot) -> Available:
    """Return the skills of a snapshot to send over ACP: valid ones, with unique names.

    ACP identifies a skill by name. Of duplicates the first by root, then by path, wins. A valid
    skill is a valid AvailableSkill, unless its description has hidden characters only.
    """
    chosen: dict[str, Skill] = {}
    left_out: list[tuple[str, str]] = []
    valid = [snapshot.skills[path] for path in snapshot.paths(Standing.VALID)]
    # ACPX-14: prefer the earlier root
    for skill in sorted(valid, key=lambda skill: (skill.root, skill.path)):
        if not hidden.strip(skill.description):
            left_out.append((skill.path, "its description has hidden characters only"))
        elif skill.name in chosen:
            reason = f"{skill.name} is also the name of {chosen[skill.name].path}"
            left_out.append((skill.path, reason))
        else:
            chosen[skill.name] = skill
    return Available(tuple(entry(chosen[name]) for name in sorted(chosen)), tuple(left_out))


class UpdateForms(NamedTuple):
    """The update forms that a client accepts besides skills in commands' `_meta`.

    `nested` is `available_skills_update`, which replaces them; `extension` is our notification.
    """

    nested: bool = False
    extension: bool = False


def accepted_forms(version: int, capabilities: object) -> UpdateForms:
    """Return the update forms accepted by a client, from its version and its capabilities."""
    announced = mapping(mapping(mapping(capabilities).get("_meta")).get(META_KEY))
    nested, extension = (announced.get(key) not in (None, False) for key in (NESTED, NOTIFICATION))
    return UpdateForms(version >= 2 or nested, extension)


def capability() -> dict[str, Json]:
    """Return the `_meta` of agent capabilities that announces both update forms."""
    return {META_KEY: {NESTED: {}, NOTIFICATION: {}}}


def _skills_update(skills: Sequence[AvailableSkill], theirs: Mapping[str, Any]) -> Params:
    """Return an `available_skills_update`: the agent's own last one, with our skills added."""
    merged = _merged(items(theirs.get("availableSkills")), skills)
    return {**theirs, "sessionUpdate": SKILLS_UPDATE, "availableSkills": merged}


def _commands_update(skills: Sequence[AvailableSkill], theirs: Mapping[str, Any]) -> Params:
    """Return the agent's own last commands update, if any, with our skills added in `_meta`.

    Skills do not become commands: the user calls a command, the agent chooses a skill.
    """
    meta: dict[str, Any] = {**mapping(theirs.get("_meta"))}
    names = [name for name in items(meta.get("availableSkills")) if isinstance(name, str)]
    ours = [skill["name"] for skill in skills if skill["name"] not in names]
    meta["availableSkills"] = [*names, *ours]
    meta[DETAILS] = _merged(items(meta.get(DETAILS)), skills)
    commands = items(theirs.get("availableCommands"))
    out = {**theirs, "sessionUpdate": COMMANDS_UPDATE, "availableCommands": commands}
    return {**out, "_meta": meta}


def _merged(theirs: Sequence[Any], ours: Sequence[AvailableSkill]) -> list[Any]:
    """Append our skills to the agent's own, which win on equal names: the agent uses those."""
    named = [entry for entry in theirs if isinstance(mapping(entry).get("name"), str)]
    names = {entry["name"] for entry in named}
    return [*named, *(entry for entry in ours if entry["name"] not in names)]


def notifications(
    session_id: str,
    skills: Sequence[AvailableSkill],
    forms: UpdateForms,
    theirs: Mapping[str, Mapping[str, Any]],
    *,
    extension: bool = True,
) -> list[tuple[str, Params]]:
    """Return (method, params) of the one or two notifications that list a session's skills.

    `theirs` is the agent's own last update of each kind. Without `extension` the extension
    notification is omitted, because its content is unchanged.
    """
    if forms.nested:
        update = _skills_update(skills, theirs.get(SKILLS_UPDATE, {}))
    else:
        update = _commands_update(skills, theirs.get(COMMANDS_UPDATE, {}))
    out: list[tuple[str, Params]] = [(UPDATE, {"sessionId": session_id, "update": update})]
    if forms.extension and extension:
        own = theirs.get(EXTENSION_METHOD, {})
        merged = _merged(items(own.get("availableSkills")), skills)
        out.append((EXTENSION_METHOD, {**own, "sessionId": session_id, "availableSkills": merged}))
    return out


def merged_kinds(forms: UpdateForms) -> frozenset[str]:
    """Return the kinds of agent updates after which a merged update is sent to the client."""
    kinds = {COMMANDS_UPDATE}
    if forms.nested:
        kinds = {SKILLS_UPDATE}
    if forms.extension:
        kinds.add(EXTENSION_METHOD)
    return frozenset(kinds)


def message(method: str, params: Params) -> bytes:
    """Return a notification as one line of JSON.

    Raises:
        ValueError: the agent's own part holds NaN or an infinity.
    """
    # ASCII escapes preserve a lone surrogate, which UTF-8 cannot encode.
    fields = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


class AgentUpdate(NamedTuple):
    """An agent's update of commands or skills; `kind` is one of `KINDS`."""

    session_id: str
    kind: str
    fields: Params


def parse_update(message: object) -> AgentUpdate | None:
    """Return an agent's update of commands or skills, nested or flat, or None."""
    fields = mapping(message)
    method, params = fields.get("method"), dict(mapping(fields.get("params")))
    session_id = params.pop("sessionId", None)
    update, kind = params, method
    if method == UPDATE:
        update = mapping(params.get("update", params))
        kind = update.get("sessionUpdate")
    if isinstance(session_id, str) and kind in KINDS:
        return AgentUpdate(session_id, kind, update)
    return None
