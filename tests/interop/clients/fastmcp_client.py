"""Drives the FastMCP client against a server and writes what it saw to stdout, in the form of checks.json.

Run by the python of a virtual environment that has it. Arguments: protocol version, target as JSON ({url} or
{command, args}).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fastmcp.skills.client import SkillsClientExtension

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


async def main(version: str, target: dict[str, Any]) -> None:
    """Connect and ask."""
    where = target.get("url") or StdioTransport(target["command"], target["args"], keep_alive=False)
    mode = "legacy" if version == "2025-11-25" else "auto"
    async with Client(where, mode=mode, extensions=[SkillsClientExtension()]) as client:
        await ask(client, version)
    print(json.dumps(_CHECKS))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
