"""Helpers for tests of a registry that a watcher keeps current."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any, ClassVar

from catalog.forest import DEADLINE, ChangeListener, skill_md, skills, write_files
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.model import Standing


@contextmanager
def watching(*roots: Path, limits: Limits | None = None, **options: Any) -> Iterator[tuple[Registry, ChangeListener]]:
    """Yield a registry once its watch is armed, and a listener for its changes."""
    registry = Registry(roots, limits)
    listener, watcher = ChangeListener(registry), Watcher(registry, **options)
    watcher.start()
    try:
        assert registry.loaded.wait(DEADLINE)
        listener.next()
        assert watcher.armed.wait(DEADLINE)
        yield registry, listener
    finally:
        watcher.stop(DEADLINE)
        assert watcher._thread is not None
        assert not watcher._thread.is_alive()


def serves(*paths: str) -> Callable[[Registry], bool]:
    """Return the condition that exactly these skills are served."""
    return lambda registry: registry.snapshot.paths(Standing.VALID) == sorted(paths)


def has_version(path: str, number: int) -> Callable[[Registry], bool]:
    """Return the condition that a skill is served as `write_version` wrote it."""
    return lambda registry: registry.snapshot.skills[path].frontmatter.get("version") == number


def write_version(root: Path, path: str, number: int) -> None:
    write_files(root, {f"{path}/SKILL.md": skill_md(path.rpartition("/")[2], f"version: {number}")})


def edit_and_wait(listener: ChangeListener, root: Path, path: str, number: int) -> None:
    """Edit a skill and wait until the registry serves the edit."""
    write_version(root, path, number)
    listener.until(has_version(path, number))


def assert_changes_noticed(listener: ChangeListener, root: Path, edited: str, deleted: str, *others: str) -> None:
    """Edit one skill, add one beside it and delete another; `others` are served, too."""
    edit_and_wait(listener, root, edited, 2)
    added = f"{edited}-too"
    write_files(root, skills(added))
    listener.until(serves(added, edited, deleted, *others))
    shutil.rmtree(root / deleted)
    listener.until(serves(added, edited, *others))


class LogQueue(SimpleQueue[logging.LogRecord]):
    """Log records, in the order in which they were logged."""

    def next(self) -> str:
        return self.get(timeout=DEADLINE).getMessage()


@contextmanager
def captured_log() -> Iterator[LogQueue]:
    records, logger = LogQueue(), logging.getLogger("mcp_skills_server")
    handler = QueueHandler(records)
    logger.addHandler(handler)
    try:
        yield records
    finally:
        logger.removeHandler(handler)


class ScriptedEvents:
    """Fake `DirectoryEvents` with its own clock: events at scripted times, by default none."""

    now = 0.0
    script: ClassVar[list[tuple[float, str]]] = []

    def __init__(self, tops: list[str], stop: Event, _enters: object) -> None:
        self._top, self._stop = tops[0], stop

    def enter(self, _top: str, _location: str) -> None: ...

    def arm(self) -> set[str]:
        return set()

    def wait(self, seconds: float) -> set[str]:
        if self.script and self.script[0][0] <= self.now + seconds:
            ScriptedEvents.now, path = self.script.pop(0)
            return {f"{self._top}/{path}"}
        ScriptedEvents.now += seconds
        if not self.script:
            self._stop.wait(0.01)
        return set()

    def close(self) -> None: ...
