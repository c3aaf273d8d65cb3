"""A registry under watch, and what a test waits for in it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any, ClassVar

from catalog.forest import DEADLINE, Told, plant, skill_md, skills
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.model import Standing


@contextmanager
def watching(*roots: Path, limits: Limits | None = None, **options: Any) -> Iterator[tuple[Registry, Told]]:
    """A registry under watch, after its first scan and once events come."""
    registry = Registry(roots, limits)
    reported, watcher = Told(registry), Watcher(registry, **options)
    watcher.start()
    try:
        assert registry.loaded.wait(DEADLINE)
        reported.next()
        assert watcher.armed.wait(DEADLINE)
        yield registry, reported
    finally:
        watcher.stop(DEADLINE)
        assert watcher._thread is not None and not watcher._thread.is_alive()


def serves(*paths: str) -> Callable[[Registry], bool]:
    return lambda registry: registry.snapshot.paths(Standing.VALID) == sorted(paths)


def version(path: str, number: int) -> Callable[[Registry], bool]:
    return lambda registry: registry.snapshot.skills[path].frontmatter.get("version") == number


def edit(top: Path, path: str, number: int) -> None:
    plant(top, {f"{path}/SKILL.md": skill_md(path.rpartition("/")[2], f"version: {number}")})


def changes_show(seen: Told, root: Path, kept: str, gone: str, *others: str) -> None:
    """Edit the skill `kept`, add another one beside it, and delete `gone`; `others` are served, too."""
    edit(root, kept, 2)
    seen.until(version(kept, 2))
    added = f"{kept}-too"
    plant(root, skills(added))
    seen.until(serves(added, kept, gone, *others))
    shutil.rmtree(root / gone)
    seen.until(serves(added, kept, *others))


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: SimpleQueue[logging.LogRecord] = SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.put(record)

    def next(self) -> str:
        return self.records.get(timeout=DEADLINE).getMessage()


@contextmanager
def hearing() -> Iterator[Heard]:
    handler, logger = Heard(), logging.getLogger("mcp_skills_server")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)


class Scripted:
    """Events at given moments of a clock of its own, in place of those of the system; by default none."""

    now = 0.0
    script: ClassVar[list[tuple[float, str]]] = []

    def __init__(self, tops: list[str], stop: Event, _enters: object) -> None:
        self._top, self._stop = tops[0], stop

    def enter(self, _top: str, _location: str) -> None: ...

    def arm(self) -> bool:
        return False

    def wait(self, seconds: float) -> set[str]:
        if self.script and self.script[0][0] <= self.now + seconds:
            Scripted.now, path = self.script.pop(0)
            return {f"{self._top}/{path}"}
        Scripted.now += seconds
        if not self.script:
            self._stop.wait(0.01)
        return set()

    def close(self) -> None: ...
