"""`SkillsClient` with this server over stdio and HTTP in both eras, and with hostile servers."""

from __future__ import annotations

import base64
import hashlib
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from inspect import isawaitable
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import anyio
import mcp_types as types
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from pydantic import ConfigDict

from mcp_skills_server import Registry, attach
from mcp_skills_server.client import ConnectionFailedError, SkillsClient, UnprovedError
from mcp_skills_server.dialects.remote_entries import EntryRefusedError, parse_entry
from mcp_skills_server.errors import UsageError
from tables import each_row
from web.http_wire import Server as HttpServer
from web.http_wire import http_serving
from wire import DEADLINE, EXTENSION, FIXTURES, write_skill

pytestmark = pytest.mark.anyio
MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])
BASE = "skill://one/"
SKILL = b"---\nname: one\ndescription: The one skill.\n---\n\n# One\n"


class Params(types.RequestParams):
    model_config = ConfigDict(extra="allow")


def over_stdio(folder: Path, *options: str) -> StdioServerParameters:
    arguments = ["-m", "mcp_skills_server", "serve", str(folder), "--log-level", "error", *options]
    return StdioServerParameters(command=sys.executable, args=arguments)


def attached(folder: Path) -> Server[Any]:
    server: Server[Any] = Server("ours")
    attach(server, Registry([folder]))
    return server


def file_entry(path: str, raw: bytes) -> dict[str, Any]:
    return {"uri": BASE + path, "digest": "sha256:" + hashlib.sha256(raw).hexdigest(), "size": len(raw)}


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "uri": f"{BASE}SKILL.md",
        "frontmatter": {"name": "one", "description": "The one skill."},
        "resources": [file_entry("SKILL.md", SKILL), file_entry("notes/a%20b.md", b"notes")],
    } | changes


PARAMS: dict[str, type[types.RequestParams]] = {
    "skills/list": Params, "subscriptions/listen": Params, "resources/read": types.ReadResourceRequestParams,
    "resources/list": types.PaginatedRequestParams, "tools/list": types.PaginatedRequestParams,
    "tools/call": types.CallToolRequestParams,
}  # fmt: skip


def answering(extensions: dict[str, Any] | None = None, /, **answers: Callable[[Any], Any]) -> Server[Any]:
    """Return a server whose methods, given as `skills__list`, have the results of these functions of their params."""
    server: Server[Any] = Server("made-up")
    server.extensions = extensions or {}

    def handler(answer: Callable[[Any], Any]) -> Callable[[Any, Any], Awaitable[Any]]:
        async def handle(_context: Any, params: Any) -> Any:
            result = answer(params)
            return await result if isawaitable(result) else result

        return handle

    for name, answer in answers.items():
        method = name.replace("__", "/")
        server.add_request_handler(method, PARAMS[method], handler(answer))
    return server


LISTED = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def scripted(pages: Callable[[str | None], dict[str, Any]], read: Callable[[str], bytes] | None = None) -> Server[Any]:
    """Return a server with these pages of `skills/list` and bytes of `resources/read`."""

    def resource(params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        assert read is not None
        raw = read(str(params.uri))
        blob = base64.b64encode(raw).decode() if raw else "no!"
        return types.ReadResourceResult(contents=[types.BlobResourceContents(uri=params.uri, blob=blob)])

    def skills(params: Params) -> dict[str, Any]:
        return LISTED | pages((params.model_extra or {}).get("cursor"))

    return answering({EXTENSION: {}}, skills__list=skills, resources__read=resource)


ODD_FILES = {
    "empty.md": b"", "Über uns.md": b"text\n", "日本語/説明.txt": b"\xef\xbb\xbfwith a BOM\r\n",
    "a b/c%20d#e&f.md": "é\n".encode("latin-1"), "q&a=1+2.json": b"nul\0", "~.x": bytes(range(256)), "[x](y).md": b"",
}  # fmt: skip
"""Files with unusual names and bytes."""


@MODES
@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.requirement("S40-7", "S40-14", "S40-16", "S40-17", "S40-18", "S76-12", "MCP-55", "X-3")
async def test_every_file_of_every_skill_is_read_and_verified(tmp_path: Path, mode: str, transport: str) -> None:
    odd = write_skill(tmp_path / "deep" / "er" / "odd")
    for path, raw in ODD_FILES.items():
        (odd / path).parent.mkdir(exist_ok=True)
        (odd / path).write_bytes(raw)

    async def check(server: Any) -> None:
        async with SkillsClient.connect(server, mode=mode) as client:
            assert client.way == "skills"
            skills = await client.list()
            assert client.refused == () and all(skill.is_proved for skill in skills)
            assert len(skills) == len(list(FIXTURES.rglob("SKILL.md"))) + 1
            for skill in skills:
                path = skill.uri.removeprefix("skill://").removesuffix("/SKILL.md")
                folder = (tmp_path if skill.name == "odd" else FIXTURES) / path
                there = {each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()}
                assert skill.files is not None and skill.files.keys() == there
                for path in skill.files:
                    assert await client.read(skill, path) == (folder / path).read_bytes()
                assert await client.get(skill.uri) == skill

    if transport == "stdio":
        await check(over_stdio(FIXTURES, str(tmp_path)))
        return
    with http_serving(FIXTURES, tmp_path) as server:
        await check(f"http://127.0.0.1:{server.port}/mcp")


@pytest.mark.requirement("S40-44")
@MODES
async def test_changes_name_added_changed_and_removed_skills(tmp_path: Path, mode: str) -> None:
    for name in ("stays", "changes", "goes"):
        write_skill(tmp_path / name)
    async with SkillsClient.connect(attached(tmp_path), mode=mode) as client:
        before = {skill.name: skill for skill in await client.list()}
        async with client.changes() as changes:
            changed: dict[str, set[str]] = {"added": set(), "changed": set(), "removed": set()}
            write_skill(tmp_path / "comes")
            write_skill(tmp_path / "changes", notes_md="new")
            (tmp_path / "goes" / "SKILL.md").unlink()
            with anyio.fail_after(DEADLINE):
                async for change in changes:
                    for kind, names in changed.items():
                        names |= {skill.name for skill in getattr(change, kind)}
                    if all(changed.values()):
                        break
        assert changed == {"added": {"comes"}, "changed": {"changes"}, "removed": {"goes"}}
        now = {skill.name: skill for skill in await client.list()}
        with pytest.raises(UnprovedError, match="is not a file of the skill"):
            await client.read(before["changes"], "notes.md")  # S40-44: a held entry does not grow
        assert await client.read(now["changes"], "notes.md") == b"new"


async def test_endless_announcements_are_debounced(tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    async with SkillsClient.connect(attached(tmp_path), mode="legacy") as client:
        client.list = listings = Mock(wraps=client.list)  # type: ignore[method-assign]

        async def follow() -> None:
            async with client.changes() as changes:
                await anext(changes)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            with anyio.move_on_after(1.5):
                while client._extension is not None:
                    client._extension.notify()
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    assert 2 <= listings.call_count <= 4


async def test_download_is_complete_and_verified(tmp_path: Path) -> None:
    async with SkillsClient.connect(attached(FIXTURES)) as client:
        skill = next(skill for skill in await client.list() if skill.name == "csv-profiling")
        folder = await client.download(skill, tmp_path / "deep" / "er")
        assert folder == tmp_path / "deep" / "er" / "csv-profiling"
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        source = FIXTURES / "csv-profiling"
        assert skill.files is not None and files == {path: (source / path).read_bytes() for path in skill.files}
        with pytest.raises(UsageError, match="already exists"):
            await client.download(skill, tmp_path / "deep" / "er")
        with pytest.raises(UsageError, match=r"cannot be written \(.*\); give another folder"):
            await client.download(skill, folder / "SKILL.md")
    assert os.listdir(folder.parent) == ["csv-profiling"]


@pytest.mark.requirement("S40-43")
async def test_file_that_differs_from_its_listing_is_refused(tmp_path: Path) -> None:
    files = {f"{BASE}SKILL.md": SKILL}
    async with SkillsClient.connect(scripted(lambda _: {"skills": [entry()]}, files.__getitem__)) as client:
        (skill,) = await client.list()
        assert await client.read(skill) == SKILL and skill.files is not None
        for raw in (b"other", b"notes and more"):
            files[f"{BASE}notes/a%20b.md"] = raw
            for use in (client.read(skill, "notes/a b.md"), client.download(skill, tmp_path)):
                with pytest.raises(UnprovedError, match="differs from its listing"):  # S40-43
                    await use
        files[f"{BASE}notes/a%20b.md"] = b"notes"
        wrong = replace(skill, files={"SKILL.md": replace(skill.files["SKILL.md"], size=len(SKILL) + 1)})
        with pytest.raises(UnprovedError, match="differs from its listing"):
            await client.read(wrong)
        files[f"{BASE}notes/a%20b.md"] = b""
        with pytest.raises(UnprovedError, match="is not Base64"):
            await client.read(skill, "notes/a b.md")
    assert os.listdir(tmp_path) == []


@pytest.mark.requirement("S40-45")
async def test_frontmatter_that_differs_from_its_listing_is_refused() -> None:
    fields = {"name": "one", "description": "The one skill."}
    raw = SKILL.replace(b"skill.\n", b"skill.\nuser-invocable: 1\n", 1)
    files = [file_entry("SKILL.md", raw)]
    for value, is_same in ((1, True), (1.0, True), (True, False), ("1", False), ([1], False)):
        announced = entry(frontmatter=fields | {"user-invocable": value}, resources=files)
        async with SkillsClient.connect(scripted(lambda _, e=announced: {"skills": [e]}, lambda _: raw)) as client:
            (skill,) = await client.list()
            if is_same:
                assert await client.read(skill) == raw
                continue
            with pytest.raises(UnprovedError, match="differs from the server's listing"):  # S40-45
                await client.read(skill)


async def test_bad_entry_is_skipped_and_endless_pages_are_refused() -> None:
    async with SkillsClient.connect(scripted(lambda _: {"skills": [{"uri": 1}, entry(), 7]})) as client:
        assert [skill.name for skill in await client.list()] == ["one"]
        assert len(client.refused) == 2
    for first, then, count in ((1, 1, "1,000"), (50_000, 1, "50,001")):
        pages = {None: {"skills": [7] * first, "nextCursor": "x"}, "x": {"skills": [7] * then, "nextCursor": "x"}}
        async with SkillsClient.connect(scripted(pages.__getitem__)) as client:
            with pytest.raises(UnprovedError, match=f"does not end: {count} entries"):
                await client.list()


async def test_change_during_a_lost_stream_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    entries, filters = [entry(), entry(uri=f"{BASE}2/SKILL.md")], list[Any]()
    caplog.set_level("INFO")

    def fail(params: Params) -> None:
        filters.append((params.model_extra or {})["notifications"])
        raise MCPError(types.INTERNAL_ERROR, "the server is busy")

    skills = {"skills__list": lambda _: LISTED | {"skills": entries}}
    server = answering({EXTENSION: {}}, subscriptions__listen=fail, **skills)
    async with SkillsClient.connect(server) as client:
        assert client._extension is not None and len(await client.list()) == 1
        client._extension.listening.set()
        with anyio.fail_after(DEADLINE):
            entries[:] = []
            async with client.changes(poll_s=inf) as changes:
                assert len((await anext(changes)).removed) == 1
                entries[:] = [entry()]
                assert len((await anext(changes)).added) == 1
    assert filters[0] == dict.fromkeys(("resourcesListChanged", "toolsListChanged", "skillsListChanged"), True)
    assert "the stream of changes ended: the server is busy" in caplog.text


async def test_unlisted_files_need_unproved(tmp_path: Path) -> None:
    server = scripted(lambda _: {"skills": [entry(resources="dynamic")]}, lambda _: SKILL)
    async with SkillsClient.connect(server) as client:
        (skill,) = await client.list()
        assert not skill.is_proved
        with pytest.raises(UnprovedError, match="no digest"):
            await client.read(skill)
        with pytest.raises(UnprovedError, match="cannot be downloaded"):
            await client.download(skill, tmp_path)
    async with SkillsClient.connect(server, unproved=True) as client:
        assert await client.read(skill) == SKILL


@pytest.mark.requirement("S40-34")
async def test_resources_are_the_fallback_for_missing_methods(tmp_path: Path) -> None:
    contents = {f"{BASE}SKILL.md": SKILL, f"{BASE}notes.md": b"notes", "file:///etc/motd": b"no"}
    longest = f"skill://{'x' * (2_048 - len('skill:///SKILL.md'))}/SKILL.md"
    others = ["skill://a/../SKILL.md", longest, f"skill://x{longest[8:]}"]
    others += ["skill://many/SKILL.md", *(f"skill://many/{number}" for number in range(600))]
    listed = [types.Resource(uri=uri, name=uri, description="The one.") for uri in (*contents, *others)]

    def read(params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        text = contents.get(str(params.uri), b"").decode()
        found = [types.TextResourceContents(uri=params.uri, text=text)]
        return types.ReadResourceResult(contents=found if text else found * 2)

    server = answering(resources__list=lambda _: types.ListResourcesResult(resources=listed), resources__read=read)
    async with SkillsClient.connect(server, unproved=True) as client:
        assert client.way == "resources"
        skill, outside, long, many = await client.list()
        assert (skill.name, skill.description) == ("one", "The one.")
        assert long.uri == longest and len(many.files or ()) == 512
        with pytest.raises(UnprovedError, match="leads out"):
            await client.download(outside, tmp_path / "outside")
        with pytest.raises(UnprovedError, match="returned 2 contents"):
            await client.read(many)
        assert await client.get(skill.uri) == skill
        with pytest.raises(EntryRefusedError, match="no skill"):
            await client.get("skill://two/SKILL.md")
        contents[f"{BASE}notes.md"] = b"x" * ((16 << 20) - len(SKILL))
        folder = await client.download(skill, tmp_path)
        assert sorted(os.listdir(folder)) == ["SKILL.md", "notes.md"] and not os.access(folder / "notes.md", os.X_OK)
        contents[f"{BASE}notes.md"] += b"x"
        with pytest.raises(UnprovedError, match="more than 16 MiB"):
            await client.download(skill, tmp_path / "again")


@pytest.mark.requirement("S40-55")
@each_row(("extension", "resources", "way"), [
    ({}, True, "skills"), ({"revision": None}, True, "skills"), ({"revision": "2\n"}, True, "resources"),
    ({"revision": 2}, False, "tools"),
])  # fmt: skip
async def test_unknown_revision_of_the_extension_is_named_and_not_used(
    extension: dict[str, Any], resources: bool, way: str
) -> None:
    tool = types.Tool(name="skills_list", input_schema={"type": "object"})
    answers: dict[str, Any] = {
        "skills__list": LISTED | {"skills": [entry()]},
        "tools__list": types.ListToolsResult(tools=[tool]),
        "tools__call": types.CallToolResult(content=[], structured_content={"skills": [{"name": "one"}]}),
    }
    if resources:
        resource = types.Resource(uri=f"{BASE}SKILL.md", name="one")
        answers["resources__list"] = types.ListResourcesResult(resources=[resource])
    server = answering({EXTENSION: extension}, **{name: Mock(return_value=result) for name, result in answers.items()})
    async with SkillsClient.connect(server) as client:
        assert client.way == way
        (skill,) = await client.list()
        assert (skill.name, skill.is_proved) == ("one", way == "skills")
        assert [reason.partition(", so")[0] for reason in client.refused] == (
            []
            if way == "skills"
            else [f"the server's skills extension has the unknown revision {str(extension['revision'])!r}"]
        )


async def test_tools_are_the_fallback_for_missing_resources(tmp_path: Path) -> None:
    write_skill(tmp_path / "one", notes_md="notes")
    ours = attached(tmp_path)
    async with Client(ours) as inner:
        server = answering(
            tools__list=lambda _: inner.list_tools(),
            tools__call=lambda params: inner.call_tool(params.name, params.arguments),
        )
        async with SkillsClient.connect(server, unproved=True) as client:
            assert client.way == "tools"
            (skill,) = await client.list()
            assert (skill.name, skill.description) == ("one", "Does a thing when it is asked to.")
            assert skill.uri == "skill://one/SKILL.md" and await client.read(skill, "notes.md") == b"notes"
            with pytest.raises(UnprovedError, match="cannot read it"):
                await client.read(skill, "nothing.md")


@each_row("answer", [
    types.CallToolResult(content=[], structured_content={"skills": []}, is_error=True),
    types.CallToolResult(content=[]), types.CallToolResult(content=[], structured_content={"skills": [{}]}),
])  # fmt: skip
async def test_invalid_tool_result_is_refused(answer: types.CallToolResult) -> None:
    server = answering(tools__list=lambda _: types.ListToolsResult(tools=[]), tools__call=lambda _: answer)
    async with SkillsClient.connect(server, unproved=True) as client:
        with pytest.raises(UnprovedError, match="invalid result"):
            await client.list()


async def test_server_errors_reach_caller_and_changes_need_connect() -> None:
    async with Client(attached(FIXTURES)) as inner:
        client = SkillsClient(inner.session)
        with pytest.raises(UsageError, match=r"SkillsClient\.connect"):
            await client.changes().__aenter__()
    async with SkillsClient.connect(attached(FIXTURES)) as client:
        with pytest.raises(MCPError, match="Unknown skill URI"):
            await client.get("skill://none/SKILL.md")


@pytest.mark.requirement("S40-38")
@each_row(("changes", "why"), [
    *(({"uri": uri}, "not the URI of") for uri in (None, f"{BASE}x.md", f"skill://{'x' * 3_000}/SKILL.md")),
    ({"frontmatter": None}, "not an object"),
    ({"frontmatter": {"name": "one"}}, "no description"),
    ({"frontmatter": {"name": "two", "description": "x"}}, "does not have the skill's name"),  # S40-14
    *(({"resources": each}, "not a list of files") for each in (None, "all")),  # S40-38
    ({"resources": [file_entry("notes.md", b"")]}, "lacks SKILL.md"),
])  # fmt: skip
def test_entry_against_the_specification_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(EntryRefusedError, match=why):
        parse_entry({key: value for key, value in entry(**changes).items() if value is not None})
    with pytest.raises(EntryRefusedError, match="not an object"):
        parse_entry(None)


@each_row(("files", "why"), [
    ([{}], "listed twice"),  # S40-16
    ([{"path": "x", "digest": "md5:1"}], "no digest"),  # S40-18
    *(([{"path": "x", "size": size}], "number of bytes") for size in (-1, True)),
    ([{"uri": "skill://two/x"}], "outside"),
    *(([{"path": path}], "does not name a file") for path in ("../two/x", "%2e%2e/x", "%ff")),
    ([{"path": "a%2fb"}], "contains a slash"),
    ([{"path": "A"}, {"path": "a"}], "A"),
    ([{"path": f"f{number}"} for number in range(512)], "at most 512"),
    ([{"path": "x", "size": 17 << 20}], "16 MiB"),
])  # fmt: skip
def test_listed_file_against_the_specification_is_refused(files: list[dict[str, Any]], why: str) -> None:
    others = [file_entry(file.get("path", "SKILL.md"), b"") | file for file in files]
    with pytest.raises(EntryRefusedError, match=why):
        parse_entry(entry(resources=[file_entry("SKILL.md", SKILL), *others]))


@MODES
async def test_errors_are_raised_outside_of_exception_groups(mode: str) -> None:
    """Task groups of the SDK and of `changes` surround the caller's code."""

    async def read_unlisted(client: SkillsClient) -> None:
        await client.read((await client.list())[0], "unlisted.md")

    async def get_unknown(client: SkillsClient) -> None:
        await client.get("skill://none/SKILL.md")

    async def fail(_: SkillsClient) -> None:
        raise LookupError("of the caller") from KeyError("its cause")

    for work, kind in ((read_unlisted, UnprovedError), (get_unknown, MCPError), (fail, LookupError)):
        with pytest.raises(kind) as caught:
            async with SkillsClient.connect(attached(FIXTURES), mode=mode) as client:
                await work(client)
        assert isinstance(caught.value.__cause__, KeyError) == (kind is LookupError)
        with pytest.raises(kind):
            async with SkillsClient.connect(attached(FIXTURES), mode=mode) as client, client.changes():
                await work(client)


@MODES
async def test_failed_connection_has_an_error_of_its_own(mode: str) -> None:
    missing = StdioServerParameters(command="/no/such/program", args=[])
    for server, reason in (("http://127.0.0.1:1/mcp", "connection attempts failed"), (missing, "/no/such/program")):
        with pytest.raises(ConnectionFailedError, match=f"the connection failed: .*{reason}"):
            async with SkillsClient.connect(server, mode=mode):
                pass
    ending = StdioServerParameters(command=sys.executable, args=["-c", "pass"])
    with pytest.raises(MCPError, match="Connection closed"):
        async with SkillsClient.connect(ending, mode=mode):
            pass


@MODES
async def test_lost_connection_is_an_error_of_the_next_call(mode: str) -> None:
    async def lose(server: HttpServer) -> None:
        async with SkillsClient.connect(f"http://127.0.0.1:{server.port}/mcp", mode=mode) as client:
            assert await client.list()
            server.process.kill()
            server.process.wait()
            await client.list()

    with http_serving(FIXTURES) as server, pytest.raises((MCPError, ConnectionFailedError)), anyio.fail_after(DEADLINE):
        await lose(server)
