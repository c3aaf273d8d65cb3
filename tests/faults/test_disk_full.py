"""A disk that is full: one line that says so, nothing half done, and all goes on once there is space.

The scenarios run as a program in a mount namespace of its own. Each fails when what was there is damaged, half of
something is left, or the person is not given one line that says why.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from catalog.watch.test_watcher_limits import NAMESPACE, can, confined
from publish.test_static import whole
from sources.publishers import Publisher, skill_md
from web.http_wire import http_serving
from wire import COMMAND, DEADLINE, serving, write_skill

pytestmark = pytest.mark.skipif(
    not can(*NAMESPACE, "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"),
    reason="no user namespace to mount a small disk in",
)
FULL = "No space left on device"
INDEX = "/.well-known/agent-skills/index.json"
LOCAL = ("--allow-private", "--allow-http")
NOISE = random.Random(1).randbytes(600_000)


def mount(root: Path, size: str, *more: str) -> Path:
    """A small disk; with "remount" the same one, of another size."""
    disk = root / "disk"
    disk.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join([*more, f"size={size}"]), "none", disk], check=True)
    return disk


def fill(disk: Path) -> Path:
    """Write until nothing more can be."""
    filler = disk / "filler"
    with suppress(OSError), open(filler, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)


def refused(*arguments: str | Path) -> str:
    """The one line of a command that ends with 2."""
    done = run(*arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and FULL in done.stderr, done
    return done.stderr


def kept(top: Path) -> dict[str, bytes]:
    """The skills and their records in a folder of `fetch`."""
    found = {path.relative_to(top).as_posix(): path for path in top.rglob("*") if path.is_file()}
    ours = (path for path in found if path != ".mcp-skills/lock" and "sources" not in path)
    return {path: found[path].read_bytes() for path in ours}


def fetching(root: Path) -> None:
    """A skill that does not fit costs itself alone; one that is there stays when its update does not fit."""
    disk = mount(root, "256k")
    place = disk / "skills"
    with Publisher() as site:
        site.add("small")
        site.pack("big", {"SKILL.md": (skill_md("big"), False), "big.bin": (NOISE, False)})
        asked = ("fetch", site.url, "--output", place, "--update", *LOCAL)
        done = run(*asked)
        assert done.returncode == 1 and f"big: it cannot be kept: {FULL}" in done.stderr, done
        assert sorted(os.listdir(place)) == [".mcp-skills", "small"]
        assert os.listdir(place / ".mcp-skills" / "stage") == []
        assert sorted(os.listdir(place / ".mcp-skills" / "skills")) == ["small.json"]
        filler, before = fill(disk), kept(place)
        site.add("small", skill_md("small", "x" * 20_000))
        done = run(*asked)
        assert done.returncode in (1, 2) and FULL in done.stderr and "Traceback" not in done.stderr, done
        assert kept(place).items() >= before.items()
        filler.unlink()
        mount(root, "4m", "remount")
        done = run(*asked)
        assert done.returncode == 0 and (place / "big" / "big.bin").read_bytes() == NOISE, done


def publishing(root: Path) -> None:
    """What was published stays whole, and the next run completes what there was no space for."""
    disk = mount(root, "256k")
    skills, output = root / "skills", disk / "site"
    write_skill(skills / "small")
    asked = ("publish", skills, "--output", output, "--cache-dir", root / "cache")
    assert run(*asked).returncode == 0
    before = whole(output)
    big = write_skill(skills / "big")
    (big / "big.bin").write_bytes(NOISE)
    assert "cannot be written" in refused(*asked)
    assert whole(output) == before is not None
    assert run(*asked, "--check").returncode == 1
    mount(root, "8m", "remount")
    done = run(*asked)
    assert done.returncode == 0, done
    assert whole(output) not in (None, before)
    assert run(*asked, "--check").returncode == 0


def publishing_without_memory(root: Path) -> None:
    """What publish remembers is of use and not needed."""
    disk = mount(root, "64k")
    fill(disk)
    write_skill(root / "skills" / "small")
    done = run("publish", root / "skills", "--output", root / "site", "--cache-dir", disk / "cache")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done
    assert whole(root / "site") is not None


def installing(root: Path) -> None:
    """The configuration of the host stays as it is, without a copy of it beside it."""
    disk = mount(root, "64k")
    write_skill(root / "skills" / "small")
    config = disk / "config.json"
    config.write_text('{"mcpServers": {"mine": {"command": "x"}}}')
    filler, before = fill(disk), config.read_bytes()
    asked = ("install", "cursor", root / "skills", "--config", config)
    refused(*asked)
    assert config.read_bytes() == before and sorted(os.listdir(disk)) == ["config.json", "filler"]
    filler.unlink()
    assert run(*asked).returncode == 0 and b"mine" in config.read_bytes() != before


def beginning(root: Path) -> None:
    """No half of a new skill is left."""
    disk = mount(root, "64k")
    filler = fill(disk)
    refused("new", "refunds", "--directory", disk)
    assert os.listdir(disk) == ["filler"]
    filler.unlink()
    assert run("new", "refunds", "--directory", disk).returncode == 0


def caching(root: Path) -> None:
    """A server whose cache is full serves what it has, and says what it has not."""
    disk = mount(root, "64k")
    write_skill(root / "skills" / "mine")
    with Publisher() as site:
        site.pack("big", {"SKILL.md": (skill_md("big"), False), "big.bin": (NOISE, False)})
        site.add("small")
        with serving(root / "skills", site.url, "--cache-dir", disk / "cache", *LOCAL) as wire:
            names = {skill["uri"].split("/")[-2] for skill in wire.every_skill()}
            assert "mine" in names and "big" not in names, names
            wire.logs(FULL.encode())
            wire.process.terminate()
            wire.process.wait(DEADLINE)
        assert b"Traceback" not in wire.stderr, wire.stderr


def setting_aside(root: Path) -> None:
    """Where artifacts cannot be stored, the index is to be asked for again, and MCP goes on."""
    disk = mount(root, "64k")
    for number in range(16):  # more than SQLite keeps in memory
        (write_skill(root / "skills" / f"mine{number}") / "big.bin").write_bytes(NOISE)
    os.environ["TMPDIR"] = str(disk)  # before a server starts: SQLite looks once
    with http_serving(root / "skills") as server:
        assert server.send("GET", INDEX).status == 503
        server.said(f"cannot store artifacts .*{FULL}")
        assert server.send("GET", "/healthz").status == 200
        mount(root, "32m", "remount")
        assert server.send("GET", INDEX).status == 200


def running(root: Path) -> None:
    """A script for whose files there is no space is not started, and says so; the next one is."""
    disk = mount(root, "256k")
    write_skill(root / "skills" / "alpha", scripts__hello_py="print('hello')\n", notes_md="x" * 20_000)
    os.environ["TMPDIR"] = str(disk)
    with serving(root / "skills", "--allow-scripts", "--sandbox", "required") as wire:
        loaded = wire.request("tools/call", {"name": "skills_load", "arguments": {"names": ["alpha"]}})
        given = {"path": "scripts/hello.py", "session": loaded["structuredContent"]["session"]}

        def call() -> dict[str, Any]:
            return wire.request("tools/call", {"name": "skills_run_script", "arguments": given})["structuredContent"]

        filler = fill(disk)
        outcome = call()
        assert outcome["exit_code"] != 0 and FULL in outcome["stderr"], outcome
        filler.unlink()
        assert call()["stdout"] == "hello\n"
    assert b"Traceback" not in wire.stderr


SCENARIOS = (fetching, publishing, publishing_without_memory, installing, beginning, caching, setting_aside, running)


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(each.__name__, marks=[pytest.mark.needs_program("bwrap")] if each is running else [])
        for each in SCENARIOS
    ],
)
def test_a_full_disk_costs_what_does_not_fit_and_nothing_else(scenario: str, tmp_path: Path) -> None:
    confined(__file__, scenario, tmp_path, by=NAMESPACE)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
