"""The Agent Client Protocol's skills: AvailableSkill, the updates that carry it, and what is read of a conversation.

Plain values in, plain values out. The draft's own form is the nested `available_skills_update`; who does not know it
gets the same under `_meta` of an `available_commands_update`, which every client knows. All of them are full snapshots,
so what the agent itself has told is told again with ours. The flat form of the draft's example is read, never sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NotRequired, TypeAlias, TypedDict, cast

from mcp_skills_server.format import hidden
from mcp_skills_server.model import ORIGIN, Json, Skill, Snapshot, Standing
from mcp_skills_server.validation import rules

OURS: Final = "mcp-skills-server"
"""Under which key of `_meta` in its capabilities a client, or an agent, tells that it knows our extensions (ACPX-4)."""
NESTED: Final = "availableSkillsUpdate"
"""What a client sets there that takes the draft's own form in version 1."""
NOTIFICATION: Final = "extensionNotification"
"""What a client sets there that takes the extension notification."""
EXTENSION_METHOD: Final = f"_{OURS}/available_skills_update"
DETAILS: Final = f"{OURS}/availableSkills"
"""Under which key of an `available_commands_update`'s `_meta` our entries stand (X-31)."""
UPDATE: Final = "session/update"
COMMANDS_UPDATE: Final = "available_commands_update"
SKILLS_UPDATE: Final = "available_skills_update"
SERVER_NAME: Final = "skills"

_MAY_ASK: Final = re.compile(rb'"(?:initialize|session\\?/(?:new|load|resume|fork|close|delete))"')
_MAY_ANSWER: Final = re.compile(rb'"(?:result|error)"')
_MAY_UPDATE: Final = re.compile(rb'["/]available_(?:commands|skills)_update"')

_NAME: Final = re.compile(r"[a-z0-9]++(?:-[a-z0-9]++)*+")
_SETUPS: Final = frozenset(("session/new", "session/load", "session/resume", "session/fork"))
_MAKE_NEW: Final = frozenset(("session/new", "session/fork"))
_ENDINGS: Final = frozenset(("session/close", "session/delete"))
_FIELDS: Final = frozenset(("name", "description", "license", "compatibility", "allowedTools", "_meta"))

Params: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, object]
"""A request's id so that 1, "1", true and null differ, and 1 and 1.0 do not: what a peer in JavaScript sends back."""


class AvailableSkill(TypedDict):
    """A skill as ACP shows it (ACP-1...7). The client shows it; it is the agent that uses it (ACP-17)."""

    name: str
    description: str
    license: NotRequired[str]
    compatibility: NotRequired[str]
    allowedTools: NotRequired[list[str]]
    _meta: NotRequired[dict[str, Json]]


class AvailableSkillsUpdate(TypedDict):
    """All skills of a session, a variant of SessionUpdate (ACP-8, ACP-9)."""

    sessionUpdate: str
    availableSkills: list[AvailableSkill]
    _meta: NotRequired[dict[str, Json]]


@dataclass(frozen=True, slots=True)
class Available:
    """The skills that can be told.

    Attributes:
        skills: by name, no name twice.
        left_out: (skill path, reason) of the other valid ones.
    """

    skills: tuple[AvailableSkill, ...]
    left_out: tuple[tuple[str, str], ...] = ()


def split_tools(value: Json) -> list[str]:
    """The tools of `allowed-tools`, a text with blanks or commas between them or a list of texts (ACP-6).

    Nothing is split within parentheses. One that is never closed is a character like another.
    """
    if isinstance(value, list):
        return [each.strip() for each in value if isinstance(each, str) and each.strip()]
    return list(_tools(value)) if isinstance(value, str) else []


def _tools(text: str) -> Iterator[str]:
    start = place = 0
    while place < len(text):
        if text[place] == "(":
            place = _closing(text, place)
        elif text[place] == "," or text[place].isspace():
            if start < place:
                yield text[start:place]
            start = place + 1
        place += 1
    if start < len(text):
        yield text[start:]


def _closing(text: str, opening: int) -> int:
    depth = 0
    for match in re.finditer(r"[()]", text[opening:]):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return opening + match.start()
    return opening


def entry(skill: Skill) -> AvailableSkill:
    """A skill as an AvailableSkill; `metadata` travels in `_meta` (ACP-7), and so does where a skill of others is from.

    Fields that are empty are left out, and so are hidden characters, but for what travels in `_meta`.
    """
    fields = skill.frontmatter
    out: dict[str, Any] = {"name": skill.name, "description": hidden.without(skill.description)}
    for key in ("license", "compatibility"):
        value = fields.get(key)
        if value:
            out[key] = hidden.without(value) if isinstance(value, str) else value
    tools = split_tools(fields.get("allowed-tools"))
    if tools:
        out["allowedTools"] = tools
    metadata = fields.get("metadata")
    meta = {**(metadata if isinstance(metadata, dict) else {}), **({ORIGIN: skill.origin} if skill.origin else {})}
    if meta:
        out["_meta"] = meta
    return cast("AvailableSkill", out)


def refusal(value: object) -> str | None:
    """Why this is no AvailableSkill, in one line, or None where it is one (ACP-1...6, ACPX-1)."""
    if not isinstance(value, dict):
        return "it is no object"
    fields = cast("dict[str, object]", value)
    name, description = fields.get("name"), fields.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > rules.MAX_NAME:
        return f"its name is not 1 to {rules.MAX_NAME} lower-case letters, digits and single hyphens"
    if not isinstance(description, str) or not 1 <= len(description) <= rules.MAX_DESCRIPTION:
        return f"its description is not a text of 1 to {rules.MAX_DESCRIPTION} characters"
    if not isinstance(fields.get("license", ""), str):
        return "its license is no text"
    compatibility = fields.get("compatibility", "")
    if not isinstance(compatibility, str) or len(compatibility) > rules.MAX_COMPATIBILITY:
        return f"its compatibility is not a text of at most {rules.MAX_COMPATIBILITY} characters"
    tools = fields.get("allowedTools", [])
    if not isinstance(tools, list) or not all(isinstance(each, str) for each in cast("list[object]", tools)):
        return "its allowedTools is no list of texts"
    if not isinstance(fields.get("_meta", {}), dict):
        return "its _meta is no object"
    unknown = sorted(fields.keys() - _FIELDS)
    return f"it has the unknown field {unknown[0]}" if unknown else None


def available(snapshot: Snapshot) -> Available:
    """The skills of a snapshot that ACP can show: valid ones (X-2), one of each name.

    ACP knows a skill by its name alone. Of several the one of the earlier root is told (ACPX-14), then the first path.
    """
    chosen: dict[str, Skill] = {}
    left_out: list[tuple[str, str]] = []
    valid = [snapshot.skills[path] for path in snapshot.paths(Standing.VALID)]
    for skill in sorted(valid, key=lambda each: (each.root, each.path)):
        reason = refusal(entry(skill))
        if reason is None and skill.name in chosen:
            reason = f"the name {skill.name} is also that of {chosen[skill.name].path}"
        if reason is None:
            chosen[skill.name] = skill
        else:
            left_out.append((skill.path, reason))
    return Available(tuple(entry(chosen[name]) for name in sorted(chosen)), tuple(left_out))


# What a peer is told


@dataclass(frozen=True, slots=True)
class Takes:
    """Which forms of the update a client takes.

    Attributes:
        nested: the draft's own, in place of commands with `_meta` (X-32).
        extension: the extension notification beside it (X-31).
    """

    nested: bool = False
    extension: bool = False


def takes(version: int, capabilities: object) -> Takes:
    """What a client takes, by the version that is spoken and the capabilities that it announced at `initialize`."""
    said: Params = {}
    for key in ("_meta", OURS):
        capabilities = cast("Params", capabilities).get(key) if isinstance(capabilities, dict) else None
    if isinstance(capabilities, dict):
        said = cast("Params", capabilities)
    nested, extension = (said.get(key) not in (None, False) for key in (NESTED, NOTIFICATION))
    return Takes(version >= 2 or nested, extension)


def capability() -> dict[str, Json]:
    """What an agent that tells skills puts into its capabilities' `_meta` (ACPX-4)."""
    return {OURS: {NESTED: {}, NOTIFICATION: {}}}


def skills_update(skills: Sequence[AvailableSkill], theirs: Mapping[str, Any] | None = None) -> AvailableSkillsUpdate:
    """The draft's own update (ACP-8...10), after the last one that the agent itself told, if it did."""
    told = _merged(_list(theirs, "availableSkills"), skills)
    return cast("AvailableSkillsUpdate", {**(theirs or {}), "sessionUpdate": SKILLS_UPDATE, "availableSkills": told})


def commands_update(skills: Sequence[AvailableSkill], theirs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The commands that the agent last told, none where it told none, with the skills in `_meta` (X-31, ACPX-11).

    No skill becomes a command: a command is called by the user, a skill is chosen by the agent (ACP-17).
    """
    meta: dict[str, Any] = {**_dict((theirs or {}).get("_meta"))}
    names = [each for each in _list(meta, "availableSkills") if isinstance(each, str)]
    meta["availableSkills"] = [*names, *(each["name"] for each in skills if each["name"] not in names)]
    meta[DETAILS] = _merged(_list(meta, DETAILS), skills)
    commands = _list(theirs, "availableCommands")
    return {**(theirs or {}), "sessionUpdate": COMMANDS_UPDATE, "availableCommands": commands, "_meta": meta}


def _merged(theirs: Sequence[Any], ours: Sequence[AvailableSkill]) -> list[Any]:
    """Theirs, then ours; of one name theirs, for it is the agent that uses it."""
    named = [each for each in theirs if isinstance(_dict(each).get("name"), str)]
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
    """What tells a client of all skills of a session: (method, params) of one notification or two.

    Args:
        session_id: of the session.
        skills: all of them.
        takes: which forms.
        theirs: the agent's own last update of each kind, by kind as `updated` tells it.
        extension: False to leave the extension notification out, where nothing of it has changed.
    """
    if takes.nested:
        update: Mapping[str, Any] = skills_update(skills, theirs.get(SKILLS_UPDATE))
    else:
        update = commands_update(skills, theirs.get(COMMANDS_UPDATE))
    out: list[tuple[str, Params]] = [(UPDATE, {"sessionId": session_id, "update": update})]
    if takes.extension and extension:
        own = theirs.get(EXTENSION_METHOD, {})
        told = _merged(_list(own, "availableSkills"), skills)
        out.append((EXTENSION_METHOD, {**own, "sessionId": session_id, "availableSkills": told}))
    return out


def kinds(takes: Takes) -> frozenset[str]:
    """Of which updates of the agent's own a client that takes this is told again, with ours."""
    return frozenset((SKILLS_UPDATE if takes.nested else COMMANDS_UPDATE, *([EXTENSION_METHOD] * takes.extension)))


def message(method: str, params: Params) -> bytes:
    """A notification as a line.

    Raises:
        ValueError: the agent's own part holds what JSON cannot.
    """
    # Not ensure_ascii=False: half a surrogate pair, which JSON may hold and UTF-8 may not, stays what it was.
    told = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(told, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


# What is read of a conversation


@dataclass(frozen=True, slots=True)
class Hello:
    """`initialize`: the version that the client asks for and its capabilities, as they came."""

    key: Key | None
    version: int
    capabilities: object


@dataclass(frozen=True, slots=True)
class Setup:
    """A request that makes a session or takes one up again; `session_id` is None where the answer brings it."""

    key: Key | None
    session_id: str | None


@dataclass(frozen=True, slots=True)
class Ending:
    """A request that ends a session."""

    key: Key | None
    session_id: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: `result` is None where it is an error."""

    key: Key
    result: Params | None


def may_ask(raw: bytes) -> bool:
    """Whether a request that `asked` knows may be in these bytes, without parsing them."""
    return _MAY_ASK.search(raw) is not None  # some writers of JSON put a backslash before a slash


def may_answer(raw: bytes) -> bool:
    """Whether an answer may be in these bytes."""
    return _MAY_ANSWER.search(raw) is not None


def may_update(raw: bytes) -> bool:
    """Whether a notification that `updated` knows may be in these bytes."""
    return b"available_" in raw and _MAY_UPDATE.search(raw) is not None


def asked(message: object) -> list[Hello | Setup | Ending]:
    """The requests of a client that matter here, of one message or a batch."""
    out: list[Hello | Setup | Ending] = []
    for each in _messages(message):
        method, params = each.get("method"), _dict(each.get("params"))
        if "id" not in each or not isinstance(method, str):
            continue
        key, given = _key(each["id"]), params.get("sessionId")
        session_id = given if isinstance(given, str) else None
        if method == "initialize":
            announced = params.get("capabilities", params.get("clientCapabilities"))
            out.append(Hello(key, _version(params.get("protocolVersion")) or 1, announced))
        elif method in _SETUPS:
            out.append(Setup(key, None if method in _MAKE_NEW else session_id))
        elif method in _ENDINGS:
            out.append(Ending(key, session_id))
    return out


def answered(message: object) -> list[Answer]:
    """The answers of an agent, of one message or a batch."""
    out: list[Answer] = []
    for each in _messages(message):
        key = _key(each.get("id"))
        if "method" in each or key is None or not ("result" in each or "error" in each):
            continue
        failed = "error" in each and each["error"] is not None
        # An error without an id is about a message that nobody could read, and not about the request of id null.
        if not failed or key[1] is not None:
            out.append(Answer(key, None if failed else _dict(each.get("result"))))
    return out


def opened(setup: Setup, answer: Answer) -> str | None:
    """The session that an answer to a setup opens."""
    if answer.result is None:
        return None
    told = answer.result.get("sessionId")
    return told if isinstance(told, str) else setup.session_id


def spoken(hello: Hello, answer: Answer) -> int:
    """The version that client and agent agreed on."""
    return _version((answer.result or {}).get("protocolVersion")) or hello.version


def starts_servers(version: int, result: Params) -> bool:
    """Whether the agent that answered `initialize` so can start MCP servers: all of version 1 do."""
    if version < 2:
        return True
    capabilities = _dict(result.get("capabilities"))
    places = (_dict(capabilities.get("session")), capabilities)
    return any(_dict(place.get("mcp")).get("stdio") not in (None, False) for place in places)


def updated(message: object) -> list[tuple[str, str, Params]]:
    """(session, kind, update) of an agent's updates of commands and skills, nested or flat (X-33).

    The kind is the update's `sessionUpdate`, or the method of the extension notification.
    """
    out: list[tuple[str, str, Params]] = []
    for each in _messages(message):
        method, params = each.get("method"), dict(_dict(each.get("params")))
        session_id = params.pop("sessionId", None)
        update = _dict(params.get("update", params)) if method == UPDATE else params
        kind = update.get("sessionUpdate") if method == UPDATE else method
        if isinstance(session_id, str) and kind in (COMMANDS_UPDATE, SKILLS_UPDATE, EXTENSION_METHOD):
            out.append((session_id, kind, update))
    return out


def read_skills(params: object) -> Available | None:
    """What a client reads out of the params of `session/update` or of the extension notification (X-33, ACP-10).

    Both forms are taken, `metadata` beside `_meta`, and tools as one text; fields that are not known are passed over.
    What still is no AvailableSkill is left out, by its place in the list. None where no skills are told.
    """
    outer = _dict(params)
    update = _dict(outer.get("update", outer))
    if update.get("sessionUpdate", SKILLS_UPDATE) != SKILLS_UPDATE or not isinstance(
        update.get("availableSkills"), list
    ):
        return None
    skills: dict[str, AvailableSkill] = {}
    left_out: list[tuple[str, str]] = []
    for position, item in enumerate(_list(update, "availableSkills"), 1):
        read = _lenient(item)
        reason = refusal(read)
        if reason is None:
            skills.setdefault(read["name"], cast("AvailableSkill", read))
        else:
            left_out.append((f"entry {position}", reason))
    return Available(tuple(skills.values()), tuple(left_out))


def _lenient(item: object) -> dict[str, Any]:
    fields = _dict(item)
    out = {key: fields[key] for key in fields if key in _FIELDS and fields[key] is not None}
    if isinstance(out.get("allowedTools"), str):
        out["allowedTools"] = split_tools(out["allowedTools"])
    metadata = _dict(fields.get("metadata"))
    if metadata:
        out["_meta"] = {**metadata, **_dict(out.get("_meta"))}
    return out


def _messages(message: object) -> list[Params]:
    several = cast("list[object]", message) if isinstance(message, list) else [message]
    return [cast("Params", each) for each in several if isinstance(each, dict)]


def _key(identifier: object) -> Key | None:
    if isinstance(identifier, bool):
        return "bool", identifier
    if isinstance(identifier, int | float):
        return "number", identifier
    return (type(identifier).__name__, identifier) if identifier is None or isinstance(identifier, str) else None


def _version(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _dict(value: object) -> Params:
    return cast("Params", value) if isinstance(value, dict) else {}


def _list(holder: Mapping[str, Any] | None, key: str) -> list[Any]:
    value = (holder or {}).get(key)
    return cast("list[Any]", value) if isinstance(value, list) else []


# The one change to a message


def server(name: str, words: Sequence[str], version: int) -> dict[str, Any]:
    """An MCP server that the agent is to start, as McpServerStdio: the program by absolute path and its arguments."""
    typed = {"type": "stdio"} if version >= 2 else {}
    return {**typed, "name": name, "command": words[0], "args": list(words[1:]), "env": []}


def with_server(text: str, make: Callable[[str], Mapping[str, Any]]) -> str:
    """A client's message as text, with one more MCP server in every setup of a session.

    Nothing else changes, not a blank. `make` makes the server of a name that no other server there has. A message that
    cannot be changed so is returned as it is.

    Raises:
        ValueError: it is no JSON.
    """
    wanted: Any = json.loads(text)
    places = _Places(text)
    first = places.skip(0)
    several = isinstance(wanted, list)
    messages = cast("list[object]", wanted) if several else [wanted]
    starts = [start for start, _ in places.items(first)] if several else [first]
    cuts: list[tuple[int, int, str]] = []
    for start, each in zip(starts, messages, strict=True):
        params = _setup_params(each)
        if params is None:
            continue
        servers = _list(params, "mcpServers")
        taken = {name for other in servers if isinstance(name := _dict(other).get("name"), str)}
        added = make(next(name for name in _names() if name not in taken))
        params["mcpServers"] = [*servers, added]
        cuts.append(places.adding(places.member(start, "params")[0], json.dumps(added)))
    parts: list[str] = []
    place = 0
    for start, end, new in cuts:
        parts += [text[place:start], new]
        place = end
    changed = "".join((*parts, text[place:]))
    return changed if not cuts or json.loads(changed) == wanted else text


def _setup_params(message: object) -> Params | None:
    """The params of a setup whose list of MCP servers can be added to."""
    each = _dict(message)
    params = each.get("params")
    if "id" not in each or each.get("method") not in _SETUPS or not isinstance(params, dict):
        return None
    params = cast("Params", params)
    return params if isinstance(params.get("mcpServers"), list | None) else None


def _names() -> Iterator[str]:
    yield SERVER_NAME
    number = 2
    while True:
        yield f"{SERVER_NAME}-{number}"
        number += 1


class _Places:
    """Where the values of a JSON text stand. The text has been parsed before, so it is well formed."""

    _BLANKS: Final = re.compile(r"[ \t\r\n]*")

    def __init__(self, text: str) -> None:
        self.text = text
        self._decoder = json.JSONDecoder()

    def skip(self, place: int) -> int:
        """The next place that is no blank."""
        match = self._BLANKS.match(self.text, place)
        return match.end() if match else place

    def items(self, opening: int) -> Iterator[tuple[int, int]]:
        """Start and end of each value of an array, or of each key of an object with the value's by turns."""
        place = self.skip(opening + 1)
        while self.text[place] not in "]}":
            _, end = self._decoder.raw_decode(self.text, place)
            yield place, end
            place = self.skip(end)
            if self.text[place] in ",:":
                place = self.skip(place + 1)

    def member(self, opening: int, key: str) -> tuple[int, int]:
        """Start and end of an object's member; of several with one key the last counts. (-1, -1) without one."""
        spans = list(self.items(opening))
        found = (-1, -1)
        for (start, end), value in zip(spans[::2], spans[1::2], strict=True):
            if json.loads(self.text[start:end]) == key:
                found = value
        return found

    def adding(self, params: int, new: str) -> tuple[int, int, str]:
        """What to put where, so that the list of servers of these params has one more."""
        start, end = self.member(params, "mcpServers")
        if start >= 0 and self.text[start] != "[":
            return start, end, f"[{new}]"  # null
        inside = list(self.items(params if start < 0 else start))
        place = inside[-1][1] if inside else (params if start < 0 else start) + 1
        return place, place, ("," if inside else "") + (f'"mcpServers":[{new}]' if start < 0 else new)
