"""Large files are read in turns, by whichever way a client asks for them."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import from_thread, wait_all_tasks_blocked

from catalog.forest import loaded
from mcp_skills_server import Registry, Runtime
from mcp_skills_server.catalog.views import retry_when_stale
from mcp_skills_server.model import SkillFile
from mcp_skills_server.rpc.methods import Methods
from mcp_skills_server.server import resources
from mcp_skills_server.server.requests import Caller, Settings
from wire import DEADLINE, write_skill

pytestmark = pytest.mark.anyio
LARGE, SMALL = 2 << 20, 300 << 10
"""Bytes: both are read off the event loop, and the second takes no turn."""
ASKED = 6
Read = Callable[[str], Awaitable[Any]]


@pytest.fixture(params=[LARGE, SMALL], ids=["large", "small"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Registry:
    """A skill `a` with one file `data.txt`."""
    folder = write_skill(tmp_path / "a")
    (folder / "data.txt").write_text("x" * 1023 + "\n" + ("y" * 1023 + "\n") * (request.param // 1024 - 1))
    return loaded(tmp_path)


def over_mcp(registry: Registry) -> Read:
    """`resources/read`, of the client of this name."""
    params = {"uri": "skill://a/data.txt"}
    return lambda owner: retry_when_stale(
        registry, lambda view: resources.read_resource(view, Settings(), Caller(quota_owner=owner), params)
    )


def by_tools(registry: Registry) -> Read:
    """`skills_read`, in the session of this name."""
    runtime = Runtime(registry)
    sessions: dict[str, Any] = {}

    async def read(owner: str) -> Any:
        if owner not in sessions:
            sessions[owner] = runtime.session()
            assert not (await sessions[owner].call("skills_load", {"names": ["a"]})).get("isError")
        return await sessions[owner].call("skills_read", {"path": "data.txt", "max_lines": 1})

    return read


def over_rpc(registry: Registry) -> Read:
    """`read_skill_file`, of the client of this name."""
    methods, params = Methods(Runtime(registry)), {"name": "a", "path": "data.txt"}
    return lambda owner: methods.call("read_skill_file", params, owner)


@pytest.mark.parametrize("way", [over_mcp, by_tools, over_rpc])
async def test_large_files_are_read_in_turns(
    way: Callable[[Registry], Read], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = registry.snapshot.skills["a"].files["data.txt"].size >= LARGE
    read, real, lock = way(registry), registry.read, threading.Lock()
    now, most, together, loop = 0, 0, threading.Barrier(3), anyio.lowlevel.current_token()

    def counted(file: SkillFile) -> bytes:
        nonlocal now, most
        if not file.location.endswith("data.txt"):
            return real(file)
        with lock:
            now += 1
            most = max(most, now)
        if large:
            from_thread.run(wait_all_tasks_blocked, token=loop)  # whoever may read too is reading by then
        else:
            together.wait(DEADLINE)
        try:
            return real(file)
        finally:
            with lock:
                now -= 1

    for owner in "abc":
        await read(owner)  # what is done once is done
    monkeypatch.setattr(registry, "read", counted)
    with anyio.fail_after(DEADLINE):
        for owners, expected in (("a" * ASKED, 1), ("abc" * 2, 2)):
            most = 0
            async with anyio.create_task_group() as tasks:
                for owner in owners:
                    tasks.start_soon(read, owner)
            assert most == expected if large else most > 2
