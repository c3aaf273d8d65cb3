"""The ACP proxy between a client and an agent that are written with the Python SDK."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dialects.build import AVAILABLE_SKILL
from mcp_skills_server.dialects import acp as dialect
from wire import COMMAND, DEADLINE, write_skill

from .real_client import RealClient

pytestmark = pytest.mark.anyio
AGENT = [sys.executable, str(Path(__file__).parent / "real_agent.py")]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_skill(tmp_path / "one", description="Does one.")
    write_skill(tmp_path / "two", description="Does two.")
    return tmp_path


@asynccontextmanager
async def connected(root: Path) -> AsyncGenerator[tuple[RealClient, Any]]:
    """Yield a client and the agent behind the proxy, after the handshake."""
    import acp

    client = RealClient()
    command = [*COMMAND, "acp", "--grace", str(DEADLINE), str(root), "--", *AGENT]
    async with client.spawn(*command) as (agent, process):
        result = await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
        assert result.protocol_version == acp.PROTOCOL_VERSION
        await client.next_message()
        yield client, agent
    assert process.returncode == 0


def skill_names(update: Any) -> list[str]:
    assert update.session_update == "available_commands_update"
    details = update.field_meta[dialect.DETAILS]
    assert [each["name"] for each in details] == update.field_meta["availableSkills"]
    assert all(map(AVAILABLE_SKILL.is_valid, details))
    return update.field_meta["availableSkills"]


@pytest.mark.requirement("X-31", "X-34", "ACP-8", "ACP-13", "ACPX-1", "ACPX-2")
async def test_update_of_each_session_keeps_the_agents_own_commands(root: Path) -> None:
    import acp

    async with connected(root) as (client, agent):
        first = await agent.new_session(cwd="/", mcp_servers=[])
        assert skill_names(await client.next_update()) == ["one", "two"]
        await agent.load_session(cwd="/", session_id="old", mcp_servers=[])
        own, merged = await client.next_update(), await client.next_update()
        assert own.field_meta is None
        assert skill_names(merged) == ["one", "two"]
        for update in (own, merged):
            assert [each.name for each in update.available_commands] == ["create_plan"]
        await agent.prompt(session_id=first.session_id, prompt=[acp.text_block("commands")])
        assert (await client.next_update()).field_meta is None
        assert skill_names(await client.next_update()) == ["one", "two"]
        write_skill(root / "one", description="Does one better.")
        updates = [await asyncio.wait_for(client.updates.get(), DEADLINE) for _ in range(2)]
        assert [session_id for session_id, _ in updates] == [first.session_id, "old"]
        for _, update in updates:
            assert [each.name for each in update.available_commands] == ["create_plan"]
            assert update.field_meta[dialect.DETAILS][0]["description"] == "Does one better."
        other = acp.schema.McpServerStdio(name="skills", command="/bin/false", args=[], env=[])
        third = await agent.new_session(cwd="/", mcp_servers=[other])
        await client.next_update()
        await agent.prompt(session_id=third.session_id, prompt=[acp.text_block("skills")])
        servers, skills = json.loads((await client.next_update()).content.text)
        assert (servers, skills) == (["skills", "skills-2"], ["one", "two"])  # of the added server
