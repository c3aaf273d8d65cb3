"""Drives the FastMCP client against a server and writes what it saw to stdout, in the form of checks.json.

Run by the python of a virtual environment that has it. Arguments: protocol version, target as JSON ({url} or
{command, args}).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fastmcp.skills.client import SkillsClientExtension
from mcp_types import PromptReference

_CHECKS: list[dict[str, str]] = []


async def check(identifier: str, work: Callable[[], Awaitable[bool]]) -> None:
    """Do it and note whether it was right."""
    try:
        right, message = await work(), ""
    except Exception as error:
        right, message = False, f"{type(error).__name__}: {error}"[:400]
    _CHECKS.append({"id": identifier, "status": "SUCCESS" if right else "FAILURE", "errorMessage": message})


async def ask(client: Any, version: str) -> None:
    """Everything that this client knows of skills."""
    entries: list[Any] = []

    async def era() -> bool:
        return client.protocol_version == version

    async def listing() -> bool:
        entries.extend(await client.list_skills())
        return True

    async def unknown() -> bool:
        try:
            await client.get_skill("skill://nobody/has/this/SKILL.md")
        except Exception as error:
            return getattr(error, "code", None) == -32602 or "-32602" in repr(error) or "Unknown skill" in str(error)
        return False

    await check("era", era)
    await check("list", listing)
    for entry in entries:

        async def same(entry: Any = entry) -> bool:
            return await client.get_skill(entry.uri) == entry

        await check(f"skill {entry.uri}", same)
        for file in entry.resources:

            async def proved(file: Any = file) -> bool:
                (content,) = await client.read_resource(file.uri)
                text = getattr(content, "text", None)
                raw = base64.b64decode(content.blob) if text is None else text.encode()
                return len(raw) == file.size and "sha256:" + hashlib.sha256(raw).hexdigest() == file.digest

            await check(f"file {entry.uri} {file.uri}", proved)
    if entries:
        await check("unknown", unknown)


async def ask_tools(client: Any) -> None:
    """The tools: list them, and load, read and unload every skill with them."""
    tools: list[Any] = []
    skills: list[Any] = []

    async def call(name: str, **arguments: Any) -> Any:
        return await client.call_tool(name, arguments, raise_on_error=False)

    async def listing() -> bool:
        tools.extend(await client.list_tools())
        return True

    async def every() -> bool:
        skills.extend((await call("skills_list", limit=200)).structured_content["skills"])
        return True

    async def unknown() -> bool:
        answer = await call("skills_read", path="SKILL.md", session="nobody")
        return answer.is_error and "skills_load" in answer.content[0].text

    await check("tools/list", listing)
    for tool in tools:

        async def described(tool: Any = tool) -> bool:
            return bool(tool.title and tool.description)

        await check(f"tool {tool.name}", described)
    await check("skills_list", every)
    for skill in skills:

        async def used(skill: Any = skill) -> bool:
            receipt = (await call("skills_load", names=[skill["name"]])).structured_content
            (loaded,), session = receipt["active_skills"], receipt["session"]
            read = await call("skills_read", path="SKILL.md", session=session)
            left = await call("skills_unload", all=True, session=session)
            right = not read.is_error and re.match("\ufeff?---\r?\n", read.content[0].text) is not None
            return right and loaded["location"] == skill["location"] and not left.structured_content["active_skills"]

        await check(f"use {skill['name']}", used)
    await check("unknown session", unknown)


async def ask_prompts(client: Any) -> None:
    """The prompts: list them, get each, and complete an argument."""
    prompts: list[Any] = []

    async def listing() -> bool:
        prompts.extend(await client.list_prompts())
        return True

    async def complete() -> bool:
        reference = PromptReference(type="ref/prompt", name="meeting-notes")
        completion = await client.complete(reference, {"name": "audience", "value": "every"})
        return completion.values == ["everybody who took part"]

    await check("prompts/list", listing)
    for prompt in prompts:

        async def got(prompt: Any = prompt) -> bool:
            given = {each.name: "this" for each in prompt.arguments or () if each.required}
            return "<skill name=" in (await client.get_prompt(prompt.name, given)).messages[0].content.text

        await check(f"prompt {prompt.name}", got)
    if any(prompt.name == "meeting-notes" for prompt in prompts):
        await check("completion/complete", complete)


async def main(version: str, target: dict[str, Any]) -> None:
    where = target.get("url") or StdioTransport(target["command"], target["args"], keep_alive=False)
    mode = "legacy" if version == "2025-11-25" else "auto"
    async with Client(where, mode=mode, extensions=[SkillsClientExtension()]) as client:
        await ask(client, version)
        await ask_tools(client)
        await ask_prompts(client)
    print(json.dumps(_CHECKS))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
