"""A real client and a real agent, both written with the Python SDK of ACP, on both sides of a real proxy."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import acp
import pytest
from acp.schema import ClientCapabilities

from mcp_skills_server.dialects import acp as dialect
from wire import COMMAND, DEADLINE, write_skill

from .real_client import RealClient

pytestmark = pytest.mark.anyio
AGENT = [sys.executable, str(Path(__file__).parent / "real_agent.py")]
OTHER = acp.schema.McpServerStdio(name="skills", command="/bin/false", args=[], env=[])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_skill(tmp_path / "one", description="Does one.")
    write_skill(tmp_path / "two", description="Does two.")
    return tmp_path


@asynccontextmanager
async def talking(root: Path, **announced: Any) -> AsyncGenerator[tuple[RealClient, Any]]:
    client: Any = RealClient()
    words = [*COMMAND, "acp", "--grace", str(DEADLINE), str(root), "--", *AGENT]
    # Of its own accord the SDK waits 2 s for the end of the process, as the proxy does for that of the agent.
    how = {"stderr": None, "shutdown_timeout": 2 * DEADLINE}
    spawned = acp.spawn_agent_process(client, *words, observers=[client.observe], transport_kwargs=how)
    async with spawned as (agent, process):
        capabilities = ClientCapabilities(field_meta={dialect.META_KEY: announced} if announced else None)
        greeted = await agent.initialize(protocol_version=acp.PROTOCOL_VERSION, client_capabilities=capabilities)
        assert greeted.protocol_version == acp.PROTOCOL_VERSION
        await client.message()
        yield client, agent
    assert process.returncode == 0


def names(update: Any) -> list[str]:
    assert update.session_update == "available_commands_update"
    details = update.field_meta[dialect.DETAILS]
    assert [each["name"] for each in details] == update.field_meta["availableSkills"]
    assert all(dialect.why_invalid(each) is None for each in details)
    return update.field_meta["availableSkills"]


@pytest.mark.requirement("X-31", "X-34", "ACP-8", "ACP-13", "ACPX-1", "ACPX-2")
async def test_today_s_client_is_told_after_the_answer_and_on_each_change(root: Path) -> None:
    async with talking(root, extensionNotification={}) as (client, agent):
        session = await agent.new_session(cwd="/", mcp_servers=[])
        assert "result" in await client.message()
        assert names(await client.update()) == ["one", "two"]
        assert await client.extension() == (session.session_id, ["one", "two"])
        write_skill(root / "three")
        assert names(await client.update()) == ["one", "three", "two"]
        assert await client.extension() == (session.session_id, ["one", "three", "two"])


@pytest.mark.requirement("X-34")
async def test_every_session_is_told_and_the_agent_s_own_commands_stay(root: Path) -> None:
    async with talking(root) as (client, agent):
        first = await agent.new_session(cwd="/", mcp_servers=[])
        assert names(await client.update()) == ["one", "two"]
        await agent.load_session(cwd="/", session_id="old", mcp_servers=[])
        own = await client.update()
        assert [each.name for each in own.available_commands] == ["create_plan"] and own.field_meta is None
        merged = await client.update()
        assert [each.name for each in merged.available_commands] == ["create_plan"] and names(merged) == ["one", "two"]
        await agent.prompt(session_id=first.session_id, prompt=[acp.text_block("commands")])
        assert (await client.update()).field_meta is None
        assert names(await client.update()) == ["one", "two"]
        write_skill(root / "one", description="Does one better.")
        seen = [await asyncio.wait_for(client.updates.get(), DEADLINE) for _ in range(2)]
        assert [session_id for session_id, _ in seen] == [first.session_id, "old"]
        for _, update in seen:
            assert [each.name for each in update.available_commands] == ["create_plan"]
            assert update.field_meta[dialect.DETAILS][0]["description"] == "Does one better."


@pytest.mark.requirement("X-32", "ACP-9", "ACP-10", "ACPX-4")
async def test_a_client_that_opted_in_gets_the_draft_s_own_form(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with talking(root, availableSkillsUpdate={}) as (client, agent):
        session = await agent.new_session(cwd="/", mcp_servers=[])
        await client.message()
        message = await client.message()
        assert message["method"] == "session/update" and message["params"]["sessionId"] == session.session_id
        update = message["params"]["update"]
        assert update["sessionUpdate"] == "available_skills_update"
        assert message["params"].keys() == {"sessionId", "update"}
        assert [each["name"] for each in update["availableSkills"]] == ["one", "two"]
        assert client.updates.empty()
    assert "validation error" in caplog.text  # this SDK itself knows no such form (ACPX-7): who opts in must


async def test_the_agent_starts_the_server_that_was_added_and_lists_the_skills(root: Path) -> None:
    async with talking(root) as (client, agent):
        session = await agent.new_session(cwd="/", mcp_servers=[OTHER])
        await client.update()
        await agent.prompt(session_id=session.session_id, prompt=[acp.text_block("skills")])
        servers, skills = json.loads((await client.update()).content.text)
        assert servers == ["skills", "skills-2"] and skills == ["one", "two"]
