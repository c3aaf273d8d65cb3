"""The probe: bounded requests to a server in one era, whose answers are judged as they come.

Nothing is written: it asks for listings, entries and files, and for what every server refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mcp_skills_server.dialects.dialect import is_initial
from mcp_skills_server.dialects.sep2640 import EXTENSION
from mcp_skills_server.errors import SkillsServerError, plural, quoted
from mcp_skills_server.probe.answers import (
    CAPABILITIES,
    DIRECTORY_READ,
    ENVELOPE,
    GET,
    HANDSHAKE,
    LIST,
    LISTEN,
    READ,
    SHAPES,
    Call,
    Fields,
    fields_of,
    files_of,
    folders_of,
    items_of,
    modern_refusals,
    refusals,
)
from mcp_skills_server.probe.connection import MODERN, Connection, LostError
from mcp_skills_server.probe.judge import Judge, fingerprint
from mcp_skills_server.probe.report import Verdicts
from mcp_skills_server.server.eras import DISCOVER, INITIALIZE

_LEAKED: Final = frozenset(("config", "specVersion", "stability", "id"))
_CHANGES: Final = {
    "resources": "resourcesListChanged",
    "tools": "toolsListChanged",
    "prompts": "promptsListChanged",
}
_NO_MORE: Final = "--max-requests allows no more requests"


class NotSpokenError(SkillsServerError):
    """The server does not speak this era, or not a revision of the extension that is known."""


class Prober:
    """Probes a server in one era, with at most `max_requests` requests."""

    def __init__(self, connection: Connection, *, is_modern: bool, max_requests: int) -> None:
        self.verdicts = Verdicts()
        self._connection = connection
        self._is_modern = is_modern
        self._is_http = False
        self._left = max_requests
        self._judge = Judge(self.verdicts, is_modern=is_modern)
        self._read: dict[str, tuple[int, str] | None] = {}
        self._listed: set[str] = set()
        self._served: list[str] = []

    async def run(self) -> None:
        """Send the requests, and judge the answers.

        Raises:
            NotSpokenError: there is nothing to judge.
        """
        method, params = (DISCOVER, {}) if self._is_modern else (INITIALIZE, HANDSHAKE)
        try:
            call = await self._send(method, params)
        except LostError as error:
            raise NotSpokenError(str(error)) from None
        if call.result is None or not (self._is_modern or "protocolVersion" in call.result):
            raise NotSpokenError(f"{method}: {call.said}")
        self._is_http = call.reply.status is not None
        capabilities = fields_of(call.result.get("capabilities"))
        settings = fields_of(capabilities.get("extensions")).get(EXTENSION)
        if not is_initial(fields_of(settings)):
            revision = quoted(str(fields_of(settings)["revision"]))
            raise NotSpokenError(f"revision {revision} of the extension is not known here")
        self._judge.response(call)
        judge, leaked = self.verdicts.judge, sorted(fields_of(settings).keys() & _LEAKED)
        if self._is_modern:
            versions = items_of(call.result.get("supportedVersions"))
            judge("MCP-5", MODERN in versions, f"supportedVersions lacks {MODERN}")
        if not isinstance(settings, dict):
            return
        judge("S40C-1", not leaked, f"the settings have {', '.join(leaked)}")
        judge("S40-4", "resources" in capabilities, "capabilities have no resources")
        try:
            await self._survey(capabilities, has_folders=settings.get("directoryRead") is True)
        except LostError as error:
            self.verdicts.stopped = f"it ended early: {error}"

    async def _survey(self, capabilities: Fields, *, has_folders: bool) -> None:
        if not self._is_modern:
            await self._notify("notifications/initialized", {})
        entries = self._judge.entries(await self._list(LIST) or [])
        self.verdicts.skills = len(entries)
        resources: list[Any] = []
        for capability in CAPABILITIES.keys() & capabilities.keys():
            for method in CAPABILITIES[capability]:
                items = await self._list(method) or []
                if method == "tools/list":
                    self._judge.names(items)
                elif method == "resources/list":
                    resources = items
        uri = entries[0]["uri"] if entries else ""
        files = [file["uri"] for file in files_of(entries[0])] if entries else []
        rows = [*refusals(uri, files, has_folders=has_folders)]
        if self._is_modern:
            rows += modern_refusals(is_http=self._is_http)
            await self._notify("notifications/cancelled", {"requestId": "no-such-request"})
        for row in rows:
            self._judge.refused(await self._send(row.method, row.params, row.headers), row)
        await self._skills(entries, has_folders=has_folders)
        self._judge.metadata(resources)
        self._left = max(self._left, 2)
        await self._subscribe(capabilities, uri)

    async def _skills(self, entries: list[Fields], *, has_folders: bool) -> None:
        for entry in entries:
            self._judge.entry(entry)
        for number, entry in enumerate(entries):
            if self._left < 1 + len(files_of(entry)) + len(folders_of(entry)):
                looked = f"{number:,} of {plural(len(entries), 'skill')}"
                self.verdicts.stopped = f"it looked at {looked}: {_NO_MORE}"
                break
            await self._skill(entry, has_folders=has_folders)
        self._judge.completeness(entries, self._served)

    async def _skill(self, entry: Fields, *, has_folders: bool) -> None:
        call = await self._ask(GET, uri=entry["uri"])
        if call.result is not None:
            self._judge.same(entry, call.result)
        for uri in dict.fromkeys([entry["uri"], *(file["uri"] for file in files_of(entry))]):
            is_skill_md = uri == entry["uri"]
            if is_skill_md or uri not in self._read:
                raw = self._judge.content(await self._ask(READ, uri=uri))
                self._read[uri] = None if raw is None else fingerprint(raw)
                if is_skill_md and raw is not None:
                    self._judge.skill_md(entry, raw)
        for file in files_of(entry):
            if (seen := self._read[file["uri"]]) is not None:
                self._judge.file(file, *seen)
        pending = sorted(folders_of(entry)) if has_folders else []
        for folder in pending:  # it grows by folders without a listed file
            if folder not in self._listed:
                self._listed.add(folder)
                children = await self._list(DIRECTORY_READ, uri=folder)
                if children is not None:
                    served, folders = self._judge.directory(entry, folder, children)
                    self._served += served
                    pending += folders

    async def _list(self, method: str, **params: Any) -> list[Any] | None:
        """Return the items of all pages; None if there is no list. A repeated cursor ends them."""
        shape: Any = SHAPES[method][1]
        (key,) = shape
        judge = self.verdicts.judge
        items: list[Any] = []
        scopes: list[str] = []
        cursors: set[str] = set()
        page = await self._ask(method, **params)
        while page.result is not None:
            items += items_of(page.result.get(key))
            scopes.append(str(page.result.get("cacheScope")))
            cursor = page.result.get("nextCursor")
            is_new = cursor is None or (isinstance(cursor, str) and cursor not in cursors)
            judge("S40-22", is_new, f"{page.name}: the nextCursor {quoted(str(cursor))}")
            if cursor is None or not is_new:
                break
            cursors.add(cursor)
            page = await self._ask(method, **params, cursor=cursor)
        if not isinstance(fields_of(page.result).get(key), list):
            return None
        if len(scopes) > 1 and self._is_modern and method != DIRECTORY_READ:
            judge("MCP-24", len(set(scopes)) == 1, f"{method}: {', '.join(sorted(set(scopes)))}")
        return items

    async def _subscribe(self, capabilities: Fields, uri: str) -> None:
        """Subscribe to what the server declares, and end that at once."""
        declared = {name: fields_of(capabilities.get(name)) for name in _CHANGES}
        if not self._is_modern and uri and declared["resources"].get("subscribe") is True:
            await self._ask("resources/subscribe", uri=uri)
            await self._ask("resources/unsubscribe", uri=uri)
        wanted = [
            key for name, key in _CHANGES.items() if declared[name].get("listChanged") is True
        ]
        if self._is_modern and wanted:  # over pipes nothing can follow
            params = {"notifications": dict.fromkeys(wanted, True)}
            self._judge.subscription(await self._send(LISTEN, params))

    async def _ask(self, method: str, **params: Any) -> Call:
        """Send a valid request, and judge the response as such."""
        call = await self._send(method, params)
        self._judge.response(call)
        return call

    async def _send(
        self, method: str, params: Fields, headers: Mapping[str, str] | None = None
    ) -> Call:
        if self._left < 1:
            raise LostError(_NO_MORE)
        self._left -= 1
        self.verdicts.requests += 1
        if self._is_modern:
            params = {"_meta": ENVELOPE, **params}
        id_, is_stream = self.verdicts.requests, method == LISTEN
        message = {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}
        try:
            reply = await self._connection.exchange(message, headers or {}, is_stream=is_stream)
        except LostError as error:
            if id_ > 1:
                self.verdicts.judge("MCP-15", False, f"{method}: {error}")
            raise
        return Call(id_, method, params, reply)

    async def _notify(self, method: str, params: Fields) -> None:
        """Send a notification, and judge its status in HTTP."""
        if self._is_modern:
            params = {"_meta": ENVELOPE, **params}
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        reply = await self._connection.exchange(message, {})
        if self._is_http:
            is_empty = reply.answer is None and not reply.before and not reply.noise
            fault = f"{method}: status {reply.status}{'' if is_empty else ' and a body'}"
            self.verdicts.judge("MCP-44", reply.status == 202 and is_empty, fault)
