"""The library for agents written with the Python SDK: the example as a real agent, and what it hands out by itself."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any
from weakref import ref

import acp
import pytest
from acp.schema import AvailableCommand, ClientCapabilities

from mcp_skills_server import AcpSkills, Registry
from mcp_skills_server.dialects import acp as dialect
from wire import DEADLINE, ROOT, write_skill

from .real_client import RealClient

pytestmark = pytest.mark.anyio
EXAMPLE = ROOT / "examples" / "acp_agent.py"
COMMAND = AvailableCommand(name="plan", description="Makes a plan.", field_meta={"x": 1})


@pytest.mark.requirement("X-31", "X-34", "ACPX-4")
async def test_the_example_tells_its_skills_behind_the_answer_and_on_each_change(tmp_path: Path) -> None:
    write_skill(tmp_path / "one", body="# Do one\n")
    client: Any = RealClient()
    # Of its own accord the SDK waits 2 s for the end, and then ends the process.
    how = {"stderr": None, "shutdown_timeout": DEADLINE}
    words = sys.executable, str(EXAMPLE), str(tmp_path)
    spawned = acp.spawn_agent_process(client, *words, observers=[client.observe], transport_kwargs=how)
    async with spawned as (agent, process):
        announced = ClientCapabilities(field_meta={dialect.META_KEY: {dialect.NOTIFICATION: {}}})
        greeted = await agent.initialize(protocol_version=1, client_capabilities=announced)
        assert greeted.agent_capabilities is not None and greeted.agent_capabilities.field_meta == dialect.capability()
        session = await agent.new_session(cwd="/", mcp_servers=[])
        update = await client.update()
        assert [each.name for each in update.available_commands] == ["plan"]
        assert update.field_meta["availableSkills"] == ["one"]
        # The answers to both requests came before the update.
        assert ["result" in await client.message() for _ in range(3)] == [True, True, False]
        assert await client.extension() == (session.session_id, ["one"])
        write_skill(tmp_path / "two")
        assert (await client.update()).field_meta["availableSkills"] == ["one", "two"]
        await agent.prompt(session_id=session.session_id, prompt=[acp.text_block("one")])
        assert "Do one" in (await client.update()).content.text
    assert process.returncode == 0


def test_updates_are_there_for_a_writer_of_one_s_own(tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    registry = Registry([tmp_path])
    with AcpSkills(registry) as skills:
        registry.load()  # before any session
        assert skills.capability() == dialect.capability()
        ((method, params),) = skills.updates("s", [COMMAND, {"name": "x", "description": "X."}])
        assert method == "session/update" and params["update"]["_meta"]["availableSkills"] == ["one"]
        first, second = params["update"]["availableCommands"]
        assert first == {"name": "plan", "description": "Makes a plan.", "_meta": {"x": 1}} and second["name"] == "x"
        skills.initialized({})
        assert skills.updates("s")[0][1]["update"]["sessionUpdate"] == "available_commands_update"
        skills.initialized({"_meta": {dialect.META_KEY: {dialect.NESTED: {}}}})
        assert skills.updates("s")[0][1]["update"]["sessionUpdate"] == "available_skills_update"
        skills.initialized(None, version=2)
        assert skills.updates("s")[0][1]["update"]["sessionUpdate"] == "available_skills_update"


class Connection:
    def __init__(self) -> None:
        self.told: asyncio.Queue[Any] = asyncio.Queue()
        self.fails = False

    async def session_update(self, session_id: str, update: Any) -> None:
        if self.fails:
            raise ConnectionError("gone")
        await self.told.put((session_id, update.field_meta["availableSkills"]))

    async def ext_notification(self, *_: Any) -> None:
        raise AssertionError("nobody asked for it")

    async def next(self) -> Any:
        return await asyncio.wait_for(self.told.get(), DEADLINE)


async def test_every_session_is_told_once_a_change_and_none_that_has_ended(tmp_path: Path) -> None:
    write_skill(tmp_path / "one")
    registry = Registry([tmp_path])
    connection = Connection()
    with AcpSkills(registry) as skills:
        skills.announce(connection, "a")
        registry.load()
        for _ in range(2):  # again when the agent's own commands change
            assert await connection.next() == ("a", ["one"])
            skills.announce(connection, "a")
        assert await connection.next() == ("a", ["one"])
        skills.announce(connection, "b")
        assert await connection.next() == ("b", ["one"])
        write_skill(tmp_path / "one", body="# Only the body\n")
        registry.refresh()
        write_skill(tmp_path / "two")
        registry.refresh()
        assert [await connection.next() for _ in range(2)] == [("a", ["one", "two"]), ("b", ["one", "two"])]
        skills.forget("a")
        write_skill(tmp_path / "three")
        registry.refresh()
        assert await connection.next() == ("b", ["one", "three", "two"])
        assert connection.told.empty()


async def test_after_its_end_nobody_is_told(tmp_path: Path) -> None:
    registry = Registry([tmp_path])
    connection, before = Connection(), asyncio.all_tasks()
    with AcpSkills(registry) as skills:
        skills.announce(connection, "a")
        registry.load()
        assert await connection.next() == ("a", [])
        write_skill(tmp_path / "one")
        registry.refresh()  # of which it would tell as soon as this test waits
    with AcpSkills(registry) as others:  # what these tell comes behind what those would tell, which came first
        others.announce(connection, "b")
        assert await connection.next() == ("b", ["one"])
        write_skill(tmp_path / "two")
        registry.refresh()
        assert await connection.next() == ("b", ["one", "two"])
        connection.told = asyncio.Queue(maxsize=1)
        connection.told.put_nowait("full")
        others.announce(connection, "c")
        await asyncio.sleep(0)
    alive = ref(skills)
    del skills
    await asyncio.sleep(0)
    assert alive() is None and asyncio.all_tasks() == before


async def test_a_lost_connection_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good, bad = Connection(), Connection()
    bad.fails = True
    with AcpSkills([tmp_path]) as skills:
        skills.announce(bad, "a")
        skills.announce(good, "b")
        assert await good.next() == ("b", [])
    assert "session a: gone" in caplog.text
