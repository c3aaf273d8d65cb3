"""Check a server with the MCP client of an agent library that uses tools only; write the checks to stdout.

It reads only the text that the library shows to a model, which must contain the handle of the session. Run it with
the interpreter of a virtual environment that has the library. Arguments: library (a key of `_LIBRARIES`), protocol
version, target as JSON ({url} or {command, args}). The output has the form of checks.json.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

_CHECKS: list[dict[str, str]] = []
_HANDLE = re.compile(r'(?:Session: |"session": ")([^\s"]+)')
_NAME = re.compile(r'^(?:- |\s*"name": ")([^\s:"]+)[:"]', re.MULTILINE)


@dataclass
class Host:
    """A library's view of the server: protocol version, tools with descriptions, and a function to call them."""

    version: str
    tools: Mapping[str, str]
    call: Callable[[str, dict[str, Any]], Awaitable[str]]


async def check(identifier: str, work: Callable[[], Awaitable[str]]) -> None:
    """Run a check and record why it failed, "" if it passed."""
    try:
        wrong = await work()
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"[:400]
    _CHECKS.append({"id": identifier, "status": "FAILURE" if wrong else "SUCCESS", "errorMessage": wrong})


def _text(shown: Any) -> str:
    """Return the text that a model is shown."""
    if isinstance(shown, str):
        return shown
    if isinstance(shown, list):
        return "\n".join(map(_text, shown))
    if isinstance(shown, dict) and shown.get("type") == "text":
        return str(shown["text"])
    return json.dumps(shown, ensure_ascii=False, default=str, indent=1)


@asynccontextmanager
async def langchain(target: dict[str, Any], legacy: bool) -> AsyncIterator[Host]:
    """Connect by langchain-mcp-adapters.

    Over HTTP every call is a new connection. Over stdio every call would start a new server, so one session serves
    all calls there, as the library's guide recommends.
    """
    from langchain_mcp_adapters.client import MultiServerMCPClient
    from langchain_mcp_adapters.tools import load_mcp_tools
    from mcp.types import LATEST_PROTOCOL_VERSION

    transport: Any = {"transport": "http" if "url" in target else "stdio", **target}
    client = MultiServerMCPClient({"skills": transport})

    def host(found: list[Any]) -> Host:
        tools = {tool.name: tool for tool in found}

        async def call(name: str, arguments: dict[str, Any]) -> str:
            message = await tools[name].ainvoke({"type": "tool_call", "id": "1", "name": name, "args": arguments})
            return _text(message.content)

        return Host(LATEST_PROTOCOL_VERSION, {name: tool.description for name, tool in tools.items()}, call)

    if "url" in target:
        yield host(await client.get_tools())
        return
    async with client.session("skills") as session:
        yield host(await load_mcp_tools(session))


@asynccontextmanager
async def openai_agents(target: dict[str, Any], legacy: bool) -> AsyncIterator[Host]:
    """Connect by openai-agents: one connection, with its conversion of definitions to strict schemas."""
    from agents.mcp import MCPServerStdio, MCPServerStreamableHttp, MCPUtil
    from agents.run_context import RunContextWrapper

    context: Any = RunContextWrapper(context=None)
    parameters: Any = target
    async with MCPServerStreamableHttp(parameters) if "url" in target else MCPServerStdio(parameters) as server:
        found = {tool.name: tool for tool in await server.list_tools()}
        shown = [MCPUtil.to_function_tool(tool, server, convert_schemas_to_strict=True) for tool in found.values()]

        async def call(name: str, arguments: dict[str, Any]) -> str:
            return _text(await MCPUtil.invoke_mcp_tool(server, found[name], context, json.dumps(arguments)))

        version = str(getattr(server.session, "protocol_version", None))
        yield Host(version, {tool.name: tool.description for tool in shown}, call)


@asynccontextmanager
async def pydantic_ai(target: dict[str, Any], legacy: bool) -> AsyncIterator[Host]:
    """Connect by pydantic-ai: one connection. A model gets the structured result, or else the text."""
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport
    from pydantic_ai.mcp import MCPToolset

    where: Any = target.get("url") or StdioTransport(target["command"], target["args"], keep_alive=False)
    async with MCPToolset(Client(where, mode="legacy" if legacy else "auto"), tool_error_behavior="error") as toolset:

        async def call(name: str, arguments: dict[str, Any]) -> str:
            try:
                return _text(await toolset.direct_call_tool(name, arguments))
            except Exception as error:  # the library shows its text to the model
                return str(error)

        tools = {tool.name: tool.description or "" for tool in await toolset.list_tools()}
        yield Host(str(toolset.client.protocol_version), tools, call)


@asynccontextmanager
async def crewai(target: dict[str, Any], legacy: bool) -> AsyncIterator[Host]:
    """Connect by `mcps=` of CrewAI: a connection, and over stdio a server, for each call.

    The arguments of a call have a null for each one that the model left out. `_run_async`, not `_run`: over HTTP that
    one ends with "no running event loop" after the answer has come.
    """
    from crewai.mcp import MCPServerHTTP, MCPServerStdio
    from crewai.mcp.tool_resolver import MCPToolResolver
    from crewai.utilities.logger import Logger
    from mcp.types import LATEST_PROTOCOL_VERSION

    server: Any = MCPServerHTTP(**target) if "url" in target else MCPServerStdio(**target)
    resolver = MCPToolResolver(agent=None, logger=Logger(verbose=False))
    tools: dict[str, Any] = {
        each.original_tool_name: each for each in await asyncio.to_thread(resolver.resolve, [server])
    }

    async def call(name: str, arguments: dict[str, Any]) -> str:
        given = tools[name].args_schema.model_validate(arguments).model_dump()
        result = await tools[name]._run_async(**given)
        return _text(getattr(result, "message", result))  # the text of a failure

    yield Host(LATEST_PROTOCOL_VERSION, {name: tool.description for name, tool in tools.items()}, call)


@asynccontextmanager
async def crewai_adapter(target: dict[str, Any], legacy: bool) -> AsyncIterator[Host]:
    """Connect by mcpadapt, the adapter of crewai-tools: one connection in a thread."""
    from mcp import StdioServerParameters
    from mcp.types import LATEST_PROTOCOL_VERSION
    from mcpadapt.core import MCPAdapt
    from mcpadapt.crewai_adapter import CrewAIAdapter

    where: Any = {"transport": "streamable-http", **target} if "url" in target else StdioServerParameters(**target)
    connection = MCPAdapt(where, CrewAIAdapter())
    tools: dict[str, Any] = {tool.name: tool for tool in await asyncio.to_thread(connection.__enter__)}

    async def call(name: str, arguments: dict[str, Any]) -> str:
        return _text(await asyncio.to_thread(tools[name].to_structured_tool().invoke, arguments))

    try:
        yield Host(LATEST_PROTOCOL_VERSION, {name: tool.description for name, tool in tools.items()}, call)
    finally:
        await asyncio.to_thread(connection.close)


@asynccontextmanager
async def llama_index(target: dict[str, Any], legacy: bool) -> AsyncIterator[Host]:
    """Connect by LlamaIndex: a connection, and over stdio a server, for each call."""
    from llama_index.tools.mcp import BasicMCPClient, McpToolSpec

    client = BasicMCPClient(target.get("url") or target["command"], args=target.get("args"))
    async with client._run_session() as session:
        version = str(session.protocol_version)
    tools: dict[str, Any] = {tool.metadata.name: tool for tool in await McpToolSpec(client).to_tool_list_async()}

    async def call(name: str, arguments: dict[str, Any]) -> str:
        output = await tools[name].acall(**arguments)
        # A model is shown Python's notation of the result, with this text in it.
        return "\n".join(getattr(block, "text", "") for block in output.raw_output.content)

    yield Host(version, {name: tool.metadata.description for name, tool in tools.items()}, call)


async def check_tools(host: Host, version: str) -> None:
    """Use the skills as a model would."""
    skills: list[str] = []

    async def era() -> str:
        return "" if host.version == version else host.version

    async def listing() -> str:
        found = await host.call("skills_list", {"limit": 200})
        skills.extend(_NAME.findall(found))
        return "" if skills else f"no skill in {found:.200}"

    async def unknown() -> str:
        error = await host.call("skills_read", {"path": "SKILL.md", "session": "nobody"})
        return "" if "skills_load" in error else f"no remedy in {error:.200}"

    await check("era", era)
    for name, description in host.tools.items():

        async def described(description: str = description) -> str:
            return "" if description else "no description"

        await check(f"tool {name}", described)
    await check("skills_list", listing)
    for name in skills:

        async def used(name: str = name) -> str:
            loaded = await host.call("skills_load", {"names": [name]})
            found = _HANDLE.search(loaded)
            if found is None:
                return f"no handle in {loaded:.300}"
            read = await host.call("skills_read", {"path": "SKILL.md", "skill": name, "session": found[1]})
            if not read.lstrip("\ufeff").startswith("---"):
                return f"not a SKILL.md: {read:.300}"
            left = await host.call("skills_unload", {"all": True, "session": found[1]})
            again = _HANDLE.search(left)
            # Over stdio a handle begins with what stays the same, and names the loaded skills.
            is_same = again is not None and again[1].partition(".")[0] == found[1].partition(".")[0]
            return "" if is_same and name not in left else f"still loaded: {left:.300}"

        await check(f"use {name}", used)
    await check("unknown session", unknown)


_LIBRARIES: dict[str, Any] = {
    "langchain": langchain,
    "openai-agents": openai_agents,
    "pydantic-ai": pydantic_ai,
    "crewai": crewai,
    "crewai-adapter": crewai_adapter,
    "llama-index": llama_index,
}


async def main(library: str, version: str, target: dict[str, Any]) -> None:
    os.environ.update(CREWAI_DISABLE_TELEMETRY="true", OTEL_SDK_DISABLED="true")
    with redirect_stdout(sys.stderr):  # CrewAI draws boxes there
        async with _LIBRARIES[library](target, version == "2025-11-25") as host:
            await check_tools(host, version)
    print(json.dumps(_CHECKS))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
