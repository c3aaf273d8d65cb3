"""An ACP agent written with the Python SDK, which uses the MCP servers of its sessions."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import acp
from acp.schema import AvailableCommand, AvailableCommandsUpdate
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client


class RealAgent:
    """Agent that sends its own commands for the prompt `commands`, else its servers and skills."""

    def __init__(self) -> None:
        self.servers: dict[str, list[Any]] = {}

    def on_connect(self, conn: Any) -> None:
        self.connection = conn

    async def initialize(self, protocol_version: int, **_: Any) -> acp.InitializeResponse:
        return acp.InitializeResponse(protocol_version=protocol_version)

    async def new_session(self, mcp_servers: Any = None, **_: Any) -> acp.NewSessionResponse:
        session_id = f"session-{len(self.servers)}"
        self.servers[session_id] = mcp_servers
        return acp.NewSessionResponse(session_id=session_id)

    async def load_session(self, session_id: str, mcp_servers: Any = None, **_: Any) -> Any:
        self.servers[session_id] = mcp_servers
        await self.send_commands(session_id)
        return acp.LoadSessionResponse()

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> acp.PromptResponse:
        if prompt[0].text == "commands":
            await self.send_commands(session_id)
        else:
            servers = [server.name for server in self.servers[session_id]]
            text = json.dumps([servers, await self.list_skills(session_id)])
            await self.connection.session_update(session_id, acp.update_agent_message_text(text))
        return acp.PromptResponse(stop_reason="end_turn")

    async def send_commands(self, session_id: str) -> None:
        command = AvailableCommand(name="create_plan", description="Creates a plan.")
        update = AvailableCommandsUpdate(session_update="available_commands_update", available_commands=[command])
        await self.connection.session_update(session_id, update)

    async def list_skills(self, session_id: str) -> list[str]:
        """Return the skill names of the session's last MCP server."""
        server = self.servers[session_id][-1]
        parameters = StdioServerParameters(command=server.command, args=server.args)
        async with Client(stdio_client(parameters)) as client:
            listed = await client.call_tool("skills_list", {})
        return [each["name"] for each in (listed.structured_content or {})["skills"]]


if __name__ == "__main__":
    asyncio.run(acp.run_agent(RealAgent()))  # pyright: ignore[reportArgumentType]
