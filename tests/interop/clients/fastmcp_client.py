"""Check a server with the FastMCP client; write the checks to stdout in the form of checks.json.

Run it with the interpreter of a virtual environment that has FastMCP. Arguments: protocol version, target as JSON
({url} or {command, args}).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import sys
from collections.abc import Awaitable
from typing import Any

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fastmcp.skills.client import SkillsClientExtension
from mcp_types import PromptReference

_CHECKS: list[dict[str, str]] = []


async def check(identifier: str, work: Awaitable[Any]) -> Any:
    """Record whether a result arrives and is not False; return it, or None."""
    result, message = None, ""
    try:
        result = await work
    except Exception as error:
        message = f"{type(error).__name__}: {error}"[:400]
    status = "FAILURE" if message or result is False else "SUCCESS"
    _CHECKS.append({"id": identifier, "status": status, "errorMessage": message})
    return result


async def is_version(client: Any, version: str) -> bool:
    return client.protocol_version == version


async def is_same(client: Any, entry: Any) -> bool:
    return await client.get_skill(entry.uri) == entry


async def is_verified(client: Any, file: Any) -> bool:
    (content,) = await client.read_resource(file.uri)
    text = getattr(content, "text", None)
    raw = base64.b64decode(content.blob) if text is None else text.encode()
    return len(raw) == file.size and "sha256:" + hashlib.sha256(raw).hexdigest() == file.digest


async def is_unknown(client: Any, uri: str) -> bool:
    try:
        await client.get_skill(uri)
    except Exception as error:
        return getattr(error, "code", None) == -32602 or "-32602" in repr(error) or "Unknown skill" in str(error)
    return False


async def check_skills(client: Any, version: str) -> None:
    """Use every method of skills that this client has."""
    await check("era", is_version(client, version))
    entries = await check("list", client.list_skills()) or []
    for entry in entries:
        await check(f"skill {entry.uri}", is_same(client, entry))
        for file in entry.resources:
            await check(f"file {entry.uri} {file.uri}", is_verified(client, file))
    if entries:
        await check("unknown", is_unknown(client, "skill://nobody/has/this/SKILL.md"))


async def call(client: Any, name: str, **arguments: Any) -> Any:
    return await client.call_tool(name, arguments, raise_on_error=False)


async def listed_skills(client: Any) -> Any:
    return (await call(client, "skills_list", limit=200)).structured_content["skills"]


async def is_described(tool: Any) -> bool:
    return bool(tool.title and tool.description)


async def is_usable(client: Any, skill: Any) -> bool:
    receipt = (await call(client, "skills_load", names=[skill["name"]])).structured_content
    (loaded,), session = receipt["active_skills"], receipt["session"]
    read = await call(client, "skills_read", path="SKILL.md", session=session)
    left = await call(client, "skills_unload", all=True, session=session)
    right = not read.is_error and re.match("\ufeff?---\r?\n", read.content[0].text) is not None
    return right and loaded["location"] == skill["location"] and not left.structured_content["active_skills"]


async def is_refused(client: Any, session: str) -> bool:
    answer = await call(client, "skills_read", path="SKILL.md", session=session)
    return answer.is_error and "skills_load" in answer.content[0].text


async def check_tools(client: Any) -> None:
    """List the tools, and load, read and unload every skill with them."""
    for tool in await check("tools/list", client.list_tools()) or []:
        await check(f"tool {tool.name}", is_described(tool))
    for skill in await check("skills_list", listed_skills(client)) or []:
        await check(f"use {skill['name']}", is_usable(client, skill))
    await check("unknown session", is_refused(client, "nobody"))


async def is_gettable(client: Any, prompt: Any) -> bool:
    given = {each.name: "this" for each in prompt.arguments or () if each.required}
    return "<skill name=" in (await client.get_prompt(prompt.name, given)).messages[0].content.text


async def is_completable(client: Any, name: str) -> bool:
    reference = PromptReference(type="ref/prompt", name=name)
    completion = await client.complete(reference, {"name": "audience", "value": "every"})
    return completion.values == ["everybody who took part"]


async def check_prompts(client: Any) -> None:
    """List the prompts, get each, and complete an argument."""
    prompts = await check("prompts/list", client.list_prompts()) or []
    for prompt in prompts:
        await check(f"prompt {prompt.name}", is_gettable(client, prompt))
    if any(prompt.name == "meeting-notes" for prompt in prompts):
        await check("completion/complete", is_completable(client, "meeting-notes"))


async def main(version: str, target: dict[str, Any]) -> None:
    where = target.get("url") or StdioTransport(target["command"], target["args"], keep_alive=False)
    mode = "legacy" if version == "2025-11-25" else "auto"
    async with Client(where, mode=mode, extensions=[SkillsClientExtension()]) as client:
        await check_skills(client, version)
        await check_tools(client)
        await check_prompts(client)
    print(json.dumps(_CHECKS))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
