"""A full disk: one line that says so, no partial result, and recovery once there is space.

The scenarios of a group run as a program in a mount namespace of its own, with a fork server of its own, whose start
takes as long as four of them. Those that change `TMPDIR` are alone: SQLite reads it when the fork server starts.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import forkserver
from catalog.watch.test_watcher_limits import NAMESPACE, can_run, run_scenario
from mcp_skills_server.catalog.index import Index
from publish.test_static import tree_of
from sources.publishers import Publisher, skill_md
from web.http_wire import http_serving
from wire import COMMAND, DEADLINE, serving, write_skill

pytestmark = pytest.mark.skipif(
    not can_run(*NAMESPACE, "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"),
    reason="no user namespace to mount a small disk in",
)
FULL = "No space left on device"
INDEX = "/.well-known/agent-skills/index.json"
LOCAL = ("--allow-private", "--allow-http")
NOISE = random.Random(1).randbytes(600_000)


def mount(root: Path, size: str, *more: str) -> Path:
    """Mount a disk of this size; with "remount" resize it."""
    disk = root / "disk"
    disk.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join([*more, f"size={size}"]), "none", disk], check=True)
    return disk


def fill(disk: Path) -> Path:
    """Fill a disk with one file, and return this file."""
    filler = disk / "filler"
    with suppress(OSError), open(filler, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, arguments)]
    return forkserver.run(command, capture_output=True, text=True, timeout=DEADLINE)


def refused(*arguments: str | Path) -> str:
    """Run a command that exits with 2, and return its only line."""
    done = run(*arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and FULL in done.stderr, done
    return done.stderr


def kept_files(top: Path) -> dict[str, bytes]:
    """Return the files of skills and of their records in a folder of `fetch`."""
    files: dict[str, bytes] = {}
    for path in top.rglob("*"):
        name = path.relative_to(top).as_posix()
        if path.is_file() and name != ".mcp-skills/lock" and "sources" not in name:
            files[name] = path.read_bytes()
    return files


def fetch_skips_only_skill_that_does_not_fit(root: Path) -> None:
    disk = mount(root, "256k")
    output = disk / "skills"
    with Publisher() as site:
        site.add("small")
        site.pack("big", {"SKILL.md": (skill_md("big"), False), "big.bin": (NOISE, False)})
        command = ("fetch", site.url, "--output", output, "--update", *LOCAL)
        done = run(*command)
        assert done.returncode == 1 and f"big: it cannot be kept: {FULL}" in done.stderr, done
        assert sorted(os.listdir(output)) == [".mcp-skills", "small"]
        assert os.listdir(output / ".mcp-skills" / "stage") == []
        assert sorted(os.listdir(output / ".mcp-skills" / "skills")) == ["small.json"]
        filler, before = fill(disk), kept_files(output)
        site.add("small", skill_md("small", "x" * 20_000))
        done = run(*command)
        assert done.returncode in (1, 2) and FULL in done.stderr, done
        assert "Traceback" not in done.stderr, done
        assert kept_files(output).items() >= before.items()
        filler.unlink()
        mount(root, "4m", "remount")
        done = run(*command)
        assert done.returncode == 0, done
        assert (output / "big" / "big.bin").read_bytes() == NOISE


def publish_keeps_tree_whole_and_next_run_completes_it(root: Path) -> None:
    disk = mount(root, "256k")
    skills, output = root / "skills", disk / "site"
    write_skill(skills / "small")
    command = ("publish", skills, "--output", output, "--cache-dir", root / "cache")
    assert run(*command).returncode == 0
    before = tree_of(output)
    big = write_skill(skills / "big")
    (big / "big.bin").write_bytes(NOISE)
    assert "cannot be written" in refused(*command)
    assert before is not None and tree_of(output) == before
    assert run(*command, "--check").returncode == 1
    mount(root, "8m", "remount")
    done = run(*command)
    assert done.returncode == 0, done
    assert tree_of(output) not in (None, before)
    assert run(*command, "--check").returncode == 0


def publish_needs_no_cache(root: Path) -> None:
    disk = mount(root, "64k")
    fill(disk)
    write_skill(root / "skills" / "small")
    done = run("publish", root / "skills", "--output", root / "site", "--cache-dir", disk / "cache")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done
    assert tree_of(root / "site") is not None


def new_leaves_no_partial_skill(root: Path) -> None:
    disk = mount(root, "64k")
    filler = fill(disk)
    refused("new", "refunds", "--directory", disk)
    assert os.listdir(disk) == ["filler"]
    filler.unlink()
    assert run("new", "refunds", "--directory", disk).returncode == 0


def server_with_full_cache_serves_other_skills(root: Path) -> None:
    disk = mount(root, "64k")
    write_skill(root / "skills" / "mine")
    with Publisher() as site:
        site.pack("big", {"SKILL.md": (skill_md("big"), False), "big.bin": (NOISE, False)})
        site.add("small")
        with serving(root / "skills", site.url, "--cache-dir", disk / "cache", *LOCAL) as wire:
            names = {skill["uri"].split("/")[-2] for skill in wire.every_skill()}
            assert "mine" in names and "big" not in names, names
            wire.wait_for_log(FULL.encode())
            wire.process.terminate()
            wire.process.wait(DEADLINE)
        assert b"Traceback" not in wire.stderr, wire.stderr


def filled_cache_is_served_from_a_read_only_disk(root: Path) -> None:
    disk = mount(root, "4m")
    with Publisher() as site:
        site.add("small")
        command = (site.url, "--cache-dir", disk / "cache", *LOCAL)
        assert run("list", *command).returncode == 0
        mount(root, "4m", "remount", "ro")
        with serving(*command) as wire:
            assert [skill["frontmatter"]["name"] for skill in wire.every_skill()] == ["small"]
            site.add("more")
            wire.process.terminate()
            wire.process.wait(DEADLINE)
        assert b"Traceback" not in wire.stderr, wire.stderr
        done = run("list", *command)
        assert done.returncode == 0 and "serving the last copy" in done.stderr, done
        done = run("list", site.url, "--cache-dir", disk / "empty", *LOCAL)
        assert done.returncode == 2 and "choose another --cache-dir" in done.stderr, done


def first_copy_that_does_not_fit_is_not_ready(root: Path) -> None:
    disk = mount(root, "512k")
    with Publisher() as site:
        for number in range(300):
            site.add(f"skill-{number:03}", skill_md(f"skill-{number:03}", "x" * 3000))
        with http_serving(site.url, "--cache-dir", disk / "cache", "--first-load", "0", *LOCAL) as server:
            server.wait_for_log(FULL)
            answer = server.send("GET", "/readyz")
            assert (answer.status, FULL in answer.body.decode()) == (503, True), answer
        with http_serving(site.url, "--cache-dir", disk / "cache", "--first-load", "0", *LOCAL) as server:
            server.wait_for_log(FULL)
            assert server.send("GET", "/readyz").status == 503


def index_is_kept_and_used_once_there_is_space(root: Path) -> None:
    disk = mount(root, "1m")
    index = Index(disk / "index")
    index.save_memos("judge", {b"before": b"kept"})
    filler = fill(disk)
    index.save_memos("judge", {b"meanwhile": b"lost"})
    filler.unlink()
    index.save_memos("judge", {b"after": b"kept"})
    assert index.memos("judge", [b"before", b"meanwhile", b"after"]).keys() == {b"before", b"after"}


def server_without_space_for_artifacts_answers_503_for_index(root: Path) -> None:
    disk = mount(root, "64k")
    for number in range(16):  # more than SQLite keeps in memory
        (write_skill(root / "skills" / f"mine{number}") / "big.bin").write_bytes(NOISE)
    os.environ["TMPDIR"] = str(disk)  # before the fork server starts: SQLite reads it once
    with http_serving(root / "skills") as server:
        assert server.send("GET", INDEX).status == 503
        server.wait_for_log(f"cannot store artifacts .*{FULL}")
        assert server.send("GET", "/healthz").status == 200
        mount(root, "32m", "remount")
        assert server.send("GET", INDEX).status == 200


def script_without_space_for_its_files_fails(root: Path) -> None:
    disk = mount(root, "256k")
    write_skill(root / "skills" / "alpha", scripts__hello_py="print('hello')\n", notes_md="x" * 20_000)
    os.environ["TMPDIR"] = str(disk)
    with serving(root / "skills", "--allow-scripts", "--sandbox", "required") as wire:
        loaded = wire.call("skills_load", names=["alpha"])["structuredContent"]

        def call() -> dict[str, Any]:
            arguments = {"path": "scripts/hello.py", "session": loaded["session"]}
            return wire.call("skills_run_script", **arguments)["structuredContent"]

        filler = fill(disk)
        result = call()
        assert result["exit_code"] != 0 and FULL in result["stderr"], result
        filler.unlink()
        assert call()["stdout"] == "hello\n"
    assert b"Traceback" not in wire.stderr


GROUPS: dict[str, list[Callable[[Path], None]]] = {
    "plain": [
        fetch_skips_only_skill_that_does_not_fit,
        publish_keeps_tree_whole_and_next_run_completes_it,
        publish_needs_no_cache,
        new_leaves_no_partial_skill,
        index_is_kept_and_used_once_there_is_space,
        server_with_full_cache_serves_other_skills,
        filled_cache_is_served_from_a_read_only_disk,
        first_copy_that_does_not_fit_is_not_ready,
    ],
    "artifacts": [server_without_space_for_artifacts_answers_503_for_index],
    "scripts": [script_without_space_for_its_files_fails],
}


@pytest.mark.parametrize(
    "group", ["plain", "artifacts", pytest.param("scripts", marks=pytest.mark.needs_program("bwrap"))]
)
def test_full_disk(group: str, tmp_path: Path) -> None:
    run_scenario(__file__, group, tmp_path, by=NAMESPACE)


if __name__ == "__main__":
    for scenario in GROUPS[sys.argv[1]]:
        scenario_root = Path(sys.argv[2], scenario.__name__)
        scenario_root.mkdir()
        scenario(scenario_root)
