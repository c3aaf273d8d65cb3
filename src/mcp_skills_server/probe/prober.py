"""The probe: bounded requests to a server in one era, whose answers are judged as they come.

Nothing is written: it asks for listings, entries and files, and for what every server refuses. What
breaks one rule is no material of the others: an entry without a URI has no name to compare.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mcp_skills_server.codes import CODES
from mcp_skills_server.dialects.dialect import is_initial
from mcp_skills_server.dialects.jsonrpc import METHOD_NOT_FOUND
from mcp_skills_server.dialects.remote_entries import (
    MAX_BYTES,
    MAX_FILES,
    EntryRefusedError,
    is_same,
    path_below,
)
from mcp_skills_server.errors import SkillsServerError, clipped, listed, quoted
from mcp_skills_server.format import frontmatter
from mcp_skills_server.format.fields import items, mapping
from mcp_skills_server.format.uris import SCHEME
from mcp_skills_server.model import SKILL_MD, Standing
from mcp_skills_server.model.digests import digest_of, is_digest
from mcp_skills_server.probe.connection import (
    LEGACY,
    MODERN,
    Fields,
    LostError,
    ProbeCall,
    ProbeConnection,
)
from mcp_skills_server.probe.rules import Verdicts, rules, rules_with, shape_of
from mcp_skills_server.server.eras import DISCOVER, INITIALIZE, shape_error
from mcp_skills_server.validation.rules import check

_META: Final = "io.modelcontextprotocol/"
_EXTENSION: Final = f"{_META}skills"
_LIST: Final = "skills/list"
_GET: Final = "skills/get"
_READ: Final = "resources/read"
_FOLDER: Final = "resources/directory/read"
_LISTEN: Final = "subscriptions/listen"
_KEYS: Final = {
    _LIST: "skills",
    _FOLDER: "resources",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "tools/list": "tools",
    "prompts/list": "prompts",
}
"""The key of the items, by method."""
_OLD_CODES: Final = (-32002, -32042)
_CODES: Final = (-32020, -32021, -32022, *_OLD_CODES)
_CLIENT: Final = {"name": "mcp-skills-server probe", "version": "1"}
_CAPABILITIES: Final[Fields] = {"extensions": {_EXTENSION: {}}}
_ENVELOPE: Final[Fields] = {
    f"{_META}protocolVersion": MODERN,
    f"{_META}clientCapabilities": _CAPABILITIES,
    f"{_META}clientInfo": _CLIENT,
}
_HANDSHAKE: Final[Fields] = {
    "protocolVersion": LEGACY,
    "capabilities": _CAPABILITIES,
    "clientInfo": _CLIENT,
}
_SEGMENT: Final = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+")
_NO_MORE: Final = "--max-requests allows no more requests"


class NotSpokenError(SkillsServerError):
    """The server does not speak this era, or not a revision of the extension that is known."""


class Prober:
    """Probes a server in one era, with at most `max_requests` requests."""

    def __init__(self, connection: ProbeConnection, *, is_modern: bool, max_requests: int) -> None:
        self.verdicts = Verdicts()
        self._judge = self.verdicts.judge
        self._connection = connection
        self._is_modern = is_modern
        self._is_http = False
        self._reads_folders = False
        self._max_requests = max_requests
        self._count = 0
        self._read: dict[str, tuple[int, str] | None] = {}
        self._frontmatters: dict[str, Fields] = {}
        self._folders: set[str] = set()
        self._served: set[str] = set()

    async def run(self) -> None:
        """Send the requests, and judge the answers.

        Raises:
            NotSpokenError: there is nothing to judge.
        """
        method, params = (DISCOVER, {}) if self._is_modern else (INITIALIZE, _HANDSHAKE)
        try:
            call = await self._send(method, params)
        except LostError as error:
            raise NotSpokenError(str(error)) from None
        if call.result is None or not (self._is_modern or "protocolVersion" in call.result):
            hint = "; give a valid token by --token-env" if call.status == 401 else ""
            raise NotSpokenError(f"{method}: {call.said}{hint}")
        self._is_http = call.status is not None
        capabilities = mapping(call.result.get("capabilities"))
        settings = mapping(capabilities.get("extensions")).get(_EXTENSION)
        if not is_initial(mapping(settings)):
            revision = quoted(str(mapping(settings)["revision"]))
            raise NotSpokenError(f"revision {revision} of the extension is not known here")
        if settings is None and not self._is_modern:  # SEP-2640 is of MCP 2026-07-28 or later
            raise NotSpokenError("the extension is not declared")
        self._response(call)
        if settings is None:
            return
        self._reads_folders = mapping(settings).get("directoryRead") is True  # S40-34
        self._judge("S40-4", "resources" in capabilities, "capabilities have no resources")
        try:
            await self._survey(capabilities)
        except LostError as error:
            self.verdicts.stopped.append(f"it ended early: {error}")

    async def _survey(self, capabilities: Fields) -> None:
        if not self._is_modern:
            await self._notify("notifications/initialized", {})
        entries = self._entries(await self._pages(_LIST) or [])
        self.verdicts.skills.update(entry["uri"] for entry in entries)
        listings: dict[str, list[Any] | None] = {}
        for method in _KEYS:
            if method.partition("/")[0] in capabilities and method not in (_LIST, _FOLDER):
                listings[method] = await self._pages(method)
        await self._refusals(entries)
        for entry in entries:
            self._entry(entry)
        try:
            for entry in entries:
                await self._skill(entry)
        finally:
            self._completeness(entries)
            self._metadata(listings.get("resources/list") or [])
        await self._subscribe(capabilities, entries)

    async def _skill(self, entry: Fields) -> None:
        call = await self._ask(_GET, uri=entry["uri"])
        if call.result is not None:
            self._same(entry, call.result)
        for uri in dict.fromkeys([entry["uri"], *(file["uri"] for file in _files(entry))]):
            if uri not in self._read or uri == entry["uri"]:
                raw = self._content(await self._ask(_READ, uri=uri))
                self._read[uri] = None if raw is None else (len(raw), digest_of(raw))
                if uri == entry["uri"] and raw is not None:
                    self._skill_md(entry, raw)
        for file in _files(entry):
            uri, size, digest, real = file["uri"], file.get("size"), file.get("digest"), None
            if is_digest(digest) and type(size) is int:
                real = self._read[uri]
            if real is not None:
                self._judge("S40-18", real[0] == size, f"{uri}: size {size}, not {real[0]}")
                is_kept = real[0] != size or real[1] == digest
                self._judge("S40-18", is_kept, f"{uri}: digest {digest}, not {real[1]}")
        pending = sorted(_folders(entry)) if self._reads_folders else []
        for folder in pending:  # it grows by folders without a listed file
            if folder not in self._folders:
                self._folders.add(folder)
                children = await self._pages(_FOLDER, uri=folder)
                if children is not None:
                    pending += self._directory(entry, folder, children)

    async def _pages(self, method: str, **params: Any) -> list[Any] | None:
        """Return the items of all pages; None if there is no list. A repeated cursor ends them."""
        key, rows, cursors, scopes = _KEYS[method], list[Any](), set[str](), set[str]()
        page = await self._ask(method, **params)
        while page.result is not None:
            rows += items(page.result.get(key))
            scopes.add(str(page.result.get("cacheScope")))
            cursor = page.result.get("nextCursor")
            if not isinstance(cursor, str) or cursor in cursors:
                fault = f"{page.name}: the nextCursor {quoted(str(cursor))}"
                self._judge("S40-22", cursor is None, fault)
                break
            cursors.add(cursor)
            page = await self._ask(method, **params, cursor=cursor)
        if not isinstance(mapping(page.result).get(key), list):
            return None
        if cursors and self._is_modern and method != _FOLDER:
            self._judge("MCP-24", len(scopes) == 1, f"{method}: {listed(sorted(scopes))}")
        return rows

    async def _refusals(self, entries: list[Fields]) -> None:
        """Send the requests that every server refuses."""
        known: dict[str, str] = {}
        for entry in entries[:1]:
            skill = entry["uri"]
            known = {"skill": skill, "folder": skill.removesuffix(f"/{SKILL_MD}")}
            for file in _files(entry):
                if not file["uri"].endswith(f"/{SKILL_MD}"):
                    known["file"] = file["uri"]
        for id_ in rules():
            for row in rules()[id_].get("refused", ()):
                is_other = row.get("modern", False) and not self._is_modern
                is_other |= row.get("http", False) and not self._is_http
                is_other |= row["method"] == _FOLDER and not self._reads_folders
                params = dict(row.get("params", {}))
                try:
                    if "uri" in params:
                        params["uri"] = params["uri"].format_map(known)
                except KeyError:  # no skill is listed, or it has no such file
                    is_other = True
                if is_other:
                    continue
                call = await self._send(row["method"], params, row.get("headers"))
                self._refused(id_, row, call)
        if self._is_modern:
            await self._notify("notifications/cancelled", {"requestId": "no-such-request"})

    async def _subscribe(self, capabilities: Fields, entries: list[Fields]) -> None:
        """Subscribe to what the server declares, and end that at once."""
        kinds = ("resources", "tools", "prompts")
        declared = {kind: mapping(capabilities.get(kind)) for kind in kinds}
        if not self._is_modern and entries and declared["resources"].get("subscribe") is True:
            await self._ask("resources/subscribe", uri=entries[0]["uri"])
            await self._ask("resources/unsubscribe", uri=entries[0]["uri"])
        wanted = [
            f"{kind}ListChanged" for kind in kinds if declared[kind].get("listChanged") is True
        ]
        if not self._is_modern or not wanted:
            return
        # over pipes nothing can follow
        call = await self._send(_LISTEN, {"notifications": dict.fromkeys(wanted, True)})
        params, method = mapping(call.answer.get("params")), call.answer.get("method", call.said)
        is_first = method == "notifications/subscriptions/acknowledged"
        if self._judge(
            "MCP-35", is_first, f"listChanged is declared, but {quoted(method)} is sent"
        ):
            more = sorted(mapping(params.get("notifications")).keys() - set(wanted))
            self._judge("MCP-35", not more, f"it acknowledges {listed(more)}, too")
            id_ = mapping(params.get("_meta")).get(f"{_META}subscriptionId")
            self._judge("MCP-36", id_ == self._count, f"the subscriptionId {quoted(str(id_))}")

    async def _ask(self, method: str, **params: Any) -> ProbeCall:
        """Send a valid request, and judge the response as such."""
        call = await self._send(method, params)
        self._response(call)
        return call

    async def _send(
        self, method: str, params: Fields, headers: Mapping[str, str] | None = None
    ) -> ProbeCall:
        if self._count >= self._max_requests:
            raise LostError(_NO_MORE)
        self._count += 1
        message = {**self._message(method, params), "id": self._count}
        is_stream = method == _LISTEN
        try:
            return await self._connection.exchange(message, headers or {}, is_stream=is_stream)
        except LostError as error:
            if self._count > 1:
                self._judge("MCP-15", False, f"{method}: {error}")
            raise

    async def _notify(self, method: str, params: Fields) -> None:
        """Send a notification, and judge its status in HTTP."""
        call = await self._connection.exchange(self._message(method, params), {})
        if self._is_http:
            is_empty = not call.answer and not call.before and not call.noise
            fault = f"{method}: status {call.status}{'' if is_empty else ' and a body'}"
            self._judge("MCP-44", call.status == 202 and is_empty, fault)

    def _message(self, method: str, params: Fields) -> Fields:
        if self._is_modern:
            params = {"_meta": _ENVELOPE, **params}
        return {"jsonrpc": "2.0", "method": method, "params": params}

    # Judgements

    def _shaped(self, name: str, shown: str, value: object) -> None:
        """Judge a result of a method, or an entry, by the shapes of all rules."""
        for kind in ("shapes", "modern") if self._is_modern else ("shapes",):
            for id_ in rules_with(kind, name):
                reason = shape_error(value, shape_of(rules()[id_][kind][name]), "it")
                self._judge(id_, reason is None, f"{shown}: {reason}")

    def _response(self, call: ProbeCall) -> None:
        """Judge the response to a valid request."""
        method, error, result = call.message["method"], call.error, call.result
        is_error = type(error.get("code")) is int and isinstance(error.get("message"), str)
        is_one = (result is not None) is not is_error and {"result", "error"} - call.answer.keys()
        id_ = call.answer.get("id")
        is_ours = type(id_) is int and id_ == call.message["id"]
        said = str(dict(call.answer)) if call.answer else f"{call.said} {listed(call.noise)}"
        is_valid = call.answer.get("jsonrpc") == "2.0" and is_one and is_ours
        self._judge("MCP-15", is_valid, f"{call.name}: {clipped(said)}")
        if not self._is_http:
            self._judge("MCP-50", not call.noise, f"stdout has {quoted(listed(call.noise))}")
        self._before(call)
        is_unknown = error.get("code") == METHOD_NOT_FOUND
        is_optional = is_unknown and method == "resources/templates/list"
        for id_ in rules_with("missing", method):
            self._judge(id_, not is_unknown, f"{call.name}: {call.said}")
        if not (is_unknown and rules_with("missing", method)):
            for id_ in rules_with("errors", method):
                self._judge(id_, not is_error or is_optional, f"{call.name}: {call.said}")
        if result is not None:
            self._shaped(method, call.name, result)
            ttl = result.get("ttlMs")
            if self._is_modern and type(ttl) is int:
                self._judge("MCP-23", ttl >= 0, f"{call.name}: ttlMs {ttl}")

    def _before(self, call: ProbeCall) -> None:
        """Judge the messages before a modern response, and the code of its error."""
        if not self._is_modern:
            return
        requests = [str(message["method"]) for message in call.before if "id" in message]
        notices = [str(message["method"]) for message in call.before if "id" not in message]
        changes = [method for method in notices if method.endswith(("_changed", "/updated"))]
        self._judge("MCP-14", not requests, f"{call.name}: it sent {listed(requests)}")
        self._judge("MCP-34", not changes, f"{call.name}: it sent {listed(changes)}")
        self._judge("MCP-54", "notifications/message" not in notices, f"{call.name}: it sent a log")
        code = call.error.get("code")
        if type(code) is int:
            is_own = -32099 <= code <= -32020 and code not in _CODES
            self._judge("MCP-16", code not in _OLD_CODES, f"{call.name}: error {code}")
            self._judge("MCP-20", not is_own, f"{call.name}: error {code}")

    def _refused(self, id_: str, row: Fields, call: ProbeCall) -> None:
        """Judge the response to an invalid request."""
        code, codes = call.error.get("code"), row.get("codes", ())
        is_status = not self._is_modern or call.status in (None, row.get("status", call.status))
        is_kept = is_status and (not codes or code in codes)
        if code == METHOD_NOT_FOUND:
            id_ = (*rules_with("missing", row["method"]), id_)[0]
        if row["method"] == _READ:
            is_empty = call.result is not None and not items(call.result.get("contents"))
            self._judge("MCP-18", not is_empty, f"{call.name}: empty contents")
            is_kept = is_kept or is_empty
        self._judge(id_, is_kept, f"{call.name}, {row['what']}: {call.said}")
        self._before(call)
        if is_kept and "error" in row:
            reason = shape_error(call.error, shape_of(row["error"]), "the error")
            self._judge(id_, reason is None, f"{call.name}, {row['what']}: {reason}")

    def _entries(self, rows: Iterable[Any]) -> list[Fields]:
        """Judge the form of listed entries, and return those that can be judged further."""
        entries: dict[str, Fields] = {}
        for entry in filter(None, map(mapping, rows)):
            uri, fields = entry.get("uri"), entry.get("frontmatter")
            self._shaped("entry", clipped(str(uri)), entry)
            if isinstance(uri, str) and isinstance(fields, dict):
                is_file = uri.endswith(f"/{SKILL_MD}")
                if self._judge("S40-12", is_file, f"{clipped(uri)} is no {SKILL_MD}"):
                    self._judge("S40-22", uri not in entries, f"{uri} is listed twice")
                    entries.setdefault(uri, entry)
        return list(entries.values())

    def _entry(self, entry: Fields) -> None:
        """Judge a listed entry by itself."""
        uri, listed_files, files = entry["uri"], _items_with_uri(entry), _files(entry)
        name = entry["frontmatter"].get("name")
        self._judge("S40-14", uri.split("/")[-2] == name, f"{uri}: the name {quoted(str(name))}")
        self._judge("S40-6", uri.startswith(SCHEME), uri)
        for item in listed_files:
            reason = _outside(entry, item["uri"])
            self._judge("S40-17", not reason, reason)
            is_form = is_digest(item.get("digest")) and type(item.get("size")) is int
            said = f"digest {quoted(str(item.get('digest')))}, size {quoted(str(item.get('size')))}"
            self._judge("S40-18", is_form, f"{item['uri']}: {said}")
        for address in {uri, *(file["uri"] for file in files)}:
            segments = address.partition("://")[2].split("/")
            is_valid = all(_SEGMENT.fullmatch(segment) for segment in segments)
            self._judge("S40-8", is_valid, quoted(address))
        if isinstance(entry.get("resources"), list):
            size = sum(file["size"] for file in files if type(file.get("size")) is int)
            is_small = len(files) <= MAX_FILES and size <= MAX_BYTES
            self._judge("S40-19", is_small, f"{uri}: {len(files):,} files, {size:,} bytes")
            for address, count in Counter(file["uri"] for file in files).items():
                self._judge("S40-16", count == 1, f"{uri} lists {quoted(address)} {count} times")

    def _same(self, entry: Fields, result: Fields) -> None:
        """Judge the entry of `skills/get` by that of `skills/list`."""
        uri, got = entry["uri"], mapping(result.get("skill"))
        self._judge("S40-23", "nextCursor" not in result, f"skills/get {uri}: a cursor")
        if got:
            keys = ("uri", "frontmatter", "resources")
            other = [key for key in keys if not is_same(got.get(key), entry.get(key))]
            self._judge("S40-26", not other, f"{uri}: other {listed(other)} than in skills/list")

    def _content(self, call: ProbeCall) -> bytes | None:
        """Judge the content of a listed file, and return its bytes; None if it has none."""
        contents = items(mapping(call.result).get("contents"))
        content: Fields = mapping(contents[0]) if len(contents) == 1 else {}
        is_ours = content.get("uri") == call.message["params"]["uri"]
        raw = _bytes(content) if is_ours else None
        if call.result is not None:
            self._judge("MCP-55", raw is not None, f"{call.name}: other contents")
        return raw

    def _skill_md(self, entry: Fields, raw: bytes) -> None:
        """Judge a SKILL.md as `validate` does, and its frontmatter by that of the entry."""
        document, uri, given = frontmatter.parse(raw), entry["uri"], entry["frontmatter"]
        judged = {id_: rule["field"] for id_, rule in rules().items() if "field" in rule}
        for problem in (*document.problems, *check(document, uri.split("/")[-2])):
            row = CODES[problem.code]
            if row.cites in judged and row.allows is not Standing.VALID:
                self._judge(row.cites, False, f"{uri}: {problem.message}")
        own = document.frontmatter
        if own is not None:
            self._frontmatters[uri] = own
            self.verdicts.judged.update(id_ for id_, field in judged.items() if field in own)
            keys, both = own.keys() | given.keys(), own.keys() & given.keys()
            other = [key for key in keys if key not in both or not is_same(own[key], given[key])]
            self._judge(
                "S40-13", not other, f"{uri}: other {listed(sorted(other))} than in SKILL.md"
            )

    def _directory(self, entry: Fields, folder: str, rows: Iterable[Any]) -> list[str]:
        """Judge the children of a folder of a skill, and return the unknown folders among them."""
        children = {str(child.get("uri")): child for child in map(mapping, rows)}
        folders = {uri for uri in children if children[uri].get("mimeType") == "inode/directory"}
        inner = {uri for uri in _folders(entry) if uri.rpartition("/")[0] == folder}
        listed_files = (file["uri"] for file in _files(entry))
        files = {uri for uri in listed_files if uri.rpartition("/")[0] == folder}
        deep = {uri for uri in children if uri.rpartition("/")[0] != folder or uri.endswith("/")}
        self._judge("S40-27", not deep, f"{folder}: {listed(deep)}, which is no direct child")
        lacking = sorted((files | inner) - children.keys())
        self._judge("S40-27", not lacking, f"{folder}: {listed(lacking)} is missing")
        mistaken = sorted((inner & children.keys() - folders) | (files & folders))
        self._judge("S40-27", not mistaken, f"{folder}: the mimeType of {listed(mistaken)}")
        unknown = children.keys() - deep - inner - files
        self._served |= unknown - folders
        return sorted(unknown & folders)

    def _completeness(self, entries: list[Fields]) -> None:
        """Judge whether each entry has all files: those of nested skills, and those of folders."""
        files = {entry["uri"]: {file["uri"] for file in _files(entry)} for entry in entries}
        known = self._served.union(*files.values())
        for entry in entries:
            if isinstance(entry.get("resources"), list):
                uri = entry["uri"]
                base = uri.removesuffix(SKILL_MD)
                lacking = {uri, *(file for file in known if file.startswith(base))} - files[uri]
                self._judge("S40-16", not lacking, f"{uri} lacks {listed(sorted(lacking))}")

    def _metadata(self, resources: Iterable[Any]) -> None:
        """Judge the listed resources that are a SKILL.md which was read."""
        for resource in map(mapping, resources):
            own = self._frontmatters.get(str(resource.get("uri")))
            if own is not None:
                wanted = {"mimeType": "text/markdown", **own}
                named = [key for key in ("name", "description", "mimeType") if key in wanted]
                other = [key for key in named if resource.get(key) != wanted[key]]
                self._judge("S40-10", not other, f"{resource['uri']}: other {listed(other)}")


def _items_with_uri(entry: Fields) -> list[Fields]:
    files = map(mapping, items(entry.get("resources")))
    return [file for file in files if isinstance(file.get("uri"), str)]


def _files(entry: Fields) -> list[Fields]:
    """Return the listed files of an entry that lie in its folder."""
    return [item for item in _items_with_uri(entry) if not _outside(entry, item["uri"])]


def _outside(entry: Fields, uri: str) -> str:
    """Return why a URI names no file in the folder of an entry, or ""."""
    try:
        path_below(entry["uri"].removesuffix(SKILL_MD), uri)
    except EntryRefusedError as error:
        return str(error)
    return ""


def _folders(entry: Fields) -> set[str]:
    """Return the URIs of a skill's folder and those below it, without a slash at the end."""
    base = entry["uri"].removesuffix(f"/{SKILL_MD}")
    folders = {base}
    for file in _files(entry):
        folder = file["uri"].rpartition("/")[0]
        while folder != base:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders


def _bytes(content: Fields) -> bytes | None:
    """Return the bytes of a content, or None if it has not exactly one valid form of them."""
    text, blob = content.get("text"), content.get("blob")
    if isinstance(text, str) and blob is None:
        return text.encode("utf-8", "surrogatepass")
    if not isinstance(blob, str) or text is not None:
        return None
    try:
        return base64.b64decode(blob, validate=True)
    except ValueError:
        return None
