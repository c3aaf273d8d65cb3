"""The client of the SDK with a server process, as a host uses it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError

from server.sdk import request
from server.test_tools import NAMES
from wire import COMMAND, DEADLINE, FIXTURES

pytestmark = pytest.mark.anyio


async def test_sdk_client_uses_skills_resources_tools_and_prompts(mode: Any) -> None:
    server = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], "serve", str(FIXTURES)])
    async with asyncio.timeout(DEADLINE), Client(stdio_client(server), mode=mode) as client:
        assert client.protocol_version == {"legacy": "2025-11-25", "auto": "2026-07-28"}[mode]
        assert client.server_info is not None and client.server_info.name == "mcp-skills-server"
        skills = (await request(client, "skills/list"))["skills"]
        assert len(skills) == len(list(FIXTURES.rglob("SKILL.md")))
        got = await request(client, "skills/get", name="meeting-notes", arguments={"topic": "tea"})
        assert "tea" in got["instructions"]
        for each in skills[0]["resources"]:
            assert (await client.read_resource(each["uri"])).contents[0].uri == each["uri"]
        with pytest.raises(MCPError) as caught:
            await client.read_resource("skill://nothing/SKILL.md")
        assert caught.value.error.code == {"legacy": -32002, "auto": -32602}[mode]
        assert [tool.name for tool in (await client.list_tools()).tools] == NAMES
        found: Any = await client.call_tool("skills_search", {"query": "how do I word a commit"})
        assert found.structured_content["skills"][0]["name"] == "commit-messages"
        loaded: Any = await client.call_tool("skills_load", {"names": ["sql-migrations"]})
        session = {"session": loaded.structured_content["session"]}
        for path in loaded.structured_content["active_skills"][0]["files"]:
            read = await client.call_tool("skills_read", {"path": path, **session})
            assert not read.is_error and read.content
        assert not (await client.call_tool("skills_unload", {"all": True, **session})).is_error
        assert "meeting-notes" in [prompt.name for prompt in (await client.list_prompts()).prompts]
        prompt: Any = await client.get_prompt("meeting-notes", {"topic": "tea"})
        assert "tea" in prompt.messages[0].content.text
