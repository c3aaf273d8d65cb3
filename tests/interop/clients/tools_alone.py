"""Drives the MCP client of an agent library that knows tools alone, and writes what it saw to stdout, in the form of
checks.json.

It looks only at what such a library hands to a model, because that is all the model has: the handle of a session must
be found there. Run by the python of a virtual environment that has the library. Arguments: library ("langchain",
"openai-agents" or "pydantic-ai"), protocol version, target as JSON ({url} or {command, args}).
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

_CHECKS: list[dict[str, str]] = []
_HANDLE = re.compile(r'(?:Session: |"session": ")([\w-]+)')
_NAME = re.compile(r'^(?:- |\s*"name": ")([^\s:"]+)[:"]', re.MULTILINE)


@dataclass
class Host:
    """What a library makes of the server: version of the protocol, tools with descriptions, and a way to call them."""

    version: str
    tools: Mapping[str, str]
    call: Callable[[str, dict[str, Any]], Awaitable[str]]


async def check(identifier: str, work: Callable[[], Awaitable[str]]) -> None:
    """Do it and note what was wrong; "" for nothing."""
    try:
        wrong = await work()
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"[:400]
    _CHECKS.append({"id": identifier, "status": "FAILURE" if wrong else "SUCCESS", "errorMessage": wrong})


def _text(shown: Any) -> str:
    """What is shown to a model, as one text."""
    if isinstance(shown, str):
        return shown
    if isinstance(shown, list):
        return "\n".join(map(_text, shown))
    if isinstance(shown, dict) and shown.get("type") == "text":
        return str(shown["text"])
    return json.dumps(shown, ensure_ascii=False, default=str, indent=1)


@asynccontextmanager
async def langchain(target: dict[str, Any], legacy: bool) -> AsyncIterator[Host]:
    """langchain-mcp-adapters. Over HTTP every call is a connection of its own; over stdio it would be a server of its
    own, so that tools which remember are given one session there, as the library's guide has it.
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
    """openai-agents: one connection. The definitions go through its conversion to strict schemas."""
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
    """pydantic-ai: one connection. Where a result has a structure, the model is given that and no text."""
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport
    from pydantic_ai.mcp import MCPToolset

    where: Any = target.get("url") or StdioTransport(target["command"], target["args"], keep_alive=False)
    async with MCPToolset(Client(where, mode="legacy" if legacy else "auto"), tool_error_behavior="error") as toolset:

        async def call(name: str, arguments: dict[str, Any]) -> str:
            try:
                return _text(await toolset.direct_call_tool(name, arguments))
            except Exception as error:  # which the library tells the model in these words
                return str(error)

        tools = {tool.name: tool.description or "" for tool in await toolset.list_tools()}
        yield Host(str(toolset.client.protocol_version), tools, call)


async def ask(host: Host, version: str) -> None:
    """Go through the skills as a model would."""
    skills: list[str] = []

    async def era() -> str:
        return "" if host.version == version else host.version

    async def listing() -> str:
        found = await host.call("skills_list", {"limit": 200})
        skills.extend(_NAME.findall(found))
        return "" if skills else f"no skill in {found:.200}"

    async def unknown() -> str:
        said = await host.call("skills_read", {"path": "SKILL.md", "session": "nobody"})
        return "" if "skills_load" in said else f"does not say what to do: {said:.200}"

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
                return f"this is no SKILL.md: {read:.300}"
            left = await host.call("skills_unload", {"all": True, "session": found[1]})
            return "" if found[1] in left and name not in left.replace(found[1], "") else f"still loaded: {left:.300}"

        await check(f"use {name}", used)
    await check("unknown session", unknown)


_LIBRARIES: dict[str, Any] = {"langchain": langchain, "openai-agents": openai_agents, "pydantic-ai": pydantic_ai}


async def main(library: str, version: str, target: dict[str, Any]) -> None:
    async with _LIBRARIES[library](target, version == "2025-11-25") as host:
        await ask(host, version)
    print(json.dumps(_CHECKS))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
