"""Small trees of skills on a real disk, and what a registry makes of them as plain values."""

from __future__ import annotations

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

from mcp_skills_server.catalog import root_state, scan, tree
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.model import Changes, Skill, Standing

Patch: TypeAlias = pytest.MonkeyPatch
Log: TypeAlias = pytest.LogCaptureFixture
DEADLINE = 20.0


def skill_md(name: str, *more: str, body: str = "Do it.") -> str:
    """The text of a SKILL.md that keeps every rule; `more` are lines of frontmatter."""
    fields = [f"name: {name}", f"description: Tells how {name} is done and when to use it.", *more]
    return "\n".join(["---", *fields, "---", "", body, ""])


def plant(top: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write these files below `top`, making the directories they need. A text is written as UTF-8."""
    top.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        place = top / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
    return top


def skills(*paths: str) -> dict[str, str]:
    return {f"{path}/SKILL.md": skill_md(path.rpartition("/")[2]) for path in paths}


def whole(found: tree.Directory | None) -> tree.Directory:
    assert found is not None
    found.directories = [whole(each) for each in found.directories]
    return found


def loaded(*roots: Path, limits: Limits | None = None, index: Index | None = None) -> Registry:
    """A registry after its first scan. Nobody follows it, so it holds on to nothing that has become worse."""
    registry = Registry(roots, limits, index=index)
    registry.load()
    return registry


class Clock:
    """The time by which grace periods end, which a test moves."""

    def __init__(self, monkeypatch: Patch) -> None:
        self.now = 100.0
        for module in (scan, root_state):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))


@contextmanager
def as_nobody(place: Path) -> Iterator[None]:
    """Not to be the superuser, for whom every permission holds; what lies in `place` is given to nobody."""
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


def served(registry: Registry) -> list[str]:
    return registry.snapshot.paths(Standing.VALID)


def codes(subject: Registry | Skill) -> list[str]:
    if isinstance(subject, Skill):
        return sorted(problem.code for problem in subject.problems)
    return sorted(problem.code for problem in subject.checks.survey(subject.snapshot).problems)


def view(registry: Registry) -> dict[str, Any]:
    """All that a registry shows, as values that can be compared with those of another."""
    snapshot = registry.snapshot
    out: dict[str, Any] = {}
    for path, skill in snapshot.skills.items():
        files = {name: (file.root, file.location, file.size, file.signature) for name, file in skill.files.items()}
        read = (dict(skill.frontmatter), skill.reading.heading, skill.reading.standing)
        out[path] = (skill.root, skill.directory, read, Counter(skill.problems), files, skill.standing)
    return {
        "skills": out,
        "problems": Counter(snapshot.problems),
        "all": Counter(registry.checks.survey(registry.snapshot).problems),
        "paths": {least: list(snapshot.paths(least)) for least in (0, 1, 2)},
        "names": {skill.name: list(snapshot.named(skill.name, 2)) for skill in snapshot.skills.values()},
    }


class Told:
    def __init__(self, registry: Registry) -> None:
        self.all: list[Changes] = []
        self._queue: SimpleQueue[Changes] = SimpleQueue()
        self._registry = registry
        registry.subscribe(self._hear)

    def _hear(self, changes: Changes) -> None:
        self.all.append(changes)
        self._queue.put(changes)

    def next(self) -> Changes:
        return self._queue.get(timeout=DEADLINE)

    def until(self, holds: Callable[[Registry], bool]) -> None:
        while not holds(self._registry):
            try:
                self.next()
            except Empty:
                raise AssertionError("it did not come about in time") from None


def together(*work: Callable[[], object]) -> None:
    with ThreadPoolExecutor(len(work)) as pool:
        for each in [pool.submit(one) for one in work]:
            each.result(DEADLINE * 3)
