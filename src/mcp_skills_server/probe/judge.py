"""Judgements of a server's answers by the rules of `rules.toml`.

What breaks one rule is no material of the others: an entry without a URI has no name to compare.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from mcp_skills_server.codes import CODES
from mcp_skills_server.dialects.jsonrpc import METHOD_NOT_FOUND
from mcp_skills_server.dialects.listed import (
    MAX_BYTES,
    MAX_FILES,
    is_same,
)
from mcp_skills_server.errors import clipped, listed, quoted
from mcp_skills_server.format import frontmatter
from mcp_skills_server.format.uris import SCHEME
from mcp_skills_server.model import SKILL_MD, Standing
from mcp_skills_server.model.digests import digest_of, is_digest
from mcp_skills_server.probe.answers import (
    CACHED,
    COMPLETE,
    ERRORS,
    FOLDER,
    META,
    MISSING,
    NOT_FOUND,
    OLD_VERSION,
    READ,
    SHAPES,
    Call,
    Fields,
    Refusal,
    fields_of,
    files_of,
    folders_of,
    items_of,
    items_with_uri,
    outside,
)
from mcp_skills_server.probe.report import Verdicts
from mcp_skills_server.server.eras import HEADER_MISMATCH, UNSUPPORTED_VERSION, Shape, shape_error
from mcp_skills_server.validation.rules import check

_DEFINED: Final = (HEADER_MISMATCH, -32021, UNSUPPORTED_VERSION)
_CHARACTER: Final = r"[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2}"
_URI: Final = re.compile(rf"[A-Za-z][A-Za-z0-9+.-]*://(?:{_CHARACTER})+(?:/(?:{_CHARACTER})+)*")
_TOOL: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_CACHE: Final[Shape] = {"ttlMs": int, "cacheScope": frozenset(("public", "private"))}
_INFO: Final[Shape] = {"_meta": {f"{META}serverInfo": {"name": str, "version": str}}}
_ENTRY: Final[Mapping[str, Shape]] = {
    "S40-12": {"uri": str, "frontmatter": dict},
    "S40-15": {"resources": ([{"uri": str}], frozenset(("dynamic",)))},
}
_FORMAT: Final[Mapping[str, str]] = {
    "AS-2": "name",
    "AS-3": "name",
    "AS-4": "name",
    "AS-5": "name",
    "AS-7": "name",
    "AS-8": "description",
    "AS-10": "license",
    "AS-11": "compatibility",
    "AS-12": "metadata",
    "AS-14": "allowed-tools",
}
"""The rules of the format that `validate` checks, and the field for which there must be a value."""


class Judge:
    """Judges the answers of a server in one era."""

    def __init__(self, verdicts: Verdicts, *, is_modern: bool) -> None:
        self._judge = verdicts.judge
        self._is_modern = is_modern
        self._frontmatters: dict[str, Fields] = {}

    def _shaped(self, rule: str, name: str, value: object, shape: Shape) -> bool:
        reason = shape_error(value, shape, "it")
        return self._judge(rule, reason is None, f"{name}: {reason}")

    def response(self, call: Call) -> None:
        """Judge the response to a valid request, what came before it, and its envelope."""
        reply, error, result = call.reply, call.error, call.result
        answer = fields_of(reply.answer)
        is_error = type(error.get("code")) is int and isinstance(error.get("message"), str)
        is_one = (result is not None) is not is_error and {"result", "error"} - answer.keys()
        is_ours = type(answer.get("id")) is int and answer["id"] == call.id
        said = str(reply.answer) if reply.answer else f"{call.said}, {listed(reply.noise)}"
        is_valid = answer.get("jsonrpc") == "2.0" and is_one and is_ours
        self._judge("MCP-15", is_valid, f"{call.name}: {clipped(said)}")
        if reply.status is None:
            self._judge("MCP-50", not reply.noise, f"stdout has {quoted(listed(reply.noise))}")
        if self._is_modern:
            self._before(call)
        if result is not None:
            self._result(call, result)
        elif is_error:
            is_unknown = call.code == METHOD_NOT_FOUND
            is_optional = is_unknown and call.method == "resources/templates/list"
            rule = ERRORS.get(call.method, "MCP-29")
            if is_unknown:
                rule = MISSING.get(call.method, rule)
            self._judge(rule, is_optional, f"{call.name}: {call.said}")

    def _before(self, call: Call) -> None:
        """Judge the messages before a modern response, and the code of its error."""
        sent = [(str(message["method"]), "id" in message) for message in call.reply.before]
        requests = [method for method, is_request in sent if is_request]
        notices = [method for method, is_request in sent if not is_request]
        changes = [method for method in notices if method.endswith(("_changed", "/updated"))]
        self._judge("MCP-14", not requests, f"{call.name}: it sent {listed(requests)}")
        self._judge("MCP-34", not changes, f"{call.name}: it sent {listed(changes)}")
        self._judge("MCP-54", "notifications/message" not in notices, f"{call.name}: it sent a log")
        if type(call.code) is int:
            is_old = call.code in (NOT_FOUND, -32042)
            is_own = -32099 <= call.code <= -32020 and call.code not in _DEFINED and not is_old
            self._judge("MCP-16", not is_old, f"{call.name}: error {call.code}")
            self._judge("MCP-20", not is_own, f"{call.name}: error {call.code}")

    def _result(self, call: Call, result: Fields) -> None:
        """Judge the fields of a result."""
        method = call.method
        if method in SHAPES:
            rule, shape = SHAPES[method]
            self._shaped(rule, call.name, result, shape)
        for table in (ERRORS, MISSING):
            if method in table:
                self._judge(table[method], True, "")
        if self._is_modern:
            complete: Shape = {"resultType": frozenset(("complete",))}
            self._shaped(COMPLETE.get(method, "MCP-12"), call.name, result, complete)
            self._shaped("MCP-6", method, result, _INFO)
        if self._is_modern and method in CACHED:
            rule, ttl = CACHED[method], result.get("ttlMs")
            if self._shaped(rule, call.name, result, _CACHE):
                self._judge(rule, isinstance(ttl, int) and ttl >= 0, f"{call.name}: ttlMs {ttl}")

    def refused(self, call: Call, row: Refusal) -> None:
        """Judge the response to an invalid request."""
        is_status = not self._is_modern or not row.status
        is_kept = is_status or call.reply.status in (None, row.status)
        is_kept = is_kept and (not row.codes or call.code in row.codes)
        rule = row.rule
        if call.code == METHOD_NOT_FOUND:
            rule = MISSING.get(row.method, rule)
        if row.method == READ:
            is_empty = call.result is not None and not items_of(call.result.get("contents"))
            self._judge("MCP-18", not is_empty, f"{call.name}: empty contents")
            is_kept = is_kept or is_empty
        self._judge(rule, is_kept, f"{call.name}, {row.what}: {call.said}")
        if self._is_modern:
            self._before(call)
        if rule == "MCP-3" and is_kept:
            data = fields_of(call.error.get("data"))
            is_said = (
                isinstance(data.get("supported"), list) and data.get("requested") == OLD_VERSION
            )
            self._judge(rule, is_said, "the error has no data.supported, or no data.requested")

    def entries(self, items: Iterable[Any]) -> list[Fields]:
        """Judge the form of listed entries, and return those that can be judged further."""
        entries: dict[str, Fields] = {}
        for entry in filter(None, map(fields_of, items)):
            uri = str(entry.get("uri"))
            is_form = [self._shaped(rule, clipped(uri), entry, _ENTRY[rule]) for rule in _ENTRY]
            is_file = uri.endswith(f"/{SKILL_MD}")
            if is_form[0] and self._judge("S40-12", is_file, f"{clipped(uri)} is no {SKILL_MD}"):
                self._judge("S40-22", uri not in entries, f"{uri} is listed twice")
                entries.setdefault(uri, entry)
        return list(entries.values())

    def entry(self, entry: Fields) -> None:
        """Judge a listed entry by itself."""
        uri, files = entry["uri"], files_of(entry)
        name = entry["frontmatter"].get("name")
        self._judge("S40-14", _folder_of(entry) == name, f"{uri}: the name {quoted(str(name))}")
        self._judge("S40-6", uri.startswith(SCHEME), uri)
        for address in {uri, *(file["uri"] for file in files)}:
            self._judge("S40-8", _URI.fullmatch(address), quoted(address))
        for file in items_with_uri(entry):
            reason = outside(entry, file["uri"])
            self._judge("S40-17", not reason, reason)
            digest, size = file.get("digest"), file.get("size")
            is_form = is_digest(digest) and type(size) is int
            said = f"digest {quoted(str(digest))}, size {quoted(str(size))}"
            self._judge("S40-18", is_form, f"{file['uri']}: {said}")
        if isinstance(entry.get("resources"), list):
            size = sum(file["size"] for file in files if type(file.get("size")) is int)
            is_small = len(files) <= MAX_FILES and size <= MAX_BYTES
            self._judge("S40-19", is_small, f"{uri}: {len(files):,} files, {size:,} bytes")
            for address, count in Counter(file["uri"] for file in files).items():
                self._judge("S40-16", count == 1, f"{uri} lists {quoted(address)} {count} times")

    def same(self, entry: Fields, result: Fields) -> None:
        """Judge the entry of `skills/get` by that of `skills/list`."""
        uri, got = entry["uri"], fields_of(result.get("skill"))
        self._judge("S40-23", "nextCursor" not in result, f"skills/get {uri}: a cursor")
        if got:
            keys = ("uri", "frontmatter", "resources")
            other = [key for key in keys if not is_same(got.get(key), entry.get(key))]
            self._judge("S40-26", not other, f"{uri}: other {listed(other)} than in skills/list")

    def content(self, call: Call) -> bytes | None:
        """Judge the content of a listed file, and return its bytes; None if it has none."""
        contents = items_of(fields_of(call.result).get("contents"))
        content = fields_of(contents[0]) if len(contents) == 1 else {}
        raw = _bytes_of(content) if content.get("uri") == call.params["uri"] else None
        if call.result is not None:
            self._judge("MCP-55", raw is not None, f"{call.name}: other contents")
        return raw

    def file(self, file: Fields, raw_size: int, raw_digest: str) -> None:
        """Judge a listed file by the size and the digest of its bytes."""
        uri, size, digest = file["uri"], file.get("size"), file.get("digest")
        if is_digest(digest) and type(size) is int:
            self._judge("S40-18", raw_size == size, f"{uri}: size {size}, not {raw_size}")
            is_same_file = raw_size != size or raw_digest == digest
            self._judge("S40-18", is_same_file, f"{uri}: digest {digest}, not {raw_digest}")

    def skill_md(self, entry: Fields, raw: bytes) -> None:
        """Judge a SKILL.md as `validate` does, and its frontmatter by that of the entry."""
        document, uri, given = frontmatter.parse(raw), entry["uri"], entry["frontmatter"]
        own = document.frontmatter
        for problem in (*document.problems, *check(document, _folder_of(entry))):
            row = CODES[problem.code]
            if row.cites in _FORMAT and row.allows is not Standing.VALID:
                self._judge(row.cites, False, f"{uri}: {problem.message}")
        if own is not None:
            self._frontmatters[uri] = own
            for rule in (rule for rule, key in _FORMAT.items() if key in own):
                self._judge(rule, True, "")
            other = [
                key
                for key in sorted(own.keys() | given.keys())
                if key not in own or key not in given or not is_same(own[key], given[key])
            ]
            self._judge("S40-13", not other, f"{uri}: other {listed(other)} than in SKILL.md")

    def directory(
        self, entry: Fields, folder: str, items: Iterable[Any]
    ) -> tuple[list[str], list[str]]:
        """Judge the children of a folder of a skill, and return the files and folders among them."""
        children = {str(child.get("uri")): child for child in map(fields_of, items)}
        folders = {uri for uri in children if children[uri].get("mimeType") == FOLDER}
        inner = {uri for uri in folders_of(entry) if uri.rpartition("/")[0] == folder}
        files = {file["uri"] for file in files_of(entry)}
        files = {uri for uri in files if uri.rpartition("/")[0] == folder}
        deep = [uri for uri in children if uri.rpartition("/")[0] != folder or uri.endswith("/")]
        self._judge("S40-27", not deep, f"{folder}: {listed(deep)}, which is no direct child")
        lacking = sorted((files | inner) - children.keys())
        self._judge("S40-27", not lacking, f"{folder}: {listed(lacking)} is missing")
        mistaken = sorted((inner & children.keys() - folders) | (files & folders))
        self._judge("S40-27", not mistaken, f"{folder}: the mimeType of {listed(mistaken)}")
        direct = [uri for uri in children if uri not in deep and uri not in inner]
        return [uri for uri in direct if uri not in folders], [
            uri for uri in direct if uri in folders
        ]

    def completeness(self, entries: Sequence[Fields], served: Collection[str]) -> None:
        """Judge whether each entry has all files: those of nested skills, and the `served` ones."""
        files = {entry["uri"]: {file["uri"] for file in files_of(entry)} for entry in entries}
        known = set(served).union(*files.values())
        for entry in entries:
            if isinstance(entry.get("resources"), list):
                uri = entry["uri"]
                base = uri.removesuffix(SKILL_MD)
                wanted = {uri, *(file for file in known if file.startswith(base))}
                lacking = sorted(wanted - files[uri])
                self._judge("S40-16", not lacking, f"{uri} lacks {listed(lacking)}")

    def names(self, tools: Iterable[Any]) -> None:
        """Judge the names of tools."""
        counts = Counter(str(fields_of(tool).get("name")) for tool in tools)
        for name, count in counts.items():
            is_good = count == 1 and _TOOL.fullmatch(name)
            self._judge("MCP-28", is_good, f"{quoted(name)}, {count} times")

    def metadata(self, resources: Iterable[Any]) -> None:
        """Judge the resources that are a SKILL.md which was read."""
        for resource in map(fields_of, resources):
            own = self._frontmatters.get(str(resource.get("uri")))
            if own is not None:
                wanted = {"mimeType": "text/markdown", **own}
                named = [key for key in ("name", "description", "mimeType") if key in wanted]
                other = [key for key in named if resource.get(key) != wanted[key]]
                self._judge("S40-10", not other, f"{resource['uri']}: other {listed(other)}")

    def subscription(self, call: Call) -> None:
        """Judge the first message of a subscription."""
        first = fields_of(call.reply.answer)
        params, method = fields_of(first.get("params")), str(first.get("method", call.said))
        is_first = method == "notifications/subscriptions/acknowledged"
        if self._judge("MCP-35", is_first, f"it declares listChanged, but sends {quoted(method)}"):
            more = (
                fields_of(params.get("notifications")).keys() - call.params["notifications"].keys()
            )
            self._judge("MCP-35", not more, f"it acknowledges {listed(sorted(more))}, too")
            id_ = fields_of(params.get("_meta")).get(f"{META}subscriptionId")
            self._judge("MCP-36", id_ == call.id, f"the subscriptionId {quoted(str(id_))}")


def _folder_of(entry: Fields) -> str:
    return entry["uri"].split("/")[-2]


def _bytes_of(content: Fields) -> bytes | None:
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


def fingerprint(raw: bytes) -> tuple[int, str]:
    """Return the size and the digest of bytes."""
    return len(raw), digest_of(raw)
