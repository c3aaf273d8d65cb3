"""A folder of skills attached to servers that have something of their own."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.client.client import Client
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel.server import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError

from mcp_skills_server import Registry, Settings, attach
from mcp_skills_server.access.grants import Grant, Grants, Pattern
from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.format.uris import TEMPLATE
from mcp_skills_server.server.sdk import principal, quota_owner
from server.sdk import ask, attached
from server.test_tools import NAMES
from tables import each_row
from wire import DEADLINE, EXTENSION, META, Wire, WireError, write_skill

pytestmark = pytest.mark.anyio
SKILL = "skill://summarise-ticket/SKILL.md"


@pytest.mark.requirement("S76-9", "S76-10", "S76-11", "X-14")
def test_the_server_keeps_what_it_has_which_dependencies_resolve_against(example: Wire) -> None:
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
        ("resources/read", {"uri": "tickets://7"}, '"text": "The printer'),
        ("resources/read", {"uri": SKILL}, '"mimeType": "text/markdown"'),
    ):
        assert words in json.dumps(example.request(method, params))
    with pytest.raises(WireError):
        example.request("resources/read", {"uri": "tickets://none/none"})
    kept = {
        "tools": ["read_ticket"],  # close_ticket is not served
        "prompts": [{"type": "ref/prompt", "name": "handover"}],
        "resources": [{"type": "ref/resource", "uri": uri} for uri in ("tickets://open", "tickets://{number}", SKILL)],
    }
    assert example.every_skill()[0]["dependencies"] == kept
    assert example.request("skills/get", {"name": "summarise-ticket"})["dependencies"] == kept


async def test_events_of_the_server_s_own_bus_reach_the_same_stream(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    server = MCPServer("mine")

    async def announce(ctx: Context[Any, Any]) -> str:
        """Say that tools and a resource changed."""
        await ctx.notify_tools_changed()
        await ctx.notify_resource_updated("mine://x")
        return "told"

    server.add_tool(announce)
    async with attached(tmp_path, to=server, watch=True) as client:
        uris = ["mine://x", "skill://a/SKILL.md"]
        async with client.listen(tools_list_changed=True, resource_subscriptions=uris) as events:
            assert events.honored.tools_list_changed is True
            await client.call_tool("announce")
            seen = {repr(await anext(events)), repr(await anext(events))}
            assert seen == {"ToolsListChanged()", "ResourceUpdated(uri='mine://x')"}
            write_skill(tmp_path / "a", description="Another description of some length.")
            assert repr(await anext(events)) == "ResourceUpdated(uri='skill://a/SKILL.md')"


async def test_the_lifespan_and_the_capabilities_of_a_server_stay(tmp_path: Path) -> None:
    steps: list[Any] = []

    @asynccontextmanager
    async def lifespan(_: Any) -> Any:
        steps.append("begun")
        yield {"own": 1}
        steps.append("ended")

    async def declare(ctx: Any, call_next: Any) -> Any:
        result = await call_next(ctx)
        declared = {"own": {"x": 1}, "resources": {"own": True, "subscribe": False}, "extensions": {"own/x": {}}}
        return result if ctx.method != "initialize" else {**result, "capabilities": declared}

    async def look(ctx: Any, call_next: Any) -> Any:
        steps.append(await call_next(ctx))
        return steps[-1]

    server = Server[Any]("mine", lifespan=lifespan)
    attach(server, Registry([tmp_path]))
    server.middleware[:] = [look, *server.middleware, declare]
    with anyio.fail_after(DEADLINE):
        async with Client(server, mode="legacy"):
            capabilities = steps[1]["capabilities"]
    assert (steps[0], steps[-1], capabilities["own"]) == ("begun", "ended", {"x": 1})
    assert capabilities["resources"] == {"own": True, "subscribe": True, "listChanged": True}
    assert capabilities["extensions"].keys() == {"own/x", EXTENSION}


def paged_server() -> Server[Any]:
    """A lowlevel server with two pages of resources, a template, a reader and a completion."""

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


async def test_lists_of_a_lowlevel_server_are_joined_page_by_page(tmp_path: Path, mode: Any) -> None:
    for name in ("a", "b", "c"):
        write_skill(tmp_path / name)
    async with attached(tmp_path, mode, to=paged_server(), settings=Settings(page_size=2)) as client:
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
        other = types.ResourceTemplateReference(uri="own://{x}")
        assert (await client.complete(other, {"name": "x", "value": ""})).completion.values == ["own"]


@pytest.mark.requirement("S40-30")
async def test_a_bug_is_told_without_its_internals(
    tmp_path: Path, mode: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_skill(tmp_path / "a")
    registry = Registry([tmp_path])

    def broken(*_: object) -> None:
        raise KeyError("a secret of ours")

    monkeypatch.setattr(registry, "body", broken)
    async with attached(registry, mode) as client:
        with pytest.raises(MCPError) as caught:
            await ask(client, "skills/get", name="a")
        fault = caught.value.error
        assert (fault.code, fault.message, fault.data) == (-32603, "Internal error", None)
        assert (await ask(client, "skills/list"))["skills"]
    assert "a secret of ours" in caplog.text


async def test_a_listen_handler_of_the_server_s_own_making_keeps_what_is_not_about_skills(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    asked: list[bool | None] = []

    async def listen(ctx: Any, params: Any) -> types.SubscriptionsListenResult:
        asked.append(params.notifications.tools_list_changed)
        return types.SubscriptionsListenResult(_meta={META + "subscriptionId": ctx.request_id})

    server = Server[Any]("mine", on_subscriptions_listen=listen)
    async with attached(tmp_path, to=server, watch=True) as client:
        async with client.listen(tools_list_changed=True) as events:
            assert [event async for event in events] == [] and asked == [True]
        async with client.listen(resources_list_changed=True) as events:
            write_skill(tmp_path / "b")
            assert repr(await anext(events)) == "ResourcesListChanged()" and asked == [True]


# While the skills are being read for the first time


Held = tuple[Registry, threading.Event]


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """A registry of 400 skills that an earlier process saw, one of them hidden; its scan waits for the event."""
    for number in range(400):
        write_skill(tmp_path / "skills" / f"team-{number % 9}" / f"skill-{number:03}")
    hidden = tmp_path / "skills" / "team-0" / "skill-000" / "SKILL.md"
    hidden.write_text(hidden.read_text().replace("---\n\n", "disable-model-invocation: true\n---\n\n"))
    monkeypatch.setattr(disk, "_SETTLED_NS", 0)
    index = Index(tmp_path / "index", 1)
    with Registry([tmp_path / "skills"], index=index) as earlier:
        earlier.save_index()
    registry, go = Registry([tmp_path / "skills"], index=index), threading.Event()
    load, loads = registry.load, list[None]()

    def late() -> None:
        loads.append(None)
        assert go.wait(DEADLINE)
        load()

    monkeypatch.setattr(registry, "load", late)
    yield registry, go
    go.set()
    assert len(loads) == 1


async def test_names_are_told_before_the_first_scan(held: Held, mode: Any) -> None:
    registry, go = held
    async with attached(registry, mode) as client:
        said = str(client.instructions)
        early = await client.list_tools()
        assert not registry.loaded.is_set()
        described = str(early.tools[2].description)
        for text in (said, described):
            assert "skill-001" in text and "- team-3 (4" in text and "skill-000" not in text
        assert said.startswith("399 skills here")
        go.set()
        assert len((await client.list_prompts()).prompts) == 400
        assert registry.loaded.is_set()
        assert (await client.list_tools()).tools == early.tools


async def test_a_legacy_client_that_asks_for_nothing_starts_the_first_scan(held: Held) -> None:
    registry, go = held
    async with attached(registry, "legacy", settings=Settings(tools=False)):
        go.set()
        assert await anyio.to_thread.run_sync(registry.loaded.wait, DEADLINE)


@pytest.mark.parametrize("why", ["grants", "sources"])
async def test_a_handshake_that_the_index_cannot_answer_waits_for_a_scan(held: Held, mode: Any, why: str) -> None:
    registry, go = held
    views = None
    if why == "grants":
        views = Views(registry, Grants([Grant(("local",), (Pattern("team-3/**"),))], local=True))
    else:
        registry.await_sources = lambda: None
    threading.Timer(0.2, go.set).start()
    async with attached(registry, mode, views=views) as client:
        assert registry.loaded.is_set()
        text = str(client.instructions)
        assert "skill-003" in text and ("skill-001" in text) is (why == "sources")


async def test_a_subscription_waits_for_the_first_scan(held: Held) -> None:
    registry, go = held
    params = types.SubscribeRequestParams(uri="skill://team-1/skill-001/SKILL.md")
    async with attached(registry, "legacy") as client, anyio.create_task_group() as tasks:
        # Fails if the subscription was judged before the skills were known.
        tasks.start_soon(client.session.send_request, types.SubscribeRequest(params=params), types.EmptyResult)
        await anyio.wait_all_tasks_blocked()
        go.set()


async def test_without_prompts_every_prompt_is_the_server_s_own(tmp_path: Path, mode: Any) -> None:
    write_skill(tmp_path / "a")
    asked: list[str] = []

    async def complete(_: Any, params: types.CompleteRequestParams) -> types.CompleteResult:
        assert isinstance(params.ref, types.PromptReference)
        asked.append(params.ref.name)
        return types.CompleteResult(completion=types.Completion(values=["own"]))

    server = Server[Any]("own", on_completion=complete)
    async with attached(tmp_path, mode, to=server, settings=Settings(prompts=False)) as client:
        ref = types.PromptReference(name="a")
        assert (await client.complete(ref, {"name": "task", "value": ""})).completion.values == ["own"]
    assert asked == ["a"]


async def test_a_corrected_list_of_tools_is_announced(tmp_path: Path, held: Held) -> None:
    registry, go = held
    async with attached(registry) as client:
        before = await client.list_tools()
        write_skill(tmp_path / "skills" / "team-1" / "late")
        async with anyio.create_task_group() as tasks:

            async def release() -> None:
                await anyio.wait_all_tasks_blocked()
                go.set()

            tasks.start_soon(release)
            async with client.listen(tools_list_changed=True) as events:
                assert repr(await anext(events)) == "ToolsListChanged()"
        assert (await client.list_tools()).tools != before.tools


@each_row(("name", "bodies", "in_instructions", "in_tools"), [
    ("gemini-cli-mcp-client", 1, 0, 1), ("opencode", 1, 0, 1), ("codex-mcp-client", 1, 0, 1),
    ("claude-code", 1, 1, 0), ("github-copilot-developer", 1, 1, 1), ("another", 1, 1, 1), ("mcp", 2, 1, 1),
])  # fmt: skip
async def test_a_host_gets_the_list_where_its_model_looks_and_the_body_once(
    tmp_path: Path, name: str, bodies: int, in_instructions: int, in_tools: int
) -> None:
    """Hosts that show both had it twice; `mcp` is the SDK's own name, below frameworks that show one or the other."""
    write_skill(tmp_path / "a", description="Brews tea. Use when somebody is thirsty.", body="This is how.\n")
    for mode in ("legacy", "auto"):
        async with attached(tmp_path, mode, host=name) as client:
            assert str(client.instructions).count("Brews tea.") == in_instructions
            tools = (await client.list_tools()).tools
            assert "".join(str(each.description) for each in tools).count("Brews tea.") == in_tools
            got = await client.call_tool("skills_load", {"names": ["a"]})
            assert str(got.model_dump()).count("This is how.") == bodies
            got = await client.call_tool("skills_read", {"path": "SKILL.md"})
            assert bool(got.is_error) is (mode == "auto")  # only a connection of the legacy era remembers


async def test_a_server_is_taken_even_if_it_is_held_as_fastmcp_holds_it_and_all_else_is_refused(tmp_path: Path) -> None:
    """With the package itself `make interop` tries it."""
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


@each_row("name", ["Cline", "cline-cli", "qwen-code-mcp-client", "copilot-cli"])
async def test_a_host_that_cuts_results_gets_a_long_body_in_short_parts(tmp_path: Path, name: str) -> None:
    lines = [f"{number}. Do step {number} of many, and look at what it did." for number in range(600)]
    write_skill(tmp_path / "a", body="\n".join(lines))
    async with attached(tmp_path, host=name) as client:
        got: Any = await client.call_tool("skills_load", {"names": ["a"]})
        seen = got.content[0].text
        assert len(seen) < 8_000
        session = {"conversation": got.structured_content["session"]}  # a name that every host passes on
        start = int(re.findall(r"start_line=(\d+)", seen)[-1])
        while True:
            asked = {"skill": "a", "path": "SKILL.md", "start_line": start, **session}
            part: Any = await client.call_tool("skills_read", asked)
            assert len(part.content[0].text) <= 7_500
            seen += part.content[0].text
            more = re.search(r"go on with start_line=(\d+)", part.content[-1].text)
            if more is None:
                break
            start = int(more[1])
    assert all(line in seen for line in lines)


SKILL_OF_TOOL = "mcp-skills-server/skill"


def tools_server() -> MCPServer[Any]:
    """A server with tools for refunds and for invoices, of which one has `_meta` of its own, and another tool."""
    server = MCPServer("mine")
    for name, meta in (("refund", {"own": 1}), ("credit", None), ("invoice", None), ("other", None)):
        server.add_tool(lambda: "done", name=name, description="Does a thing.", meta=meta)
    return server


async def metas(client: Client) -> dict[str, Any]:
    tools = (await client.session.list_tools()).tools
    return {tool.name: tool.meta for tool in tools if tool.meta is not None}


@pytest.mark.parametrize("tools", [True, False])
async def test_a_tool_names_its_skill_to_who_has_it(tmp_path: Path, mode: Any, tools: bool) -> None:
    write_skill(tmp_path / "our money" / "refunds")
    write_skill(tmp_path / "invoices")
    registry = Registry([tmp_path])
    views = Views(registry, Grants([Grant(("local",), (Pattern("our money/**"),))], local=True))
    uri = "skill://our%20money/refunds/SKILL.md"
    named = {"refund": "our money/refunds", "credit": uri, "invoice": "invoices", "other": "our money/new"}
    options = {"settings": Settings(tools=tools), "views": views, "tool_skills": named}
    async with attached(registry, mode, to=tools_server(), **options) as client:
        assert await metas(client) == {"refund": {"own": 1, SKILL_OF_TOOL: uri}, "credit": {SKILL_OF_TOOL: uri}}
        write_skill(tmp_path / "our money" / "new")
        registry.refresh()
        assert (await metas(client))["other"] == {SKILL_OF_TOOL: "skill://our%20money/new/SKILL.md"}


async def test_what_loads_a_skill_names_the_tools_of_the_server_that_it_is_about(tmp_path: Path, mode: Any) -> None:
    for name in ("refunds", "invoices", "greetings"):
        write_skill(tmp_path / name)
    named = {"refund": "refunds", "credit": "refunds", "invoice": "invoices", "absent": "refunds"}
    async with attached(tmp_path, mode, to=tools_server(), tool_skills=named) as client:
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


async def test_of_equal_names_one_is_listed_and_the_log_says_which(
    tmp_path: Path, mode: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        write_skill(tmp_path / name)
    server = MCPServer("mine")
    server.add_tool(lambda: "their tool", name="skills_load", description="Does a thing.")
    server.prompt(name="b")(lambda: "their prompt")
    server.resource("skill://a/SKILL.md", name="theirs")(lambda: "their resource")
    async with attached(tmp_path, mode, to=server, settings=Settings(prompt_page_size=1)) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        assert sorted(tools) == sorted(NAMES)
        await client.list_tools()  # of which the log does not tell again
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


async def test_a_resource_that_a_skill_hides_is_not_listed_before_the_first_scan_either(held: Held, mode: Any) -> None:
    registry, go = held
    server = MCPServer("mine")
    server.resource("skill://team-1/skill-001/SKILL.md", name="theirs")(lambda: "their resource")
    async with attached(registry, mode, to=server) as client:
        threading.Timer(0.2, go.set).start()
        assert "theirs" not in [each.name for each in (await client.list_resources()).resources]


async def test_a_list_of_tools_that_names_a_client_s_skills_is_cached_for_it_alone(tmp_path: Path) -> None:
    async def list_tools(*_: object) -> types.ListToolsResult:
        tool = types.Tool(name="refund", input_schema={"type": "object"})
        return types.ListToolsResult(tools=[tool], ttl_ms=9_000, cache_scope="public")

    write_skill(tmp_path / "refunds")
    server = Server[Any]("mine", on_list_tools=list_tools)
    options = {"settings": Settings(tools=False), "tool_skills": {"refund": "refunds"}}
    async with attached(tmp_path, to=server, **options) as client:
        assert (await client.session.list_tools()).cache_scope == "private"


async def test_a_template_that_the_skills_have_too_is_listed_once(tmp_path: Path) -> None:
    async def list_templates(*_: object) -> Any:
        return {"resourceTemplates": [{"name": uri, "uriTemplate": uri} for uri in (TEMPLATE, "mine://{path}")]}

    write_skill(tmp_path / "a")
    server = Server[Any]("mine", on_list_resource_templates=list_templates)
    async with attached(tmp_path, to=server, settings=Settings(ttl_ms=7)) as client:
        listed = await client.list_resource_templates()
        assert sorted(each.uri_template for each in listed.resource_templates) == ["mine://{path}", TEMPLATE]
        assert listed.ttl_ms == 0  # as theirs, which says none


@each_row(("pages", "read"), [(2, 2), (1000, 100)])
async def test_at_most_a_hundred_pages_of_the_server_s_own_names_are_read(
    tmp_path: Path, pages: int, read: int
) -> None:
    seen: list[Any] = []

    async def list_prompts(_: Any, params: types.PaginatedRequestParams | None) -> Any:
        seen.append(params and params.cursor)
        return types.ListPromptsResult(prompts=[], next_cursor="more" if len(seen) < pages else None)

    write_skill(tmp_path / "a")
    server = Server[Any]("mine", on_list_prompts=list_prompts, on_get_prompt=list_prompts)
    async with attached(tmp_path, to=server) as client:
        await client.get_prompt("a")
    assert seen == [None, *["more"] * (read - 1)]


def test_a_request_counts_for_its_token_else_for_its_address_else_for_nobody() -> None:
    def scope(name: str | None, address: str | None) -> dict[str, Any]:
        out: dict[str, Any] = {"client": None if address is None else (address, 1234)}
        if name is not None:  # as the SDK's own authentication leaves it
            out["user"] = AuthenticatedUser(AccessToken(token="t", client_id=name, scopes=[]))
        return out

    one, moved, other = scope("a", "192.0.2.1"), scope("a", "192.0.2.2"), scope("b", "192.0.2.1")
    assert None is not principal(one) == principal(moved) != principal(other)
    assert quota_owner(one) == quota_owner(moved) != quota_owner(other)
    plain = scope(None, "192.0.2.1")
    assert principal(plain) is None and quota_owner(plain) == quota_owner(scope(None, "192.0.2.1")) is not None
    assert quota_owner(plain) not in {quota_owner(scope(None, "192.0.2.2")), quota_owner(scope("192.0.2.1", None))}
    for pipe in ({}, scope(None, None)):
        assert principal(pipe) is quota_owner(pipe) is None
