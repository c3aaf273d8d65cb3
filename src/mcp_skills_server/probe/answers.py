"""Calls of the probe, the shapes of their results, and the refusals that every server owes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias, cast

from mcp_skills_server.dialects.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND
from mcp_skills_server.dialects.listed import EntryRefusedError, path_below
from mcp_skills_server.dialects.sep2640 import EXTENSION
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.probe.connection import LEGACY, MODERN, Reply
from mcp_skills_server.server.eras import DISCOVER, HEADER_MISMATCH, UNSUPPORTED_VERSION, Shape

Fields: TypeAlias = Mapping[str, Any]

META: Final = "io.modelcontextprotocol/"
LIST: Final = "skills/list"
GET: Final = "skills/get"
READ: Final = "resources/read"
DIRECTORY_READ: Final = "resources/directory/read"
LISTEN: Final = "subscriptions/listen"
FOLDER: Final = "inode/directory"
NOT_FOUND: Final = -32002
"""The code of a missing resource in the legacy era."""
OLD_VERSION: Final = "1900-01-01"
_ABSENT: Final = "no-such-name-of-the-probe"
_CLIENT: Final = {"name": "mcp-skills-server probe", "version": "1"}
_CAPABILITIES: Final[Fields] = {"extensions": {EXTENSION: {}}}
ENVELOPE: Final[Fields] = {
    f"{META}protocolVersion": MODERN,
    f"{META}clientCapabilities": _CAPABILITIES,
    f"{META}clientInfo": _CLIENT,
}
HANDSHAKE: Final[Fields] = {
    "protocolVersion": LEGACY,
    "clientInfo": _CLIENT,
    "capabilities": _CAPABILITIES,
}

_SETTINGS: Final[Shape] = {
    "capabilities": {"extensions": {EXTENSION: {"directoryRead?": bool, "revision?": str}}}
}
SHAPES: Final[Mapping[str, tuple[str, Shape]]] = {
    "initialize": ("S40-1", _SETTINGS),
    DISCOVER: ("S40-1", _SETTINGS),
    LIST: ("S40-12", {"skills": [dict]}),
    GET: ("S40-23", {"skill": dict}),
    READ: ("MCP-55", {"contents": [{"uri": str}]}),
    DIRECTORY_READ: ("S40-27", {"resources": [{"uri": str, "name": str}]}),
    "resources/list": ("MCP-29", {"resources": [{"uri": str, "name": str}]}),
    "resources/templates/list": (
        "MCP-29",
        {"resourceTemplates": [{"uriTemplate": str, "name": str}]},
    ),
    "tools/list": ("MCP-29", {"tools": [{"name": str, "inputSchema": dict}]}),
    "prompts/list": ("MCP-29", {"prompts": [{"name": str}]}),
}
"""The shape of a result, by method, with its rule."""
COMPLETE: Final[Mapping[str, str]] = {LIST: "S40-20", GET: "S40-23", DIRECTORY_READ: "S40-27"}
"""The rule about `resultType`, by method; of others it is MCP-12."""
CACHED: Final[Mapping[str, str]] = {
    LIST: "S40-20",
    GET: "S40-23",
    **dict.fromkeys((DISCOVER, READ, *SHAPES.keys() - COMPLETE.keys() - {"initialize"}), "MCP-23"),
}
"""The rule about the fields for caches, by method."""
ERRORS: Final[Mapping[str, str]] = {
    LIST: "S40-2",
    GET: "S40-25",
    READ: "MCP-55",
    DIRECTORY_READ: "S40-29",
}
"""The rule about an error in place of a result, by method; of others it is MCP-29."""
MISSING: Final[Mapping[str, str]] = {GET: "S40-2", DIRECTORY_READ: "S40-3"}
"""The rule about a method that does not exist."""
CAPABILITIES: Final[Mapping[str, tuple[str, ...]]] = {
    "resources": ("resources/list", "resources/templates/list"),
    "tools": ("tools/list",),
    "prompts": ("prompts/list",),
}
"""The lists of each capability."""


@dataclass(frozen=True)
class Call:
    """A request that was sent, and the reply."""

    id: int
    method: str
    params: Fields
    reply: Reply

    @property
    def name(self) -> str:
        """The method, with the URI if it has one."""
        return " ".join(str(part) for part in (self.method, self.params.get("uri")) if part)

    @property
    def error(self) -> Fields:
        """The error, or an empty object."""
        return fields_of(fields_of(self.reply.answer).get("error"))

    @property
    def code(self) -> Any:
        """The code of the error, or None."""
        return self.error.get("code")

    @cached_property
    def result(self) -> Fields | None:
        """The result, or None."""
        result = fields_of(self.reply.answer).get("result")
        return cast("Fields", result) if isinstance(result, dict) else None

    @property
    def said(self) -> str:
        """The answer in a few words."""
        said = f"error {self.code}" if self.error else "no response"
        if self.result is not None:
            said = "a result"
        return said if self.reply.status is None else f"{said}, status {self.reply.status}"


class Refusal(NamedTuple):
    """A request that every server refuses with one of these codes, in HTTP with this status.

    Without codes only the status counts.
    """

    rule: str
    what: str
    method: str
    params: Fields
    codes: tuple[int, ...] = (INVALID_PARAMS,)
    status: int = 0
    headers: Mapping[str, str] = {}


def refusals(skill: str, files: list[str], *, has_folders: bool) -> Iterator[Refusal]:
    """Yield requests for what does not exist, beside a skill with these files."""
    folder = (skill or f"skill://{_ABSENT}/{SKILL_MD}").removesuffix(f"/{SKILL_MD}")
    supporting = [uri for uri in files if not uri.endswith(f"/{SKILL_MD}")]
    for uri in (f"skill://{_ABSENT}-either/{SKILL_MD}", folder, *supporting[:1]):
        yield Refusal("S40-24", "which is no skill", GET, {"uri": uri})
    absent = {"uri": f"{folder}/{_ABSENT}"}
    codes = (INVALID_PARAMS, NOT_FOUND)  # the other era's code is MCP-16
    yield Refusal("S40-30", "which does not exist", READ, absent, codes)
    if has_folders:
        yield Refusal("S40-28", "which does not exist", DIRECTORY_READ, absent)
    if has_folders and skill:
        yield Refusal("S40-28", "which is a file", DIRECTORY_READ, {"uri": skill})
    yield Refusal("MCP-21", "with a made-up cursor", LIST, {"cursor": f"{_ABSENT}!"})
    method = "probe/no-such-method"
    yield Refusal("MCP-43", "which does not exist", method, {}, (METHOD_NOT_FOUND,), 404)


def modern_refusals(*, is_http: bool) -> Iterator[Refusal]:
    """Yield requests with an invalid envelope, and with headers that differ from the body."""
    old = {"_meta": {**ENVELOPE, f"{META}protocolVersion": OLD_VERSION}}
    header = {"MCP-Protocol-Version": OLD_VERSION}
    codes = (UNSUPPORTED_VERSION,)
    yield Refusal("MCP-3", f"in version {OLD_VERSION}", DISCOVER, old, codes, 400, header)
    bare = {"_meta": {f"{META}protocolVersion": MODERN}}
    yield Refusal("MCP-2", "without capabilities", DISCOVER, bare, status=400)
    if is_http:
        codes, header = (HEADER_MISMATCH,), {"Mcp-Method": "tools/list"}
        yield Refusal("MCP-42", "with another Mcp-Method", DISCOVER, {}, codes, 400, header)
        header = {"Origin": "https://probe.invalid"}
        yield Refusal("MCP-45", "with a foreign Origin", DISCOVER, {}, (), 403, header)


def fields_of(value: object) -> Fields:
    """Return a value that is a JSON object, else an empty one."""
    return cast("Fields", value) if isinstance(value, dict) else {}


def items_of(value: object) -> list[Any]:
    """Return a value that is a JSON array, else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def items_with_uri(entry: Fields) -> list[Fields]:
    """Return the listed files of an entry that have a URI."""
    items = map(fields_of, items_of(entry.get("resources")))
    return [item for item in items if isinstance(item.get("uri"), str)]


def files_of(entry: Fields) -> list[Fields]:
    """Return the listed files of an entry that lie in its folder."""
    return [item for item in items_with_uri(entry) if not outside(entry, item["uri"])]


def outside(entry: Fields, uri: str) -> str:
    """Return why a URI names no file in the folder of an entry, or ""."""
    try:
        path_below(entry["uri"].removesuffix(SKILL_MD), uri)
    except EntryRefusedError as error:
        return str(error)
    return ""


def folders_of(entry: Fields) -> set[str]:
    """Return the URIs of a skill's folder and those below it, without a slash at the end."""
    base = entry["uri"].removesuffix(f"/{SKILL_MD}")
    folders = {base}
    for file in files_of(entry):
        folder = file["uri"].rpartition("/")[0]
        while folder != base:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders
