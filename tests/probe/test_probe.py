"""`probe` on this server, in both eras and over each transport, and on one broken server for each rule."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from mcp_skills_server.access.quota import LOCAL_REQUESTER
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.dialects.jsonrpc import Message, decode_message, dump
from mcp_skills_server.format import frontmatter
from mcp_skills_server.model.digests import digest_of
from mcp_skills_server.probe.connection import HttpConnection, ProbeCall, ProbeConnection
from mcp_skills_server.probe.prober import NotSpokenError, Prober
from mcp_skills_server.probe.rules import Verdicts, rules
from mcp_skills_server.runtime.runtime import Runtime
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.dispatch import McpSession
from mcp_skills_server.server.requests import Settings
from tables import each_row
from web.http_wire import http_serving
from wire import EXTENSION, META, write_skill

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
Alter = Callable[[Json, Json], Any]
"""Changes the answer (second) to a request (first) in place, or returns another one, or several messages."""

NOTES, REFUNDS, INNER = "skill://notes/SKILL.md", "skill://acme/refunds/SKILL.md", "skill://acme/refunds/inner/SKILL.md"
GUIDE, LOGO = "skill://acme/refunds/references/guide.md", "skill://acme/refunds/assets/logo.png"
FOLDER = "skill://acme/refunds"
LIST, GET, READ, DIRECTORY = "skills/list", "skills/get", "resources/read", "resources/directory/read"
LISTEN, DISCOVER = "subscriptions/listen", "server/discover"
FIELDS = "license: MIT\ncompatibility: Any host.\nmetadata:\n  version: '1'\nallowed-tools: Read\n"


def skills_in(folder: Path) -> Path:
    """Write skills with all optional fields, a nested one, a binary file and an odd name."""
    refunds = write_skill(folder / "acme" / "refunds", references__guide_md="# Guide\n")
    (refunds / "assets").mkdir()
    (refunds / "assets" / "logo.png").write_bytes(b"\x89PNG\0\xff")
    (refunds / "assets" / "a b.md").write_text("odd\n")
    text = (refunds / "SKILL.md").read_text().replace("---\n\n", f"{FIELDS}---\n\n")
    (refunds / "SKILL.md").write_text(text)
    write_skill(refunds / "inner")
    write_skill(folder / "notes")
    return folder


class Dispatched(ProbeConnection):
    """A connection to a server in this process, whose answers an alteration changes."""

    def __init__(self, attachment: Attachment, tasks: Any, alter: Alter) -> None:
        super().__init__(timeout_s=20)
        self._notices: asyncio.Queue[Json] = asyncio.Queue()
        self._session = McpSession(attachment, send=self._keep)
        self._tasks = tasks
        self._alter = alter

    async def _keep(self, method: str, params: Json | None) -> None:
        self._notices.put_nowait({"jsonrpc": "2.0", "method": method, "params": params})

    async def _messages(self, call: ProbeCall, headers: Mapping[str, str]) -> AsyncGenerator[bytes]:
        sent = json.loads(dump(call.message))
        replaced = getattr(self._alter, "request", lambda it: it)(sent)
        decoded = decode_message(dump(replaced))
        assert isinstance(decoded, Message)
        if decoded.kind == "notification":
            self._session.receive_notification(sent["method"], sent["params"])
            return
        request: Any = self._session.start(decoded, LOCAL_REQUESTER, self._keep, is_pipe=True)
        if sent["method"] == LISTEN:
            self._tasks.start_soon(self._session.answer, request)
            answer = await self._notices.get()
        else:
            answer = json.loads((await self._session.answer(request)).raw)
            self._session.finish(request)
        altered = self._alter(sent, answer)
        if not isinstance(altered, list):
            altered = [altered or answer]
        for message in altered:
            yield message if isinstance(message, bytes) else dump({"jsonrpc": "2.0", **message})


async def probed(folder: Path, era: str, alter: Alter, max_requests: int = 1000, **settings: Any) -> Verdicts:
    registry = Registry([folder])
    registry.load()
    attachment = Attachment(registry, Settings(**settings), Watcher(registry), Runtime(registry, None))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(attachment.running())
        tasks = await stack.enter_async_context(anyio.create_task_group())
        connection = Dispatched(attachment, tasks, alter)
        prober = Prober(connection, is_modern=era == "modern", max_requests=max_requests)
        try:
            await prober.run()
        finally:
            tasks.cancel_scope.cancel()
    return prober.verdicts


def unaltered(_: Json, __: Json) -> None:
    pass


# Alterations


def result(method: str, change: Callable[[Json], Any], uri: str = "") -> Alter:
    """Change each result of a method, about a URI if one is given."""

    def alter(request: Json, answer: Json) -> None:
        if request["method"] == method and request["params"].get("uri", "").startswith(uri) and "result" in answer:
            change(answer["result"])

    return alter


def answer(method: str, change: Callable[[Json], Any], uri: str = "") -> Alter:
    """Replace each successful answer of a method by what `change` makes of it."""

    def alter(request: Json, answer: Json) -> Any:
        is_meant = request["method"] == method and request["params"].get("uri", "").startswith(uri)
        return change(answer) if is_meant and "result" in answer else None

    return alter


def error(method: str, code: int, uri: str = "", old: int = 0) -> Alter:
    """Change the code of each error of a method."""

    def alter(request: Json, answer: Json) -> None:
        is_meant = request["method"] == method and request["params"].get("uri", "").startswith(uri)
        if is_meant and "error" in answer and old in (0, answer["error"]["code"]):
            answer["error"]["code"] = code

    return alter


def failing(method: str, code: int, uri: str = "") -> Alter:
    """Answer successful requests with an error."""
    return answer(method, lambda it: {"jsonrpc": "2.0", "id": it["id"], "error": {"code": code, "message": "no"}}, uri)


def granting(method: str, given: Json, uri: str = "") -> Alter:
    """Answer refused requests with a result."""
    meta = {"_meta": {META + "serverInfo": {"name": "a", "version": "1"}}, "resultType": "complete"}

    def alter(request: Json, answer: Json) -> Any:
        is_meant = request["method"] == method and request["params"].get("uri", "").startswith(uri)
        if is_meant and "error" in answer:
            return {"jsonrpc": "2.0", "id": answer["id"], "result": {**meta, **given}}
        return None

    return alter


def before(method: str, message: Json | bytes) -> Alter:
    """Send a message before each successful answer of a method."""
    return answer(method, lambda it: [message if isinstance(message, bytes) else {"jsonrpc": "2.0", **message}, it])


def entry(change: Callable[[Json], Any], uri: str = REFUNDS) -> Alter:
    """Change an entry, the same in skills/list and skills/get."""

    def alter(_: Json, answer: Json) -> None:
        made = answer.get("result") or {}
        for skill in (*made.get("skills", ()), made.get("skill") or {}):
            if skill.get("uri") == uri:
                change(skill)

    return alter


def file(change: Callable[[Json], Any], uri: str = GUIDE) -> Alter:
    """Change a file of an entry."""
    return entry(lambda skill: [change(item) for item in skill["resources"] if item["uri"] == uri])


def hello(change: Callable[[Json], Any]) -> Alter:
    """Change the capabilities."""

    def alter(request: Json, answer: Json) -> None:
        if request["method"] in {DISCOVER, "initialize"} and "result" in answer:
            change(answer["result"]["capabilities"])

    return alter


def settings(change: Callable[[Json], Any]) -> Alter:
    return hello(lambda it: it["extensions"].update({EXTENSION: change(it["extensions"][EXTENSION])}))


def content(change: Callable[[Json], Any], uri: str = GUIDE) -> Alter:
    return result(READ, lambda it: change(it["contents"][0]), uri)


def children(change: Callable[[list[Json]], Any], uri: str = FOLDER) -> Alter:
    def alter(request: Json, answer: Json) -> None:
        if request["method"] == DIRECTORY and request["params"]["uri"] == uri and "result" in answer:
            change(answer["result"]["resources"])

    return alter


def in_list(method: str, key: str, change: Callable[[Json], Any]) -> Alter:
    return result(method, lambda it: [change(item) for item in it[key][:1]])


class SkillMd:
    """Serves another SKILL.md in place of that of `notes`, in a folder of this name."""

    def __init__(self, head: str, folder: str = "notes") -> None:
        self._text = f"{head}\n# Notes\n"
        self._folder = folder
        self._fields = frontmatter.parse(self._text.encode()).frontmatter

    def request(self, message: Json) -> Json:
        return json.loads(json.dumps(message).replace(f"skill://{self._folder}", "skill://notes"))

    def __call__(self, _: Json, answer: Json) -> Json:
        answer = json.loads(json.dumps(answer).replace("skill://notes", f"skill://{self._folder}"))
        uri, made = f"skill://{self._folder}/SKILL.md", answer.get("result") or {}
        for skill in (*made.get("skills", ()), made.get("skill") or {}):
            if skill.get("uri") == uri:
                skill["frontmatter"] = self._fields or skill["frontmatter"]
                raw = self._text.encode()
                skill["resources"][0].update(digest=digest_of(raw), size=len(raw))
        for item in (*made.get("resources", ()), *made.get("contents", ())):
            if item["uri"] == uri and "text" in item:
                item["text"] = self._text
            elif item["uri"] == uri and "description" in item:
                shown = self._fields or {}
                item.update({key: shown[key] for key in ("name", "description") if key in shown})
        return answer


def fields(text: str, name: str = "notes") -> SkillMd:
    return SkillMd(f"---\nname: {name}\ndescription: Takes notes when asked to.\n{text}---\n", name)


def set_to(**values: Any) -> Callable[[Json], Any]:
    return lambda it: it.update(values)


def without(*keys: str) -> Callable[[Json], Any]:
    return lambda it: [it.pop(key, None) for key in keys]


def added(**values: Any) -> Callable[[Json], Any]:
    """Add an entry to a page."""
    return lambda it: it["skills"].append({"frontmatter": {}, "resources": "dynamic", **values})


def more_files(*uris: str, size: int = 0) -> Callable[[Json], Any]:
    """Add files to an entry."""
    return lambda it: it["resources"].extend({"uri": uri, "digest": digest_of(b""), "size": size} for uri in uris)


def first_message(change: Callable[[Json, Any], Any]) -> Alter:
    """Change the first message of a subscription with this id, or send another one."""
    return lambda request, made: change(made, request["id"]) if request["method"] == LISTEN else None


def endless(request: Json, answer: Json) -> None:
    """Give the last page of `tools/list` a cursor that leads to itself."""
    if request["method"] == "tools/list" and "result" in answer:
        answer["result"]["nextCursor"] = "again"
    if request["method"] == "tools/list" and "error" in answer:
        del answer["error"]
        made = {"tools": [], "nextCursor": "again", "ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
        answer["result"] = made | {"_meta": {META + "serverInfo": {"name": "a", "version": "1"}}}


LOG = {"method": "notifications/message", "params": {"level": "info", "data": "hello"}}
ROOTS = {"id": "r", "method": "roots/list", "params": {}}
MORE = {"uri": f"{FOLDER}/more/", "name": "more", "mimeType": "inode/directory"}
CHANGED = {"method": "notifications/resources/list_changed", "params": {}}

MUTANTS: list[tuple[str, Alter]] = [
    # messages and errors
    ("MCP-15", answer(GET, set_to(id=999))),
    ("MCP-15", answer(GET, lambda it: it.update(id=str(it["id"])))),
    ("MCP-15", answer(GET, set_to(jsonrpc="1.0"))),
    ("MCP-15 S40-25", answer(GET, set_to(error={"code": -1, "message": "both"}))),
    ("MCP-15", answer(READ, lambda it: it.pop("result") and None, GUIDE)),
    ("MCP-15", answer("tools/list", lambda it: {"jsonrpc": "2.0", "id": it["id"], "error": {"code": "-1"}})),
    ("MCP-50", before(GET, b"Server is ready")),
    ("MCP-50", before(READ, b"[1]")),
    ("MCP-14", before(GET, ROOTS)),
    ("MCP-34", before(LIST, CHANGED)),
    ("MCP-34", before(READ, {"method": "notifications/resources/updated", "params": {"uri": GUIDE}})),
    ("MCP-54", before(READ, LOG)),
    ("MCP-5", result(DISCOVER, set_to(supportedVersions="2026-07-28"))),
    ("MCP-5", result(DISCOVER, without("supportedVersions"))),
    ("MCP-12", result(DISCOVER, without("resultType"))),
    ("MCP-12", result(READ, set_to(resultType="done"), LOGO)),
    ("MCP-12", result("tools/list", without("resultType"))),
    ("MCP-6", result(LIST, without("_meta"))),
    ("MCP-23", result(DISCOVER, without("ttlMs"))),
    ("MCP-23", result(READ, set_to(cacheScope="shared"), GUIDE)),
    ("MCP-23", result("resources/list", set_to(ttlMs=-1))),
    ("MCP-23", result("prompts/list", set_to(ttlMs="60"))),
    ("MCP-24", result(LIST, lambda it: it.update(cacheScope="private" if "nextCursor" in it else "public"))),
    ("MCP-16", error(READ, -32002)),
    ("MCP-16 S40-24", error(GET, -32042)),
    ("MCP-20 S40-24", error(GET, -32050, "skill://no-such")),
    ("MCP-3", error(DISCOVER, -32600, old=-32022)),
    ("MCP-3", lambda _, made: made.get("error", {}).pop("data", None) and None),
    ("MCP-2", error(DISCOVER, -32600, old=-32602)),
    ("MCP-43", error("probe/no-such-method", -32602)),
    ("MCP-21", granting(LIST, {"skills": [], "ttlMs": 0, "cacheScope": "private"})),
    # what is declared
    ("S40-1", hello(lambda it: it["extensions"].pop(EXTENSION))),
    ("S40-1", hello(without("extensions"))),
    ("S40-1", settings(lambda _: True)),
    ("S40-1", settings(lambda _: {"directoryRead": "yes"})),
    ("S40-4", hello(without("resources"))),
    ("S40-2", failing(LIST, -32601)),
    ("S40-2", failing(GET, -32601)),
    ("S40-2", error(GET, -32601)),
    ("S40-3", failing(DIRECTORY, -32601)),
    ("S40-3", error(DIRECTORY, -32601)),
    ("MCP-29", failing("tools/list", -32601)),
    ("MCP-29", failing("prompts/list", -32603)),
    ("MCP-29", failing("resources/list", -32601)),
    ("MCP-29", result("tools/list", set_to(tools={}))),
    ("MCP-29", in_list("tools/list", "tools", without("inputSchema"))),
    ("MCP-29", in_list("resources/templates/list", "resourceTemplates", without("uriTemplate"))),
    ("S40-10", in_list("resources/list", "resources", without("mimeType"))),
    ("S40-10", in_list("resources/list", "resources", set_to(description="Another."))),
    # listings and entries
    ("S40-20", result(LIST, without("ttlMs"))),
    ("S40-20", result(LIST, without("cacheScope"))),
    ("S40-20", result(LIST, without("resultType"))),
    ("S40-22", endless),
    ("S40-22", result(LIST, lambda it: it.update(nextCursor=7) if "nextCursor" not in it else None)),
    ("S40-22", result(LIST, lambda it: it["skills"].append(it["skills"][0]))),
    ("S40-12", result(LIST, lambda it: it["skills"].insert(0, "notes"))),
    ("S40-12", result(LIST, added(uri="skill://x/README.md"))),
    ("S40-12", result(LIST, added(uri="skill://x/SKILL.md", frontmatter="x"))),
    ("S40-15", entry(without("resources"), NOTES)),
    ("S40-15", entry(set_to(resources="static"), NOTES)),
    ("S40-15", entry(set_to(resources=None), NOTES)),
    ("S40-13 S40-14", entry(lambda it: it["frontmatter"].update(name="other"), NOTES)),
    ("S40-13", entry(lambda it: it["frontmatter"].pop("metadata"))),
    ("S40-13", entry(lambda it: it["frontmatter"].update(license="Apache-2.0"))),
    ("S40-13", entry(lambda it: it["frontmatter"].update(added=1), NOTES)),
    ("S40-16", entry(lambda it: it["resources"].append(it["resources"][0]))),
    ("S40-16", entry(lambda it: it["resources"].clear(), NOTES)),
    ("S40-16", entry(lambda it: it.update(resources=[file for file in it["resources"] if file["uri"] != GUIDE]))),
    ("S40-16", entry(lambda it: it.update(resources=[file for file in it["resources"] if file["uri"] != INNER]))),
    ("S40-18", file(set_to(digest="sha256:" + "0" * 64))),
    ("S40-18", file(lambda it: it.update(digest=it["digest"].upper()))),
    ("S40-18", file(lambda it: it.update(digest=it["digest"].removeprefix("sha256:")))),
    ("S40-18", file(without("digest"))),
    ("S40-18", file(set_to(size=1))),
    ("S40-18", file(set_to(size="8"))),
    ("S40-18", file(without("size"))),
    ("S40-18", content(set_to(text="# Other\n"))),
    ("S40-17", entry(more_files("skill://other/x.md"))),
    ("S40-17", entry(more_files("skill://notes/%2e%2e/x.md"), NOTES)),
    ("S40-23", result(GET, without("ttlMs"))),
    ("S40-23", result(GET, without("resultType"))),
    ("S40-23", result(GET, set_to(nextCursor="x"))),
    ("S40-23", result(GET, without("skill"))),
    ("S40-26", result(GET, lambda it: it["skill"]["frontmatter"].update(extra=1))),
    ("S40-26", result(GET, lambda it: it["skill"]["resources"].pop())),
    ("S40-26", result(GET, lambda it: it.update(skill={**it["skill"], "uri": NOTES}), REFUNDS)),
    ("S40-25", failing(GET, -32602, INNER)),
    ("S40-24", granting(GET, {"skill": {}})),
    ("S40-24", granting(GET, {"skill": {}}, f"{FOLDER}/")),
    ("S40-24", error(GET, -32603)),
    # files and directories
    ("MCP-55", failing(READ, -32602, LOGO)),
    ("MCP-55", content(set_to(blob="***"), LOGO)),
    ("MCP-55", content(set_to(uri=NOTES))),
    ("MCP-55", content(set_to(blob="IyBHdWlkZQo="))),
    ("MCP-55", result(READ, lambda it: it["contents"].append(it["contents"][0]), GUIDE)),
    ("MCP-55", result(READ, set_to(contents={}), GUIDE)),
    ("MCP-18", granting(READ, {"contents": []})),
    ("S40-30", granting(READ, {"contents": [{"uri": NOTES, "text": "x"}]})),
    ("S40-30", error(READ, -32603)),
    ("S40-27", result(DIRECTORY, without("resultType"))),
    ("S40-27", children(lambda it: it.pop(0))),
    ("S40-27", children(lambda it: it[0].pop("name"))),
    ("S40-27", children(lambda it: [item.update(mimeType="text/plain") for item in it if "." not in item["name"]])),
    ("S40-27", children(lambda it: [item.update(mimeType="inode/directory") for item in it])),
    ("S40-27", children(lambda it: it.append({"uri": GUIDE, "name": "guide.md"}))),
    ("S40-27", children(lambda it: it.append(MORE))),
    ("S40-16", children(lambda it: it.append({"uri": f"{FOLDER}/hidden.md", "name": "hidden.md"}))),
    ("S40-28", granting(DIRECTORY, {"resources": []})),
    ("S40-28", error(DIRECTORY, -32603)),
    ("S40-29", failing(DIRECTORY, -32602, f"{FOLDER}/references")),
    ("MCP-35", first_message(lambda _, id_: {**CHANGED, "params": {"_meta": {META + "subscriptionId": id_}}})),
    ("MCP-35", first_message(lambda _, id_: {"id": id_, "error": {"code": -32601, "message": "no"}})),
    ("MCP-35", first_message(lambda it, _: it["params"]["notifications"].update(other=True))),
    ("MCP-36", first_message(lambda it, _: it["params"].pop("_meta") and None)),
    # the format of SKILL.md
    ("AS-2", SkillMd("# Notes")),
    ("AS-3 S40-14", SkillMd("---\ndescription: Takes notes when asked to.\n---\n")),
    ("AS-3", fields("", "n" * 65)),
    ("AS-4", fields("", "Notes")),
    ("AS-5", fields("", "my--notes")),
    ("AS-7 S40-14", SkillMd("---\nname: other\ndescription: Takes notes when asked to.\n---\n")),
    ("AS-8", SkillMd("---\nname: notes\n---\n")),
    ("AS-8", SkillMd(f"---\nname: notes\ndescription: {'x' * 1025}\n---\n")),
    ("AS-10", fields("license: 2\n")),
    ("AS-11", fields(f"compatibility: {'x' * 501}\n")),
    ("AS-12", fields("metadata:\n  version: 1.5\n")),
    ("AS-14", fields("allowed-tools: 3\n")),
]  # fmt: skip

LEGACY_MUTANTS: list[tuple[str, Alter]] = [
    ("S40-1", settings(lambda _: [])),
    ("S40-24", error(GET, -32002)),
    ("S40-30", error(READ, -32603)),
    ("S40-18", content(set_to(text="# Other\n"))),
    ("MCP-29", failing("resources/subscribe", -32601)),
    ("MCP-43", error("probe/no-such-method", -32602)),
]


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_own_server_breaks_no_rule(tmp_path: Path, era: str) -> None:
    verdicts = await probed(skills_in(tmp_path), era, unaltered, page_size=2)
    assert verdicts.faults == {} and verdicts.stopped == [] and len(verdicts.skills) == 3
    only_modern = {id_ for id_ in rules() if id_.startswith("MCP-")} - {"MCP-15", "MCP-18", "MCP-21", "MCP-29"}
    only_modern |= {"S40-20"}
    unseen = {"MCP-42", "MCP-44", "MCP-45", "MCP-51"}
    if era == "legacy":
        unseen |= only_modern - {"MCP-43", "MCP-50", "MCP-55"}
    assert rules().keys() - verdicts.judged == unseen


@each_row("expected, alter", LEGACY_MUTANTS)
async def test_broken_legacy_server_is_named_by_its_rule_and_no_other(
    expected: str, alter: Alter, tmp_path: Path
) -> None:
    verdicts = await probed(skills_in(tmp_path), "legacy", alter, page_size=2)
    assert {rule for rule, _ in verdicts.faults} == set(expected.split()), verdicts.faults


@each_row("expected, alter", MUTANTS)
async def test_broken_server_is_named_by_its_rule_and_no_other(expected: str, alter: Alter, tmp_path: Path) -> None:
    verdicts = await probed(skills_in(tmp_path), "modern", alter, page_size=2)
    assert {rule for rule, _ in verdicts.faults} == set(expected.split()), verdicts.faults
    assert all(len(fault) < 1500 and "\n" not in fault for _, fault in verdicts.faults)


def test_every_rule_has_a_broken_server() -> None:
    names = " ".join(expected for expected, _ in [*MUTANTS, *LEGACY_MUTANTS, *HTTP_MUTANTS]).split()
    assert rules().keys() - set(names) == {"S40-6", "S40-8", "S40-19", "MCP-51"}  # which the tests below have


async def test_entry_with_odd_uri_or_too_many_files_is_warned_of(tmp_path: Path) -> None:
    def change(skill: Json) -> None:
        skill["uri"] = skill["uri"].replace("skill://", "gh://")
        for item in skill["resources"]:
            item["uri"] = item["uri"].replace("skill://", "gh://")

    assert await faulty(tmp_path / "1", entry(change, NOTES), "S40-6", "S40-24 S40-25 S40-26 MCP-55 S40-29")
    unread = "MCP-55 S40-27"
    assert await faulty(tmp_path / "2", entry(more_files("skill://notes/a b.md"), NOTES), "S40-8", unread)
    many = [f"skill://notes/{number}" for number in range(512)]
    assert await faulty(tmp_path / "3", entry(more_files(*many), NOTES), "S40-19", unread)
    assert await faulty(tmp_path / "4", entry(more_files("skill://notes/x", size=16 << 20), NOTES), "S40-19", unread)


async def faulty(folder: Path, alter: Alter, expected: str, others: str) -> bool:
    """Probe an altered server, which has a fault of the rule, and beside it only those of `others`, as it must."""
    faults = {rule for rule, _ in (await probed(skills_in(folder), "modern", alter)).faults}
    return expected in faults and faults <= {expected, *others.split()}


@pytest.mark.requirement("S40-55", "S40-34")
async def test_unknown_revision_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        await probed(skills_in(tmp_path), "modern", settings(lambda _: {"revision": "2099-01-01"}))
    assert raised.group_contains(NotSpokenError, match="revision '2099-01-01' of the extension is not known here")


async def test_legacy_era_needs_no_extension(tmp_path: Path) -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        await probed(skills_in(tmp_path), "legacy", hello(without("extensions")))
    assert raised.group_contains(NotSpokenError, match="the extension is not declared")


async def test_server_without_directory_read_is_not_asked_for_directories(tmp_path: Path) -> None:
    asked: list[str] = []

    def alter(request: Json, made: Json) -> None:
        asked.append(request["method"])
        settings(lambda _: {})(request, made)

    verdicts = await probed(skills_in(tmp_path), "modern", alter)
    assert verdicts.faults == {} and DIRECTORY not in asked
    assert not {"S40-3", "S40-27", "S40-28", "S40-29"} & verdicts.judged


async def test_empty_server_breaks_nothing_and_leaves_rules_unseen(tmp_path: Path) -> None:
    verdicts = await probed(tmp_path, "modern", unaltered)
    assert verdicts.faults == {} and verdicts.skills == set()
    assert not {"S40-18", "S40-13", "S40-16", "AS-3", "S40-29"} & verdicts.judged


async def test_requests_are_bounded_and_the_report_says_so(tmp_path: Path) -> None:
    count = 0

    def alter(request: Json, _: Json) -> None:
        nonlocal count
        count += 1

    verdicts = await probed(skills_in(tmp_path), "modern", alter, max_requests=20)
    assert count == 20
    assert verdicts.stopped == ["it ended early: --max-requests allows no more requests"]
    assert {rule for rule, _ in verdicts.faults} == set()


async def test_list_whose_end_was_not_seen_is_no_proof_of_its_end(tmp_path: Path) -> None:
    def alter(request: Json, made: Json) -> None:
        made.pop("error", None)
        if request["method"] == LIST:
            made["result"] = {"skills": [], "nextCursor": str(request["id"])}

    verdicts = await probed(skills_in(tmp_path), "modern", alter, max_requests=20)
    assert verdicts.stopped == ["it ended early: --max-requests allows no more requests"]
    assert "S40-22" not in verdicts.judged


async def test_request_without_an_answer_in_time_ends_the_probe(tmp_path: Path) -> None:
    def alter(request: Json, _: Json) -> None:
        if request["method"] == GET:
            raise TimeoutError

    verdicts = await probed(skills_in(tmp_path), "modern", alter)
    assert [*verdicts.faults] == [("MCP-15", "skills/get: no answer within 20 s")]
    assert verdicts.stopped == ["it ended early: no answer within 20 s"]


# HTTP


class Altered(HttpConnection):
    """A connection over HTTP whose calls an alteration changes."""

    alter: Callable[[ProbeCall, Mapping[str, str]], Any]

    async def exchange(
        self, sent: Mapping[str, Any], headers: Mapping[str, str], *, is_stream: bool = False
    ) -> ProbeCall:
        call = await super().exchange(sent, headers, is_stream=is_stream)
        self.alter(call, headers)
        return call


def at(method: str, header: str = "", **values: Any) -> Callable[[ProbeCall, Mapping[str, str]], None]:
    """Set attributes of the calls of a method, of those with a header if one is given."""

    def alter(call: ProbeCall, headers: Mapping[str, str]) -> None:
        if call.message["method"] == method and (header in headers or (not header and not headers)):
            for name, value in values.items():
                setattr(call, name, value)

    return alter


def status_of_error(code: int) -> Callable[[ProbeCall, Mapping[str, str]], None]:
    """Answer errors of a code with status 200."""

    def alter(call: ProbeCall, _: Mapping[str, str]) -> None:
        if call.error.get("code") == code:
            call.status = 200

    return alter


CANCELLED = "notifications/cancelled"
HTTP_MUTANTS = [
    ("MCP-42", at(DISCOVER, "Mcp-Method", status=200)),
    ("MCP-42", at(DISCOVER, "Mcp-Method", answer={"jsonrpc": "2.0", "id": 1, "result": {}})),
    ("MCP-45", at(DISCOVER, "Origin", status=200)),
    ("MCP-45", at(DISCOVER, "Origin", status=401)),
    ("MCP-44", at(CANCELLED, status=200)),
    ("MCP-44", at(CANCELLED, answer={"jsonrpc": "2.0", "id": None, "result": {}})),
    ("MCP-43", status_of_error(-32601)),
    ("MCP-3", status_of_error(-32022)),
    ("MCP-2", status_of_error(-32602)),
    ("MCP-15", at("tools/list", status=500, answer={}, noise=["Internal Server Error"])),
    ("MCP-15", at("tools/list", status=307, answer={})),
]


async def test_broken_http_server_is_named_by_its_rule_and_no_other(tmp_path: Path) -> None:
    with http_serving(skills_in(tmp_path)) as server:
        for expected, alter in HTTP_MUTANTS:
            async with httpx2.AsyncClient() as client:
                connection = Altered(client, f"http://127.0.0.1:{server.port}/mcp", is_modern=True, timeout_s=20)
                connection.alter = alter
                prober = Prober(connection, is_modern=True, max_requests=1000)
                await prober.run()
            assert {rule for rule, _ in prober.verdicts.faults} == set(expected.split()), prober.verdicts.faults
            assert prober.verdicts.stopped == []


@each_row("uri", ["skill://notes/\u00e9.md", "skill://notes/a\nb.md", " skill://notes/c.md"])
async def test_uri_that_no_header_can_have_is_asked_for_all_the_same(uri: str, tmp_path: Path) -> None:
    with http_serving(skills_in(tmp_path)) as server:
        async with httpx2.AsyncClient() as client:
            connection = HttpConnection(client, f"http://127.0.0.1:{server.port}/mcp", is_modern=True, timeout_s=20)
            prober = Prober(connection, is_modern=True, max_requests=9)
            call = await prober._ask(READ, uri=uri)
    assert call.error["code"] == -32602  # there is no such file; -32020 would be about the header
