"""Memory cgroups of runs: with the kernel's, where this process may have some, and with folders that stand for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from catalog.forest import load_registry, write_files
from mcp_skills_server.runtime.scripts import cgroups
from mcp_skills_server.runtime.scripts.runner import RunRequest, Scripts
from mcp_skills_server.runtime.scripts.settings import ScriptSettings
from runtime.scripts import zoo

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cgroups of the Linux kernel")
MEMORY = 64 << 20


def own_cgroup(mount: Path, *pids: int, controllers: str = "cpu memory") -> Path:
    """Write the cgroup of this process below `mount`, with these processes."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = mount.joinpath(*(line.removeprefix("0::/") for line in lines if line.startswith("0::/")))
    write_files(own, {"cgroup.controllers": f"{controllers}\n", "cgroup.procs": "\n".join(map(str, pids))})
    return own


def test_lone_process_moves_to_a_leaf(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        own = own_cgroup(tmp_path, os.getpid(), child.pid)
        assert cgroups.delegated(str(tmp_path)) == own
        child.communicate(b"\n")
    assert (own / "cgroup.subtree_control").read_text() == "+memory"
    moved = (own / "mcp-skills-server" / "cgroup.procs").read_text()
    assert moved == str(child.pid), "the kernel adds each that is written"


def test_processes_of_others_stay(tmp_path: Path) -> None:
    own = own_cgroup(tmp_path, os.getpid(), os.getppid())
    cgroups.delegated(str(tmp_path))  # the kernel then refuses limits
    assert not (own / "mcp-skills-server").exists()


def test_cgroup_without_memory_controller_stays_unchanged(tmp_path: Path) -> None:
    own = own_cgroup(tmp_path, os.getpid(), controllers="cpu pids")
    assert cgroups.delegated(str(tmp_path)) is None
    assert cgroups.delegated(str(tmp_path / "no" / "such")) is None
    assert {*os.listdir(own)} == {"cgroup.controllers", "cgroup.procs"}


@pytest.mark.anyio
@pytest.mark.needs_program("bwrap")
async def test_run_joins_its_cgroup_and_reports_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "cgroup"
    limits: list[int] = []

    @asynccontextmanager
    async def limited(top: Path, memory_bytes: int) -> AsyncGenerator[Path]:
        assert top == tmp_path
        limits.append(memory_bytes)
        write_files(made, {"memory.events": "oom 1\noom_kill 0\noom_group_kill 0\n"})
        yield made

    monkeypatch.setattr(cgroups, "delegated", lambda: tmp_path)
    monkeypatch.setattr(cgroups, "limited", limited)
    registry = load_registry(zoo.write(tmp_path / "skills"))
    runner = Scripts(registry, ScriptSettings(memory_bytes=MEMORY))
    skill = registry.snapshot.skills["zoo"]
    outcome = await runner.run(RunRequest(skill=skill, path="scripts/three.sh"), runner.workspace())
    assert (outcome.exit_code, (made / "cgroup.procs").read_text()) == (3, "0")
    monkeypatch.setattr(cgroups, "is_exceeded", lambda _: True)
    outcome = await runner.run(RunRequest(skill=skill, path="scripts/three.sh"), runner.workspace())
    assert outcome.exit_code is None
    assert f"ended because its processes took more than {limits[0]:,} bytes of memory" in outcome.stderr
    assert limits == [MEMORY + MEMORY // 8] * 2
    runner.close()


QUEUE = """\
import socket
server, held = socket.socket(socket.AF_UNIX), 0
server.bind("\\0queue")
server.listen(4096)
for _ in range(1000):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(server.getsockname())
        client.setblocking(False)
        try:
            while True: held += client.send(bytes(65536))
        except BlockingIOError:
            print(held, flush=True)
"""


@pytest.mark.anyio
@pytest.mark.needs_program("bwrap")
async def test_kernel_limits_memory_that_is_not_sampled(tmp_path: Path) -> None:
    """With the network, sockets are those of the machine, and only a cgroup tells whose they are."""
    top = cgroups.delegated()
    if top is None:
        pytest.skip("this process may not divide its cgroup")
    skills = zoo.write(tmp_path / "skills")
    write_files(skills, {"zoo/scripts/queue.py": QUEUE})
    registry = load_registry(skills)
    runner = Scripts(registry, ScriptSettings(memory_bytes=MEMORY, network=True))
    skill = registry.snapshot.skills["zoo"]
    outcome = await runner.run(RunRequest(skill=skill, path="scripts/queue.py", timeout_s=20), runner.workspace())
    # At its limit the kernel may first reclaim and read the program's pages again and again.
    assert outcome.exit_code is None
    assert int(outcome.stdout.split()[-1]) < MEMORY + MEMORY // 8
    assert not [each for each in os.listdir(top) if each.startswith("run-")]
    runner.close()
