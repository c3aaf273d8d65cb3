"""What a server answered to the probe in one era: the material of the rules.

Nothing is written: only listings, entries and files are requested, and what every server refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, cast

from mcp_skills_server.dialects.sep2640 import EXTENSION
from mcp_skills_server.errors import SkillsServerError, plural
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.probe.connection import LEGACY, META, MODERN, Connection, Reply

DIRECTORY_READ: Final = "resources/directory/read"
LISTS: Final[Mapping[str, tuple[str, str, tuple[str, ...]]]] = {
    "resources/list": ("resources", "resources", ("uri", "name")),
    "resources/templates/list": ("resources", "resourceTemplates", ("uriTemplate", "name")),
    "tools/list": ("tools", "tools", ("name", "inputSchema")),
    "prompts/list": ("prompts", "prompts", ("name",)),
}
"""The capability, the key of the items, and their required fields, by method."""
_CHANGES: Final = {
    "resources": "resourcesListChanged",
    "tools": "toolsListChanged",
    "prompts": "promptsListChanged",
}
_ABSENT: Final = "no-such-name-of-the-probe"
_CLIENT: Final = {"name": "mcp-skills-server probe", "version": "1"}
_CAPABILITIES: Final = {"extensions": {EXTENSION: {}}}
ENVELOPE: Final[Mapping[str, Any]] = {
    META + "protocolVersion": MODERN,
    META + "clientCapabilities": _CAPABILITIES,
    META + "clientInfo": _CLIENT,
}


class _StoppedError(SkillsServerError):
    """The connection is lost, or the number of requests is reached."""


def fields_of(value: object) -> Mapping[str, Any]:
    """Return a value that is a JSON object, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def items_of(value: object) -> list[Any]:
    """Return a value that is a JSON array, else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


@dataclass(frozen=True)
class Call:
    """A request and its reply.

    `aim` is "" for a request that a server answers with a result, else what is wrong with it.
    """

    id: int
    method: str
    params: Mapping[str, Any]
    aim: str
    reply: Reply

    @property
    def name(self) -> str:
        """The method, with the URI if it has one."""
        return " ".join(str(part) for part in (self.method, self.params.get("uri")) if part)

    @cached_property
    def result(self) -> Mapping[str, Any] | None:
        """The result, or None."""
        result = fields_of(self.reply.answer).get("result")
        return cast("Mapping[str, Any]", result) if isinstance(result, dict) else None

    @cached_property
    def code(self) -> Any:
        """The code of the error, or None."""
        return fields_of(fields_of(self.reply.answer).get("error")).get("code")

    @property
    def said(self) -> str:
        """The answer in a few words, for a finding."""
        if self.result is not None:
            return "a result"
        return self.reply.fault or f"error {self.code}"


@dataclass
class Transcript:
    """All calls in one era, in order.

    Attributes:
        stopped: why not all requests were sent, or "".
        ends_alone: whether a command ended with its stdin; None for a URL.
    """

    is_modern: bool
    is_http: bool
    calls: list[Call] = field(default_factory=list[Call])
    stopped: str = ""
    ends_alone: bool | None = None

    def made(self, *methods: str, aim: str = "") -> list[Call]:
        """Return the calls of these methods, or of all, with this aim."""
        return [
            call for call in self.calls if call.aim == aim and (not methods or call.method in methods)
        ]

    @property
    def hello(self) -> Mapping[str, Any]:
        """The result of the first request."""
        return (self.calls[0].result if self.calls else None) or {}

    @property
    def era(self) -> str:
        """The name of the era."""
        return "modern" if self.is_modern else "legacy"

    @property
    def is_spoken(self) -> bool:
        """Return whether the server speaks this era."""
        version = self.hello.get("protocolVersion")
        return bool(self.hello) if self.is_modern else isinstance(version, str)

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the server declares."""
        return fields_of(self.hello.get("capabilities"))

    @property
    def settings(self) -> Any:
        """The settings of the extension; None if the server does not declare it."""
        return fields_of(self.capabilities.get("extensions")).get(EXTENSION)

    @property
    def listed(self) -> list[Any]:
        """The entries of all pages of `skills/list`, unvalidated."""
        pages = (items_of(fields_of(call.result).get("skills")) for call in self.made("skills/list"))
        return [entry for page in pages for entry in page]

    @cached_property
    def entries(self) -> list[Mapping[str, Any]]:
        """The listed entries whose form can be judged further, each once."""
        entries: dict[str, Mapping[str, Any]] = {}
        for entry in map(fields_of, self.listed):
            uri, frontmatter = entry.get("uri"), entry.get("frontmatter")
            is_uri = isinstance(uri, str) and uri.endswith(f"/{SKILL_MD}")
            if is_uri and isinstance(frontmatter, dict):
                entries.setdefault(uri, entry)
        return list(entries.values())

    def result_of(self, method: str, uri: str) -> Mapping[str, Any] | None:
        """Return the first result of a method about a URI, or None."""
        calls = (call for call in self.made(method) if call.params.get("uri") == uri)
        return next((call.result for call in calls), None)


def base_of(entry: Mapping[str, Any]) -> str:
    """Return the URI of a skill's folder, with a slash at its end."""
    return entry["uri"].removesuffix(SKILL_MD)


def files_of(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the listed files of an entry that have a URI."""
    items = map(fields_of, items_of(entry.get("resources")))
    return [item for item in items if isinstance(item.get("uri"), str)]


def folders_of(entry: Mapping[str, Any]) -> list[str]:
    """Return the URIs of a skill's folder and the folders below it, without a slash at the end."""
    base = base_of(entry)
    folders = {base.removesuffix("/")}
    for file in files_of(entry):
        if file["uri"].startswith(base):
            parts = file["uri"].removeprefix(base).split("/")[:-1]
            folders |= {base + "/".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return sorted(folders)


async def explore(
    connection: Connection, *, is_modern: bool, is_http: bool, max_requests: int
) -> Transcript:
    """Send at most `max_requests` requests, and return what came back."""
    transcript = Transcript(is_modern, is_http)
    explorer = _Explorer(connection, transcript, max_requests)
    try:
        await explorer.run()
    except _StoppedError as stop:
        transcript.stopped = str(stop)
    return transcript


class _Explorer:
    def __init__(self, connection: Connection, transcript: Transcript, max_requests: int) -> None:
        self._connection = connection
        self._seen = transcript
        self._left = max_requests

    async def run(self) -> None:
        seen = self._seen
        if seen.is_modern:
            await self._ask("server/discover")
        else:
            hello = {"protocolVersion": LEGACY, "clientInfo": _CLIENT}
            await self._ask("initialize", capabilities=_CAPABILITIES, **hello)
        settings = seen.settings
        # S40-55: another revision may mean anything
        if not seen.is_spoken or settings is None or fields_of(settings).get("revision") is not None:
            return
        if not seen.is_modern:
            await self._notify("notifications/initialized")
        await self._pages("skills/list")
        for method, (capability, _, _) in LISTS.items():
            if capability in seen.capabilities:
                await self._pages(method)
        await self._refused()
        if seen.is_modern:
            await self._refused_in_modern_era()
        try:
            for entry in seen.entries:
                await self._skill(entry)
        finally:
            if self._left <= 0 or seen.calls[-1].reply.fault == "":
                self._left = 1
                await self._subscribe()

    async def _ask(
        self, method: str, aim: str = "", headers: Mapping[str, str] | None = None, **params: Any
    ) -> Call:
        if self._left <= 0:
            raise _StoppedError(f"it stopped after {plural(len(self._seen.calls), 'request')}")
        self._left -= 1
        id_ = len(self._seen.calls) + 1
        if self._seen.is_modern:
            params = {"_meta": ENVELOPE, **params}
        message = {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}
        is_stream = method == "subscriptions/listen"
        reply = await self._connection.exchange(message, headers or {}, is_stream=is_stream)
        self._seen.calls.append(Call(id_, method, params, aim, reply))
        if reply.is_lost:
            raise _StoppedError("it stopped when the connection was lost")
        return self._seen.calls[-1]

    async def _notify(self, method: str, **params: Any) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        reply = await self._connection.exchange(message, {})
        self._seen.calls.append(Call(0, method, params, "notification", reply))

    async def _pages(self, method: str, **params: Any) -> None:
        """Request all pages, until a cursor comes back a second time."""
        page = await self._ask(method, **params)
        cursors: set[str] = set()
        while page.result is not None:
            cursor = page.result.get("nextCursor")
            if not isinstance(cursor, str) or cursor in cursors:
                return
            cursors.add(cursor)
            page = await self._ask(method, **params, cursor=cursor)

    async def _skill(self, entry: Mapping[str, Any]) -> None:
        await self._ask("skills/get", uri=entry["uri"])
        read = {call.params["uri"] for call in self._seen.made("resources/read", DIRECTORY_READ)}
        for uri in dict.fromkeys([entry["uri"], *(file["uri"] for file in files_of(entry))]):
            if uri not in read:
                await self._ask("resources/read", uri=uri)
        if fields_of(self._seen.settings).get("directoryRead") is True:  # S40-34
            for folder in folders_of(entry):
                if folder not in read:
                    await self._pages(DIRECTORY_READ, uri=folder)

    async def _refused(self) -> None:
        """Request what no server has: unknown URIs, a bad cursor, an unknown method."""
        skill = next(iter(self._seen.entries), {"uri": f"skill://{_ABSENT}/{SKILL_MD}"})
        base = base_of(skill)
        others = [file["uri"] for file in files_of(skill) if file["uri"] != skill["uri"]]
        unknown = [f"skill://{_ABSENT}-either/{SKILL_MD}", base.removesuffix("/"), *others[:1]]
        for uri in unknown:
            await self._ask("skills/get", "absent", uri=uri)
        await self._ask("resources/read", "absent", uri=f"{base}{_ABSENT}.md")
        if fields_of(self._seen.settings).get("directoryRead") is True:
            await self._ask(DIRECTORY_READ, "absent", uri=f"{base}{_ABSENT}")
            if self._seen.entries:
                await self._ask(DIRECTORY_READ, "absent", uri=skill["uri"])
        await self._ask("skills/list", "cursor", cursor=f"{_ABSENT}!")
        await self._ask("probe/no-such-method", "method")

    async def _refused_in_modern_era(self) -> None:
        """Send invalid envelopes, and over HTTP headers that do not agree with the body."""
        version = {"_meta": {**ENVELOPE, META + "protocolVersion": "1900-01-01"}}
        header = {"MCP-Protocol-Version": "1900-01-01"}
        await self._ask("server/discover", "version", header, **version)
        await self._ask("server/discover", "envelope", **{"_meta": {META + "protocolVersion": MODERN}})
        if self._seen.is_http:
            await self._ask("server/discover", "header", {"Mcp-Method": "tools/list"})
            await self._ask("server/discover", "origin", {"Origin": "https://probe.invalid"})
            await self._notify("notifications/cancelled", requestId=_ABSENT, _meta=ENVELOPE)

    async def _subscribe(self) -> None:
        """Subscribe to what the server declares; over pipes nothing may follow."""
        declared = self._seen.capabilities
        if self._seen.is_modern:
            wanted = {
                name: True
                for capability, name in _CHANGES.items()
                if fields_of(declared.get(capability)).get("listChanged") is True
            }
            if wanted:
                await self._ask("subscriptions/listen", notifications=wanted)
        elif fields_of(declared.get("resources")).get("subscribe") is True and self._seen.entries:
            self._left = 2
            uri = self._seen.entries[0]["uri"]
            await self._ask("resources/subscribe", uri=uri)
            await self._ask("resources/unsubscribe", uri=uri)


def texts(value: object) -> Iterator[str]:
    """Yield the strings of a JSON array."""
    yield from (item for item in items_of(value) if isinstance(item, str))
