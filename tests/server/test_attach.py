"""`attach`: skills added to a server with its own tools, prompts and resources."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import mcp_types as types
import pytest
from mcp.client.client import Client
from mcp.client.extension import advertise
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel.server import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError

from mcp_skills_server import Registry, Settings, attach
from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.access.quota import Owner
from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.errors import UsageError
from mcp_skills_server.format.uris import TEMPLATE
from mcp_skills_server.server.sdk import principal, quota_owner
from server.sdk import attached_client, request
from server.test_tools import NAMES
from tables import each_row
from wire import DEADLINE, EXTENSION, META, Wire, WireError, write_skill

pytestmark = pytest.mark.anyio
SKILL = "skill://summarise-ticket/SKILL.md"


@pytest.mark.requirement("S76-9", "S76-10", "S76-11", "X-14")
def test_server_keeps_its_own_features_and_dependencies_resolve_against_them(example: Wire) -> None:
    capabilities = example.open()["capabilities"]
    assert {"tools", "prompts", "resources", "skills", "extensions"} <= capabilities.keys()
    for method, key, field, names in (
        ("tools/list", "tools", "name", ["read_ticket", *NAMES]),
        ("prompts/list", "prompts", "name", ["handover", "summarise-ticket"]),
        ("resources/list", "resources", "uri", ["tickets://open", SKILL]),
        ("resources/templates/list", "resourceTemplates", "uriTemplate", ["tickets://{number}", "skill://{+path}"]),
    ):
        assert [each[field] for each in example.request(method)[key]] == names
    for method, params, words in (
        ("tools/call", {"name": "skills_load", "arguments": {"names": ["summarise-ticket"]}}, '<skill name=\\"summari'),
        ("tools/call", {"name": "read_ticket", "arguments": {"number": "7"}}, "green"),
        ("prompts/get", {"name": "handover", "arguments": {"number": "7"}}, "next shift"),
        ("prompts/get", {"name": "summarise-ticket"}, "<skill "),
        ("prompts/get", {"name": "handover", "arguments": {"number": "7", "other": None}}, "next shift"),
        ("resources/read", {"uri": "tickets://7"}, '"text": "The printer'),
        ("resources/read", {"uri": SKILL}, '"mimeType": "text/markdown"'),
    ):
        assert words in json.dumps(example.request(method, params))
    with pytest.raises(WireError):
        example.request("resources/read", {"uri": "tickets://none/none"})
    expected = {
        "tools": ["read_ticket"],  # close_ticket is not served
        "prompts": [{"type": "ref/prompt", "name": "handover"}],
        "resources": [{"type": "ref/resource", "uri": uri} for uri in ("tickets://open", "tickets://{number}", SKILL)],
    }
    assert example.every_skill()[0]["dependencies"] == expected
    got = example.request("skills/get", {"name": "summarise-ticket"})
    assert got["dependencies"] == expected


async def test_listen_stream_carries_events_of_the_server_and_of_the_skills(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    server = MCPServer("mine")

    async def announce(ctx: Context[Any, Any]) -> str:
        """Notify clients of changed tools and a changed resource."""
        await ctx.notify_tools_changed()
        await ctx.notify_resource_updated("mine://x")
        return "done"

    server.add_tool(announce)
    async with attached_client(tmp_path, to=server, watch=True) as client:
        uris = ["mine://x", "skill://a/SKILL.md"]
        async with client.listen(tools_list_changed=True, resource_subscriptions=uris) as events:
            assert events.honored.tools_list_changed is True
            await client.call_tool("announce")
            received = {repr(await anext(events)), repr(await anext(events))}
            assert received == {"ToolsListChanged()", "ResourceUpdated(uri='mine://x')"}
            write_skill(tmp_path / "a", description="Another description of some length.")
            assert repr(await anext(events)) == "ResourceUpdated(uri='skill://a/SKILL.md')"


async def test_lifespan_and_capabilities_of_the_server_are_kept(tmp_path: Path) -> None:
    steps: list[Any] = []

    @asynccontextmanager
    async def lifespan(_: Any) -> Any:
        steps.append("begun")
        yield {"own": 1}
        steps.append("ended")

    async def declare(ctx: Any, call_next: Any) -> Any:
        result = await call_next(ctx)
        if ctx.method == "initialize":
            resources = {"own": True, "subscribe": False}
            declared = {"own": {"x": 1}, "resources": resources, "extensions": {"own/x": {}}}
            return {**result, "capabilities": declared}
        return result

    async def record(ctx: Any, call_next: Any) -> Any:
        steps.append(await call_next(ctx))
        return steps[-1]

    server = Server[Any]("mine", lifespan=lifespan)
    attach(server, Registry([tmp_path]))
    server.middleware[:] = [record, *server.middleware, declare]
    with anyio.fail_after(DEADLINE):
        async with Client(server, mode="legacy"):
            capabilities = steps[1]["capabilities"]
    assert (steps[0], steps[-1], capabilities["own"]) == ("begun", "ended", {"x": 1})
    assert capabilities["resources"] == {"own": True, "subscribe": True, "listChanged": True}
    assert capabilities["extensions"].keys() == {"own/x", EXTENSION}


def paged_server() -> Server[Any]:
    """Return a lowlevel server with two pages of resources, and one completion for all."""

    async def list_resources(_: Any, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        second = params is not None and params.cursor == "second"
        resource = types.Resource(uri="own://2" if second else "own://1", name="own")
        return types.ListResourcesResult(resources=[resource], next_cursor=None if second else "second")

    async def read(_: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        if not params.uri.startswith("own://"):
            raise MCPError(code=-32602, message="own: not found")
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, text="own")])

    async def complete(_: Any, __: types.CompleteRequestParams) -> types.CompleteResult:
        return types.CompleteResult(completion=types.Completion(values=["own"]))

    return Server("own", on_list_resources=list_resources, on_read_resource=read, on_completion=complete)


async def test_lowlevel_server_shares_lists_reads_and_completions(tmp_path: Path, mode: Any) -> None:
    for name in ("a", "b", "c"):
        write_skill(tmp_path / name)
    settings = Settings(page_size=2, prompts=False)
    async with attached_client(tmp_path, mode, to=paged_server(), settings=settings) as client:
        assert client.server_capabilities.resources is not None
        pages: list[list[str]] = []
        cursor: str | None = None
        while cursor is not None or not pages:
            page = await client.session.list_resources(params=types.PaginatedRequestParams(cursor=cursor))
            pages.append([resource.uri for resource in page.resources])
            cursor = page.next_cursor
        second = ["own://2", "skill://a/SKILL.md", "skill://b/SKILL.md"]
        assert pages == [["own://1"], second, ["skill://c/SKILL.md"]]
        assert (await client.read_resource("own://1")).contents[0].uri == "own://1"
        assert (await client.read_resource("skill://a/SKILL.md")).contents[0].mime_type == "text/markdown"
        with pytest.raises(MCPError, match="own: not found"):
            await client.read_resource("skill://none/SKILL.md")
        ref = types.ResourceTemplateReference(uri="skill://{+path}")
        assert "a/SKILL.md" in (await client.complete(ref, {"name": "path", "value": "a"})).completion.values
        others = types.ResourceTemplateReference(uri="own://{x}"), types.PromptReference(name="a")
        for other in others:
            completed = await client.complete(other, {"name": "x", "value": ""})
            assert completed.completion.values == ["own"]


@pytest.mark.requirement("S40-30")
async def test_internal_error_is_logged_and_hides_its_cause_from_the_client(
    tmp_path: Path, mode: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_skill(tmp_path / "a")
    registry = Registry([tmp_path])

    def fail(*_: object) -> None:
        raise KeyError("a secret of ours")

    monkeypatch.setattr(registry, "body", fail)
    async with attached_client(registry, mode) as client:
        with pytest.raises(MCPError) as caught:
            await request(client, "skills/get", name="a")
        fault = caught.value.error
        assert (fault.code, fault.message, fault.data) == (-32603, "Internal error", None)
        assert (await request(client, "skills/list"))["skills"]
    assert "a secret of ours" in caplog.text


async def test_listen_handler_of_the_server_gets_filters_without_skills(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    received: list[bool | None] = []

    async def listen(ctx: Any, params: Any) -> types.SubscriptionsListenResult:
        received.append(params.notifications.tools_list_changed)
        return types.SubscriptionsListenResult(_meta={META + "subscriptionId": ctx.request_id})

    server = Server[Any]("mine", on_subscriptions_listen=listen)
    async with attached_client(tmp_path, to=server, watch=True) as client:
        async with client.listen(tools_list_changed=True) as events:
            assert [event async for event in events] == []
        async with client.listen(resources_list_changed=True) as events:
            write_skill(tmp_path / "b")
            assert repr(await anext(events)) == "ResourcesListChanged()"
    assert received == [True]


# During the first scan


HeldScan = tuple[Registry, threading.Event]


@pytest.fixture
def held_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldScan]:
    """A registry with an index of 400 skills, one of them hidden, whose scan waits for the event."""
    for number in range(400):
        write_skill(tmp_path / "skills" / f"team-{number % 9}" / f"skill-{number:03}")
    hidden = tmp_path / "skills" / "team-0" / "skill-000" / "SKILL.md"
    hidden.write_text(hidden.read_text().replace("---\n\n", "disable-model-invocation: true\n---\n\n"))
    monkeypatch.setattr(disk, "_SETTLED_NS", 0)
    index = Index(tmp_path / "index", 1)
    with Registry([tmp_path / "skills"], index=index) as earlier:
        earlier.save_index()
    registry, release = Registry([tmp_path / "skills"], index=index), threading.Event()
    load, loads = registry.load, list[None]()

    def wait_and_load() -> None:
        loads.append(None)
        assert release.wait(DEADLINE)
        load()

    monkeypatch.setattr(registry, "load", wait_and_load)
    yield registry, release
    release.set()
    assert len(loads) == 1


async def test_skills_of_the_index_are_listed_before_the_first_scan(held_scan: HeldScan, mode: Any) -> None:
    registry, release = held_scan
    async with attached_client(registry, mode) as client:
        instructions = str(client.instructions)
        early = await client.list_tools()
        assert not registry.loaded.is_set()
        described = str(early.tools[2].description)
        for text in (instructions, described):
            assert "skill-001" in text
            assert "- team-3 (4" in text
            assert "skill-000" not in text
        assert instructions.startswith("399 skills here")
        release.set()
        assert len((await client.list_prompts()).prompts) == 400
        assert registry.loaded.is_set()
        assert (await client.list_tools()).tools == early.tools


async def test_legacy_handshake_starts_the_first_scan(held_scan: HeldScan) -> None:
    registry, release = held_scan
    async with attached_client(registry, "legacy", settings=Settings(tools=False)):
        release.set()
        assert await anyio.to_thread.run_sync(registry.loaded.wait, DEADLINE)


@pytest.mark.parametrize("cause", ["grants", "sources"])
async def test_handshake_waits_for_a_scan_if_the_index_is_not_enough(
    held_scan: HeldScan, mode: Any, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, release = held_scan
    views = None
    if cause == "grants":
        views = Views(registry, Grants([Grant(("local",), (Pattern("team-3/**"),))], local=True))
    else:
        monkeypatch.setattr(Registry, "awaits_sources", True)
    threading.Timer(0.2, release.set).start()
    async with attached_client(registry, mode, views=views) as client:
        assert registry.loaded.is_set()
        text = str(client.instructions)
        assert "skill-003" in text
        assert ("skill-001" in text) is (cause == "sources")


async def test_subscription_waits_for_the_first_scan(held_scan: HeldScan) -> None:
    registry, release = held_scan
    params = types.SubscribeRequestParams(uri="skill://team-1/skill-001/SKILL.md")
    async with attached_client(registry, "legacy") as client, anyio.create_task_group() as tasks:
        # The request fails if its URI is checked before the scan.
        tasks.start_soon(client.session.send_request, types.SubscribeRequest(params=params), types.EmptyResult)
        await anyio.wait_all_tasks_blocked()
        release.set()


async def test_tools_changed_by_the_first_scan_are_announced(tmp_path: Path, held_scan: HeldScan) -> None:
    registry, release = held_scan
    async with attached_client(registry) as client:
        before = await client.list_tools()
        write_skill(tmp_path / "skills" / "team-1" / "late")
        async with anyio.create_task_group() as tasks:

            async def release_scan() -> None:
                await anyio.wait_all_tasks_blocked()
                release.set()

            tasks.start_soon(release_scan)
            async with client.listen(tools_list_changed=True) as events:
                assert repr(await anext(events)) == "ToolsListChanged()"
        assert (await client.list_tools()).tools != before.tools


# The numbers count the skill's body in the result of `skills_load`, and its description elsewhere.
@each_row(("name", "bodies", "in_instructions", "in_tools"), [
    ("gemini-cli-mcp-client", 1, 0, 1), ("opencode", 1, 0, 1), ("codex-mcp-client", 1, 0, 1),
    ("claude-code", 1, 1, 0), ("github-copilot-developer", 1, 1, 1), ("another", 1, 1, 1), ("mcp", 2, 1, 1),
])  # fmt: skip
async def test_host_gets_each_text_where_its_model_sees_it(
    tmp_path: Path, name: str, bodies: int, in_instructions: int, in_tools: int
) -> None:
    """`mcp` is the SDK's default name, used by frameworks that show one of both bodies."""
    write_skill(tmp_path / "a", description="Brews tea. Use when thirsty.", body="This is how.\n")
    for mode in ("legacy", "auto"):
        async with attached_client(tmp_path, mode, host=name) as client:
            assert str(client.instructions).count("Brews tea.") == in_instructions
            tools = (await client.list_tools()).tools
            assert "".join(str(each.description) for each in tools).count("Brews tea.") == in_tools
            loaded = await client.call_tool("skills_load", {"names": ["a"]})
            assert str(loaded.model_dump()).count("This is how.") == bodies
            read = await client.call_tool("skills_read", {"path": "SKILL.md"})
            assert bool(read.is_error) is (mode == "auto")  # a modern request needs its session


async def test_attach_accepts_the_server_within_fastmcp_and_refuses_other_objects(tmp_path: Path) -> None:
    """`make interop` tests the FastMCP package itself."""
    write_skill(tmp_path / "a")
    outer = SimpleNamespace(_mcp_server=Server[Any]("mine"))
    attach(outer, Registry([tmp_path]), watch=False)
    async with Client(outer._mcp_server, mode="auto") as client:
        assert [each.name for each in (await client.list_prompts()).prompts] == ["a"]
    for other in (object(), None, Server, "mine"):
        with pytest.raises(
            TypeError, match=r"^attach\(\) does not support builtins\.\w+; give it a Server .* FastMCP .*$"
        ):
            attach(other, Registry([tmp_path]))


@each_row(("given", "advised"), [
    ("skills", ["skills"]), (Path("skills"), [Path("skills")]), (["skills"], ["skills"]), (("a", "b"), ["a", "b"]),
])  # fmt: skip
def test_attach_advises_a_registry_of_the_given_roots(given: Any, advised: list[Any]) -> None:
    with pytest.raises(TypeError) as caught:
        attach(Server[Any]("mine"), given)
    assert str(caught.value) == f"attach() takes a Registry; write attach(server, Registry({advised!r}))"


@each_row("name", ["Cline", "cline-cli", "qwen-code-mcp-client", "copilot-cli"])
async def test_host_that_truncates_results_reads_a_long_body_in_parts(tmp_path: Path, name: str) -> None:
    lines = [f"{number}. Do step {number} of many, and check its result." for number in range(600)]
    write_skill(tmp_path / "a", body="\n".join(lines))
    async with attached_client(tmp_path, host=name) as client:
        loaded: Any = await client.call_tool("skills_load", {"names": ["a"]})
        text = loaded.content[0].text
        assert len(text) < 8_000
        session = {"conversation": loaded.structured_content["session"]}  # an alias of `session`
        start = int(re.findall(r"start_line=(\d+)", text)[-1])
        while True:
            arguments = {"skill": "a", "path": "SKILL.md", "start_line": start, **session}
            part: Any = await client.call_tool("skills_read", arguments)
            assert len(part.content[0].text) <= 7_500
            text += part.content[0].text
            more = re.search(r"go on with start_line=(\d+)", part.content[-1].text)
            if more is None:
                break
            start = int(more[1])
    assert all(line in text for line in lines)


SKILL_OF_TOOL = "mcp-skills-server/skill"


def tools_server() -> MCPServer[Any]:
    server = MCPServer("mine")
    for name, meta in (("refund", {"own": 1}), ("credit", None), ("invoice", None), ("other", None)):
        server.add_tool(lambda: "done", name=name, description="Does a thing.", meta=meta)
    return server


async def tool_metas(client: Client) -> dict[str, Any]:
    tools = (await client.session.list_tools()).tools
    return {tool.name: tool.meta for tool in tools if tool.meta is not None}


@pytest.mark.parametrize("tools", [True, False])
async def test_tool_names_its_skill_to_clients_with_the_grant(tmp_path: Path, mode: Any, tools: bool) -> None:
    write_skill(tmp_path / "our money" / "refunds")
    write_skill(tmp_path / "invoices")
    registry = Registry([tmp_path])
    views = Views(registry, Grants([Grant(("local",), (Pattern("our money/**"),))], local=True))
    uri = "skill://our%20money/refunds/SKILL.md"
    tool_skills = {"refund": "our money/refunds", "credit": uri, "invoice": "invoices", "other": "our money/new"}
    options = {"settings": Settings(tools=tools), "views": views, "tool_skills": tool_skills}
    async with attached_client(registry, mode, to=tools_server(), **options) as client:
        assert await tool_metas(client) == {"refund": {"own": 1, SKILL_OF_TOOL: uri}, "credit": {SKILL_OF_TOOL: uri}}
        write_skill(tmp_path / "our money" / "new")
        registry.refresh()
        assert (await tool_metas(client))["other"] == {SKILL_OF_TOOL: "skill://our%20money/new/SKILL.md"}


async def test_loaded_skill_names_the_tools_that_it_documents(tmp_path: Path, mode: Any) -> None:
    for name in ("refunds", "invoices", "greetings"):
        write_skill(tmp_path / name)
    documents = {"refund": "refunds", "credit": "refunds", "invoice": "invoices", "absent": "refunds"}
    async with attached_client(tmp_path, mode, to=tools_server(), tool_skills=documents) as client:
        note = "Tools that these skills document: credit (refunds), refund (refunds)."
        for tool, given, notes in (
            ("skills_load", {"names": ["refunds"]}, [note]),
            ("skills_load", {"names": ["greetings"]}, []),
            ("skills_unload", {"all": True}, []),
        ):
            result: Any = await client.call_tool(tool, given)
            assert result.structured_content.get("note") == (notes or [None])[0]
            assert [block.text for block in result.content[1:]] == notes
        assert (await client.call_tool("refund")).content[0] == types.TextContent(text="done")


def failing_server() -> MCPServer[Any]:
    """Return a server with tools that succeed, that fail, and that have a structure."""
    server = tools_server()
    server.add_tool(lambda: {"total": 1}, name="total", description="Sum.", structured_output=False)

    def fail() -> str:
        raise ToolError("no invoice")

    server.add_tool(fail, name="fail")
    return server


DOCUMENTED = {"refund": "refunds", "fail": "refunds", "credit": "refunds", "invoice": "invoices", "other": "secret"}


async def texts(client: Client, tool: str, **given: Any) -> list[str]:
    """Return the texts of a tool's result after the first one."""
    return [block.text for block in (await client.call_tool(tool, given)).content[1:] if block.type == "text"]


def granting(registry: Registry) -> Views:
    """Return views in which nobody may read the skill `secret`."""
    patterns = (Pattern("refunds"), Pattern("invoices"))
    return Views(registry, Grants([Grant(("local",), patterns)], local=True))


def documented(folder: Path) -> Registry:
    for name in ("refunds", "invoices", "secret"):
        write_skill(folder / name)
    return Registry([folder])


POINTER = "The skill skill://{}/SKILL.md explains this tool: load it with skills_load."


@each_row(("when", "settings", "host", "end"), [
    ("description", Settings(), "sdk", " with skills_load."), ("description", Settings(tools=False), "sdk", "."),
    ("error", Settings(), "sdk", None), (None, Settings(), "sdk", None),
])  # fmt: skip
async def test_description_of_a_tool_names_its_skill(
    tmp_path: Path, when: Any, settings: Settings, host: str, end: str | None
) -> None:
    registry = documented(tmp_path)
    options = {"views": granting(registry), "tool_skills": DOCUMENTED, "when": when, "settings": settings}
    async with attached_client(registry, to=failing_server(), host=host, **options) as client:
        tools = {tool.name: tool.description or "" for tool in (await client.session.list_tools()).tools}
    line = "The skill skill://refunds/SKILL.md explains this tool: load it"
    assert tools["refund"] == ("Does a thing." if end is None else f"Does a thing.\n\n{line}{end}")
    assert tools["fail"] == ("" if end is None else f"{line}{end}")
    assert tools["other"] == "Does a thing."  # the client may not read its skill


@each_row(("skills", "end"), [(100, "."), (101, " with skills_load.")])
async def test_description_names_the_tool_that_a_native_host_needs(tmp_path: Path, skills: int, end: str) -> None:
    """Such a host shows the first 100 skills by itself; the skill of the tool is the last one."""
    for number in range(skills):
        write_skill(tmp_path / f"s{number:03}")
    last = f"s{skills - 1:03}"
    options: dict[str, Any] = {"tool_skills": {"refund": last}, "when": "description"}
    native: dict[str, Any] = {"host": "claude-code", "extensions": [advertise(EXTENSION)]}
    async with attached_client(tmp_path, "auto", to=failing_server(), **native, **options) as client:
        tools = {tool.name: tool.description for tool in (await client.session.list_tools()).tools}
    line = f"The skill skill://{last}/SKILL.md explains this tool: load it"
    assert tools["refund"] == f"Does a thing.\n\n{line}{end}"
    assert ("skills_load" in tools) is (skills > 100)


# Tools that are called in this order, each with the skill that its result then names; "refunds" is a skill to load.
@each_row(("when", "calls"), [
    ("first-call", {"total": "", "other": "", "refund": "refunds", "credit": "", "fail": "", "invoice": "invoices"}),
    ("first-call", {"refunds": "", "refund": "", "invoice": "invoices"}), ("error", {"refund": "", "fail": "refunds"}),
])  # fmt: skip
async def test_result_names_each_skill_once_in_a_conversation(
    tmp_path: Path, mode: Any, when: Any, calls: dict[str, str]
) -> None:
    registry = documented(tmp_path)
    options = {"views": granting(registry), "tool_skills": DOCUMENTED, "when": when}
    async with attached_client(registry, mode, to=failing_server(), **options) as client:
        for tool, skill in calls.items():
            if tool == "refunds":
                await client.call_tool("skills_load", {"names": [tool]})
                continue
            assert await texts(client, tool) == [POINTER.format(name) for name in (skill,) if name], tool
            assert await texts(client, tool) == [], tool


async def test_another_conversation_is_told_anew(tmp_path: Path) -> None:
    server = failing_server()
    options: dict[str, Any] = {"tool_skills": DOCUMENTED, "when": "first-call"}
    async with attached_client(documented(tmp_path), "legacy", to=server, **options) as first:
        assert await texts(first, "refund") == [POINTER.format("refunds")]
        async with Client(server, mode="legacy") as second:
            assert await texts(second, "refund") == [POINTER.format("refunds")]
        assert await texts(first, "refund") == []


def test_unknown_time_to_name_skills_is_refused(tmp_path: Path) -> None:
    server, when = MCPServer[Any]("mine"), cast("Any", "always")
    with pytest.raises(UsageError, match=r"'always'.* 'description', 'first-call', 'error'"):
        attach(server, Registry([tmp_path]), when=when)
    attach(server, Registry([tmp_path]))


async def test_name_clash_lists_one_feature_and_logs_the_hidden_one(
    tmp_path: Path, mode: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        write_skill(tmp_path / name)
    server = MCPServer("mine")
    server.add_tool(lambda: "their tool", name="skills_load", description="Does a thing.")
    server.prompt(name="b")(lambda: "their prompt")
    server.resource("skill://a/SKILL.md", name="theirs")(lambda: "their resource")
    async with attached_client(tmp_path, mode, to=server, settings=Settings(prompt_page_size=1)) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        assert sorted(tools) == sorted(NAMES)
        await client.list_tools()  # logs nothing again
        first = await client.session.list_prompts()
        second = await client.session.list_prompts(params=types.PaginatedRequestParams(cursor=first.next_cursor))
        assert [each.name for each in (*first.prompts, *second.prompts)] == ["b", "a"]
        resources = [resource.name for resource in (await client.list_resources()).resources]
        assert resources == ["a", "b"]
        assert "their tool" in str(await client.call_tool("skills_load", {}))
        assert "their prompt" in str(await client.get_prompt("b"))
        assert "their resource" not in str(await client.read_resource("skill://a/SKILL.md"))
    hidden = [record.getMessage().partition(";")[0] for record in caplog.records if "hides" in record.getMessage()]
    assert hidden == [
        "the server's own tool skills_load hides that of the skills",
        "the server's own prompt b hides that of the skills",
        "a skill hides the server's own resource skill://a/SKILL.md",
    ]


async def test_tool_list_with_names_of_skills_is_cached_privately(tmp_path: Path) -> None:
    async def list_tools(*_: object) -> types.ListToolsResult:
        tool = types.Tool(name="refund", input_schema={"type": "object"})
        return types.ListToolsResult(tools=[tool], ttl_ms=9_000, cache_scope="public")

    write_skill(tmp_path / "refunds")
    server = Server[Any]("mine", on_list_tools=list_tools)
    options = {"settings": Settings(tools=False), "tool_skills": {"refund": "refunds"}}
    async with attached_client(tmp_path, to=server, **options) as client:
        assert (await client.session.list_tools()).cache_scope == "private"


async def test_template_of_both_server_and_skills_is_listed_once(tmp_path: Path) -> None:
    async def list_templates(*_: object) -> Any:
        return {"resourceTemplates": [{"name": uri, "uriTemplate": uri} for uri in (TEMPLATE, "mine://{path}")]}

    write_skill(tmp_path / "a")
    server = Server[Any]("mine", on_list_resource_templates=list_templates)
    async with attached_client(tmp_path, to=server, settings=Settings(ttl_ms=7)) as client:
        listed = await client.list_resource_templates()
        assert sorted(each.uri_template for each in listed.resource_templates) == ["mine://{path}", TEMPLATE]
        assert listed.ttl_ms == 0  # the server's own result has no time to live


# The server has so many `pages` of prompts, of which `read` are requested.
@each_row(("pages", "read"), [(2, 2), (1000, 100)])
async def test_at_most_100_pages_of_the_servers_prompts_are_read(tmp_path: Path, pages: int, read: int) -> None:
    cursors: list[Any] = []

    async def list_prompts(_: Any, params: types.PaginatedRequestParams | None) -> Any:
        cursors.append(params and params.cursor)
        more = "more" if len(cursors) < pages else None
        return types.ListPromptsResult(prompts=[], next_cursor=more)

    write_skill(tmp_path / "a")
    server = Server[Any]("mine", on_list_prompts=list_prompts, on_get_prompt=list_prompts)
    async with attached_client(tmp_path, to=server) as client:
        await client.get_prompt("a")
    assert cursors == [None, *["more"] * (read - 1)]


def test_quota_owner_is_the_user_of_the_sdk_else_the_address_else_none() -> None:
    address = {"client": ("192.0.2.1", 1234)}
    user = {**address, "user": AuthenticatedUser(AccessToken(token="t", client_id="a", scopes=["read"]))}
    who = principal(user)
    assert who == Principal("user", "a", "", scopes=frozenset(["read"]))
    assert who is not None and quota_owner(user) == Owner(who.key)
    assert (principal(address), quota_owner(address)) == (None, Owner("address 192.0.2.1"))
    for pipe in ({}, {"client": None}):
        assert (principal(pipe), quota_owner(pipe)) == (None, None)
