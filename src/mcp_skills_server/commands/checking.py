"""Checks skills, many of them in processes of their own: to read them is work of the processor alone.

On Linux they are forks of this one, which have what the scan found and start at once; beside threads and on other
systems, where that is not safe, they are started anew and get it sent. They open the files themselves. None outlives
the command, however that ends.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Sequence
from itertools import chain
from multiprocessing import get_context, parent_process
from typing import TYPE_CHECKING, Final, TypeAlias

from mcp_skills_server.catalog.inspection import inspect
from mcp_skills_server.catalog.reader import Reader
from mcp_skills_server.catalog.roots import Root
from mcp_skills_server.commands.forks import interrupts_held, may_fork, processors
from mcp_skills_server.commands.printing import progress
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.model import Problem, Skill

FEW: Final = 1_000
"""Up to so many skills are checked here: to start processes takes as long as to check some hundred."""
_CHUNK: Final = 50
_MOST: Final = 8
"""Processes. With more of them the scan, which is one's work, is nearly all that is left."""
_LABEL: Final = "Checking skills"

_Task: TypeAlias = "list[tuple[Skill, tuple[str, ...]]]"
"""Skills, each with the directories of those that lie in it."""


def check(registry: Registry, skills: Sequence[Skill], *, few: int = FEW) -> list[Problem]:
    """Run the deep checks of these skills, so that the registry knows them; return what they find, in their order.

    Args:
        registry: has them, and keeps what is found.
        skills: the skills.
        few: up to so many need no other process.

    Raises:
        UsageError: one of the processes was killed.
    """
    workers = min(processors(), _MOST)
    if len(skills) <= few or workers < 2:
        steps = progress(skills, length=len(skills), label=_LABEL)
        return [found for skill in steps for found in registry.checks.of(skill)]
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    tasks: list[_Task] = [
        [(skill, registry.nested(skill)) for skill in skills[start : start + _CHUNK]]
        for start in range(0, len(skills), _CHUNK)
    ]
    forks = may_fork()
    about = (registry.roots, registry.limits.bytes, tasks if forks else [])
    context = get_context("fork" if forks else "spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=about)
    try:
        with interrupts_held():
            made = [pool.submit(_check, task) for task in (range(len(tasks)) if forks else tasks)]
        steps = progress(made, length=len(made), label=_LABEL)
        checked = [found for each in steps for found in each.result()]
    except BrokenProcessPool:
        raise UsageError(
            "a process that checked skills was killed, perhaps for want of memory; run it again, or on fewer folders"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
    for skill, found in zip(skills, checked, strict=True):
        registry.checks.put(skill, found)
    return list(chain.from_iterable(checked))


# In the other processes

_readers: list[tuple[Reader, int]] = []
"""The reader of this process and the bytes of a file that it may read."""
_inherited: list[_Task] = []
"""What a fork was made with, so that a number stands for each."""


def _begin(roots: Sequence[Root], most_bytes: int, tasks: list[_Task]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:

        def end_with() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=end_with, daemon=True).start()
    gc.freeze()  # what came with the fork stays: to look through it again and again takes a tenth of the work
    _readers.append((Reader(roots), most_bytes))
    _inherited.extend(tasks)


def _check(given: _Task | int) -> list[list[Problem]]:
    reader, most_bytes = _readers[0]
    task = _inherited[given] if isinstance(given, int) else given
    return [inspect(reader, skill, nested, most_bytes) for skill, nested in task]
