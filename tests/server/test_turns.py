"""Fair scheduling of reads of large files by owner, over MCP, by tools, and over `/rpc`."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import from_thread, wait_all_tasks_blocked

from catalog.forest import load_registry
from mcp_skills_server import Registry, Runtime
from mcp_skills_server.access.quota import Owner, Requester
from mcp_skills_server.catalog.views import retry_when_stale
from mcp_skills_server.model import SkillFile
from mcp_skills_server.rpc.methods import Methods
from mcp_skills_server.server import resources
from mcp_skills_server.server.requests import Caller, Settings
from wire import DEADLINE, write_skill

pytestmark = pytest.mark.anyio
Read = Callable[[str], Awaitable[Any]]
"""Reads the large file for an owner."""


def over_mcp(registry: Registry) -> Read:
    params = {"uri": "skill://a/data.txt"}
    return lambda owner: retry_when_stale(
        registry, lambda view: resources.read_resource(view, Settings(), Caller(quota_owner=Owner(owner)), params)
    )


def by_tools(registry: Registry) -> Read:
    runtime = Runtime(registry)
    sessions: dict[str, Any] = {}

    async def read(owner: str) -> Any:
        if owner not in sessions:
            sessions[owner] = runtime.session()
            assert not (await sessions[owner].call("skills_load", {"names": ["a"]})).get("isError")
        return await sessions[owner].call("skills_read", {"path": "data.txt", "max_lines": 1})

    return read


def over_rpc(registry: Registry) -> Read:
    methods, params = Methods(Runtime(registry)), {"name": "a", "path": "data.txt"}
    return lambda owner: methods.call("read_skill_file", params, Requester(owner=Owner(owner)))


@pytest.mark.parametrize("reader", [over_mcp, by_tools, over_rpc])
async def test_large_files_are_read_one_at_a_time_per_owner(
    reader: Callable[[Registry], Read], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(tmp_path / "a", data_txt="x\n" * (1 << 20))
    registry = load_registry(tmp_path)
    read, read_file, started = reader(registry), registry.read, threading.Condition()
    running, most, expected, loop = 0, 0, 1, anyio.lowlevel.current_token()

    def count_and_read(file: SkillFile) -> bytes:
        nonlocal running, most
        if not file.location.endswith("data.txt"):
            return read_file(file)
        with started:
            running += 1
            most = max(most, running)
            started.notify_all()
            started.wait_for(lambda: most >= expected, DEADLINE / 2)
        from_thread.run(wait_all_tasks_blocked, token=loop)  # lets other reads start
        try:
            return read_file(file)
        finally:
            with started:
                running -= 1

    for owner in "abc":
        await read(owner)  # opens the owner's session
    monkeypatch.setattr(registry, "read", count_and_read)
    with anyio.fail_after(DEADLINE):
        for owners, expected in (("aaaaaa", 1), ("abcabc", 2)):
            most = 0
            async with anyio.create_task_group() as tasks:
                for owner in owners:
                    tasks.start_soon(read, owner)
            assert most == expected
