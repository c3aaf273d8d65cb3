"""Check a server with the client of this package; write the checks to stdout in the form of checks.json.

Run it with the interpreter that has this package. Arguments: protocol version, target as JSON ({url} or
{command, args}).
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio
from mcp.client.stdio import StdioServerParameters

from mcp_skills_server.client import SkillsClient


async def main(version: str, target: dict[str, Any]) -> None:
    """List the skills, get each, and read each of its files."""
    checks: list[dict[str, str]] = []

    def note(identifier: str, message: str = "") -> None:
        checks.append({"id": identifier, "status": "FAILURE" if message else "SUCCESS", "errorMessage": message[:400]})

    server = target.get("url") or StdioServerParameters(command=target["command"], args=target["args"])
    mode = "legacy" if version == "2025-11-25" else "auto"
    async with SkillsClient.connect(server, mode=mode, unproved=True) as client:
        skills = await client.list()
        note("list", "; ".join(client.refused))
        for skill in skills:
            same = await client.get(skill.uri) == skill
            note(f"skill {skill.uri}", "" if same else "skills/get differs from skills/list")
            for path in skill.files or ():
                try:
                    await client.read(skill, path)
                    note(f"file {skill.uri} {path}")
                except Exception as error:
                    note(f"file {skill.uri} {path}", f"{type(error).__name__}: {error}")
    print(json.dumps(checks))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], json.loads(sys.argv[2]))
