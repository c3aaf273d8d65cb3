"""Small trees of skills on the disk, and the registries that serve them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from mcp_skills_server.catalog import disk, tree
from mcp_skills_server.catalog.disk import WalkedFile
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.model import Changes, Skill, Standing

Patch: TypeAlias = pytest.MonkeyPatch
Log: TypeAlias = pytest.LogCaptureFixture
DEADLINE = 20.0


def skill_md(name: str, *more: str, body: str = "Do it.") -> str:
    """Return a valid SKILL.md; `more` are lines of frontmatter."""
    fields = [f"name: {name}", f"description: Tells how {name} is done and when to use it.", *more]
    return "\n".join(["---", *fields, "---", "", body, ""])


def write_files(top: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files below `top`, with their parent directories, and return `top`."""
    top.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        file = top / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return top


def skills(*paths: str) -> dict[str, str]:
    """Return the files of a minimal skill at each path."""
    return {f"{path}/SKILL.md": skill_md(path.rpartition("/")[2]) for path in paths}


def consume_walk(found: tree.Directory | None) -> tree.Directory:
    """Consume the iterators of a walk, and return its directory with lists instead."""
    assert found is not None
    found.directories = [consume_walk(each) for each in found.directories]
    return found


def load_registry(*roots: Path, limits: Limits | None = None, index: Index | None = None) -> Registry:
    """Return a registry after its first scan. No watcher follows it, so no skill has a grace period."""
    registry = Registry(roots, limits, index=index)
    registry.load()
    return registry


class FakeClock:
    """Clock of the grace periods and of the saved index, which a test advances."""

    def __init__(self, monkeypatch: Patch) -> None:
        self.now = 100.0
        for module in ("registry", "root_state", "scan"):
            time = SimpleNamespace(monotonic=lambda: self.now)
            monkeypatch.setattr(f"mcp_skills_server.catalog.{module}.time", time)


@contextmanager
def unprivileged_user(place: Path) -> Iterator[None]:
    """Run as the user `nobody`, who owns `place`: root passes every permission check."""
    if os.geteuid() != 0:
        yield
        return
    for path in (place, *place.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def hook_reads(monkeypatch: Patch, function: Callable[[str], object]) -> None:
    """Call a function with the location of each file just before a scan reads it."""
    real_ingest = disk.ingest

    def ingest(root: str, location: str, file: WalkedFile, most_bytes: int) -> tuple[bytes, WalkedFile]:
        function(file.location)
        return real_ingest(root, location, file, most_bytes)

    monkeypatch.setattr(disk, "ingest", ingest)


def valid_paths(registry: Registry) -> list[str]:
    """Return the paths of the valid skills."""
    return registry.snapshot.paths(Standing.VALID)


def problem_codes(subject: Registry | Skill) -> list[str]:
    """Return the sorted problem codes of a registry or a skill."""
    if isinstance(subject, Skill):
        return sorted(problem.code for problem in subject.problems)
    return sorted(problem.code for problem in subject.checks.survey(subject.snapshot).problems)


def assert_served(registry: Registry, paths: list[str], *, problems: list[str]) -> None:
    """Assert the paths of the valid skills, and the sorted codes of all problems."""
    assert valid_paths(registry) == paths
    assert problem_codes(registry) == problems


def visible_state(registry: Registry) -> dict[str, Any]:
    """Return all that a registry shows, as values that compare equal to those of another registry.

    Notes on near misses are left out: an edit of such a file has to wait for the next full scan.
    """
    snapshot = registry.snapshot
    shown: dict[str, Any] = {}
    for path, skill in snapshot.skills.items():
        files = {name: (file.root, file.location, file.size, file.digest) for name, file in skill.files.items()}
        reading = (json.dumps(dict(skill.frontmatter)), skill.reading.heading, skill.reading.standing)
        shown[path] = (skill.root, skill.directory, reading, Counter(skill.problems), files, skill.standing)
    return {
        "skills": shown,
        "problems": Counter(each for each in snapshot.problems if each.code != "near-miss"),
        "all": Counter(registry.checks.survey(snapshot).problems),
        "paths": {least: list(snapshot.paths(least)) for least in (0, 1, 2)},
        "names": {skill.name: list(snapshot.named(skill.name, 2)) for skill in snapshot.skills.values()},
    }


class ChangeListener:
    """Listener that collects the changes of a registry."""

    def __init__(self, registry: Registry) -> None:
        self.all: list[Changes] = []
        self._queue: SimpleQueue[Changes] = SimpleQueue()
        self._registry = registry
        registry.subscribe(self._collect)

    def _collect(self, changes: Changes) -> None:
        self.all.append(changes)
        self._queue.put(changes)

    def next(self) -> Changes:
        return self._queue.get(timeout=DEADLINE)

    def until(self, condition: Callable[[Registry], bool]) -> None:
        """Wait for changes until the condition is true."""
        while not condition(self._registry):
            try:
                self.next()
            except Empty:
                raise AssertionError("no change made the condition true in time") from None


def run_concurrently(*work: Callable[[], object]) -> None:
    """Run functions in concurrent threads, and raise the first error."""
    with ThreadPoolExecutor(len(work)) as pool:
        for future in [pool.submit(each) for each in work]:
            future.result(DEADLINE * 3)
