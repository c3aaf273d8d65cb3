"""The library for ACP agents written with the Python SDK: `AcpSkills` and the example agent."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

from mcp_skills_server import AcpSkills, Registry
from mcp_skills_server.dialects import acp as dialect
from wire import DEADLINE, ROOT, write_skill

from .real_client import RealClient

pytestmark = pytest.mark.anyio
EXAMPLE = ROOT / "examples" / "acp_agent.py"


@pytest.mark.requirement("X-31", "X-34", "ACPX-4")
async def test_example_agent_announces_skills_after_the_response_and_on_change(tmp_path: Path) -> None:
    import acp

    write_skill(tmp_path / "one", body="# Do one\n")
    client = RealClient()
    async with client.spawn(sys.executable, str(EXAMPLE), str(tmp_path)) as (agent, process):
        opted_in = acp.schema.ClientCapabilities(field_meta={dialect.META_KEY: {dialect.NOTIFICATION: {}}})
        result = await agent.initialize(protocol_version=1, client_capabilities=opted_in)
        assert result.agent_capabilities.field_meta == dialect.capability()
        session = await agent.new_session(cwd="/", mcp_servers=[])
        update = await client.next_update()
        assert [each.name for each in update.available_commands] == ["plan"]
        assert update.field_meta["availableSkills"] == ["one"]
        # The responses to both requests precede the update.
        assert ["result" in await client.next_message() for _ in range(3)] == [True, True, False]
        assert await client.next_extension() == (session.session_id, ["one"])
        write_skill(tmp_path / "two")
        assert (await client.next_update()).field_meta["availableSkills"] == ["one", "two"]
        await agent.prompt(session_id=session.session_id, prompt=[acp.text_block("one")])
        assert "Do one" in (await client.next_update()).content.text
    assert process.returncode == 0


def test_updates_are_returned_in_the_form_that_the_client_accepts(tmp_path: Path) -> None:
    from acp.schema import AvailableCommand

    plan = AvailableCommand(name="plan", description="Makes a plan.", field_meta={"x": 1})
    write_skill(tmp_path / "one")
    registry = Registry([tmp_path])
    with AcpSkills(registry) as skills:
        registry.load()  # before any session
        assert skills.capability() == dialect.capability()
        ((method, params),) = skills.updates("s", [plan, {"name": "x", "description": "X."}])
        assert method == "session/update"
        assert params["update"]["_meta"]["availableSkills"] == ["one"]
        first, second = params["update"]["availableCommands"]
        assert first == {"name": "plan", "description": "Makes a plan.", "_meta": {"x": 1}}
        assert second["name"] == "x"
        nested = {"_meta": {dialect.META_KEY: {dialect.NESTED: {}}}}
        for capabilities, version, kind in (
            ({}, 1, "available_commands_update"),
            (nested, 1, "available_skills_update"),
            (None, 2, "available_skills_update"),
        ):
            skills.initialized(capabilities, version=version)
            assert skills.updates("s")[0][1]["update"]["sessionUpdate"] == kind


class Connection:
    def __init__(self) -> None:
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self.fails = False

    async def session_update(self, session_id: str, update: Any) -> None:
        if self.fails:
            raise ConnectionError("gone")
        await self.sent.put((session_id, update.field_meta["availableSkills"]))

    async def ext_notification(self, *_: Any) -> None:
        raise AssertionError("the client did not opt in")

    async def next(self) -> Any:
        return await asyncio.wait_for(self.sent.get(), DEADLINE)


async def test_each_open_session_is_updated_once_per_change(tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    registry = Registry([tmp_path])
    connection = Connection()
    with AcpSkills(registry) as skills:
        skills.announce(connection, "a")
        registry.load()
        for _ in range(2):  # repeated when the agent's own commands change
            assert await connection.next() == ("a", ["one"])
            skills.announce(connection, "a")
        assert await connection.next() == ("a", ["one"])
        skills.announce(connection, "b")
        assert await connection.next() == ("b", ["one"])
        write_skill(tmp_path / "one", body="# Only the body\n")
        registry.refresh()
        write_skill(tmp_path / "two")
        registry.refresh()
        for session_id in ("a", "b"):
            assert await connection.next() == (session_id, ["one", "two"])
        skills.forget("a")
        write_skill(tmp_path / "three")
        registry.refresh()
        assert await connection.next() == ("b", ["one", "three", "two"])
        assert connection.sent.empty()


async def test_closed_library_sends_no_update_and_keeps_no_task(tmp_path: Path) -> None:
    registry = Registry([tmp_path])
    connection, before = Connection(), asyncio.all_tasks()
    with AcpSkills(registry) as skills:
        skills.announce(connection, "a")
        registry.load()
        assert await connection.next() == ("a", [])
        write_skill(tmp_path / "one")
        registry.refresh()  # its update would be sent at the next await
    with AcpSkills(registry) as others:  # a late update of `skills` would precede theirs
        others.announce(connection, "b")
        assert await connection.next() == ("b", ["one"])
        write_skill(tmp_path / "two")
        registry.refresh()
        assert await connection.next() == ("b", ["one", "two"])
        connection.sent = asyncio.Queue(maxsize=1)
        connection.sent.put_nowait("full")
        others.announce(connection, "c")
        await asyncio.sleep(0)
    alive = ref(skills)
    del skills
    await asyncio.sleep(0)
    assert alive() is None and asyncio.all_tasks() == before


async def test_lost_connection_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good, bad = Connection(), Connection()
    bad.fails = True
    with AcpSkills([tmp_path]) as skills:
        skills.announce(bad, "a")
        skills.announce(good, "b")
        assert await good.next() == ("b", [])
    assert "session a: gone" in caplog.text
