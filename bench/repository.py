"""Benchmark of a git source of many skills: `python -m bench.repository [--skills N] [--pushes N]`.

Processor and time of the first copy, of one pushed change at `--refresh 1`, and of a restart over that copy. The
processor of the server and that of the git programs it starts are separate; what its polls take is subtracted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

from bench.client import StdioClient
from bench.generate import generate, skill_name

CHANGED = "notifications/skills/list_changed"
SETTLED_S = 0.5
"""The server is idle once a second of it costs little more than its polls did."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Processor:
    """Seconds of processor of a server, and of its ended children."""

    own: float
    children: float

    def __sub__(self, other: Processor) -> Processor:
        return Processor(self.own - other.own, self.children - other.children)

    def __str__(self) -> str:
        return f"{self.own:.2f} s of processor, git {self.children:.2f} s"


class Server(StdioClient):
    """A server of the repository, with its own cache folder."""

    def __init__(self, repository: Path, cache: Path) -> None:
        words = [f"git+file://{repository}", "--refresh", "1", "--cache-dir", str(cache)]
        super().__init__([sys.executable, "-m", "mcp_skills_server", "serve", *words], "modern", os.environ)

    def processor(self) -> Processor:
        stat = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii")
        user, system, child_user, child_system = map(int, stat.rpartition(")")[2].split()[11:15])
        return Processor((user + system) / TICKS, (child_user + child_system) / TICKS)

    def listen(self) -> None:
        """Subscribe to changes of the list."""
        self.open()
        self.send(self.prepare("subscriptions/listen", {"notifications": {"skillsListChanged": True}}))
        self.wait_for("notifications/subscriptions/acknowledged")

    def listed(self) -> int:
        """Return the number of skills on the first page; the first listing waits for the source."""
        return len(self.request("skills/list", {})["skills"])

    def until_idle(self) -> Processor:
        """Wait until the server does little; return the processor that it takes then in a second."""
        costs = [self.second() for _ in range(4)]
        while max(each.own for each in costs) > 1.5 * min(each.own for each in costs) + 0.05:
            costs = [*costs[1:], self.second()]
        own, children = median(each.own for each in costs), median(each.children for each in costs)
        return Processor(own, children)

    def second(self) -> Processor:
        before = self.processor()
        sleep(1)
        return self.processor() - before


def make_repository(scratch: Path, skills: int) -> Path:
    """Return a bare repository of generated skills."""
    generate(scratch / "work", skills)
    git(scratch / "work", "init", "--quiet", "--initial-branch=main")
    git(scratch / "work", "config", "gc.auto", "0")
    commit(scratch / "work")
    bare = scratch / "skills.git"
    git(scratch, "clone", "--quiet", "--bare", "work", "skills.git")
    git(bare, "config", "uploadpack.allowFilter", "true")
    git(bare, "config", "receive.autoGc", "false")
    git(scratch / "work", "remote", "add", "origin", str(bare))
    return bare


def commit(work: Path) -> None:
    git(work, "add", "--all")
    git(work, "-c", "user.name=n", "-c", "user.email=n@example.com", "commit", "--quiet", "-m", "change")


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def push_change(work: Path, number: int) -> None:
    """Change the description of one skill, and push it."""
    manifest = work / skill_name(number) / "SKILL.md"
    manifest.write_text(manifest.read_text().replace("description: ", f"description: Change {number}. ", 1))
    commit(work)
    git(work, "push", "--quiet", "origin", "main")


def measure(scratch: Path, skills: int, pushes: int) -> None:
    repository, cache = make_repository(scratch, skills), scratch / "cache"
    with Server(repository, cache) as server:
        server.listen()
        server.wait_for(CHANGED)
        while server.listed() < min(skills, 50):
            server.wait_for(CHANGED)
        idle = server.until_idle()
        print(f"first copy of {skills:,} skills: {perf_counter() - server.started:.1f} s, {server.processor()}")
        print(f"idle, for each second: {idle}; {server.resident() / 1e6:.0f} MB, {server.peak() / 1e6:.0f} MB at most")
    for number in range(2):
        with Server(repository, cache) as server:
            server.listen()
            server.listed()
            listed = perf_counter() - server.started
            idle = server.until_idle()
            seconds, used = perf_counter() - server.started, server.processor()
            polls = Processor(seconds * idle.own, seconds * idle.children)
            memory = server.resident() / 1e6
            print(f"restart over this copy: listed after {listed:.1f} s, {used - polls}, {memory:.0f} MB")
            for push in range(pushes if number else 0):
                server.drain(SETTLED_S)
                began, before = perf_counter(), server.processor()
                push_change(scratch / "work", push)
                pushed = perf_counter()
                notice = server.wait_for(CHANGED) - pushed
                idle = server.until_idle()
                seconds = perf_counter() - began
                used = server.processor() - before - Processor(seconds * idle.own, seconds * idle.children)
                print(f"one file pushed: notice after {notice:.2f} s, {used}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--skills", type=int, default=10_000)
    parser.add_argument("--pushes", type=int, default=4)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), given.skills, given.pushes)


if __name__ == "__main__":
    main()
