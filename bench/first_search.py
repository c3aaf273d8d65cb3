"""What the first search of a process costs in processor time and memory, with an index of another process and without.

`python -m bench.first_search ROOT CACHE` is one such process. It reads the skills as a server does, asks one question,
waits until what it leaves is written, and prints three figures as JSON: milliseconds of processor time for the question
and for the writing, and the resident kB at its end.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time
from typing import Final

from bench.report import Row
from mcp_skills_server.model import SKILL_MD, Skill

_QUESTION: Final = "review a pull request for security problems"
_MS: Final = 1e3
_GOALS_MS: Final = {1_000: 15.0, 10_000: 100.0}


def first_searches(skills: Mapping[str, Skill], quick: bool) -> Iterator[Row]:
    """Rows for a folder of these skills. The two ways are measured in turn."""
    size, rounds = len(skills), 3 if quick else 7
    with TemporaryDirectory(prefix="bench-search-") as place:
        root, cache = Path(place, "skills"), Path(place, "cache")
        for path, skill in skills.items():
            folder = root / path
            folder.mkdir(parents=True)
            (folder / SKILL_MD).write_text(_text(skill), encoding="utf-8")
        _process(root, cache)  # leaves the index of the root
        empty: list[list[float]] = []
        kept: list[list[float]] = []
        for _ in range(rounds):
            for left in cache.glob("*.search"):
                left.unlink()
            empty.append(_process(root, cache))
            kept.append(_process(root, cache))
        shutil.rmtree(root)
    for what, seen, goal in (("empty", empty, None), ("kept", kept, _GOALS_MS.get(size))):
        asked, wrote, resident = (median(each) for each in zip(*seen, strict=True))
        name = f"first search after a start, {what}"
        yield Row(f"{name}: processor time", size, rounds, asked, None, "ms", most=goal)
        if what == "empty":
            yield Row(f"{name}: of the writing, behind it", size, rounds, wrote, None, "ms")
        yield Row(f"{name}: resident at its end", size, rounds, resident / 1024, None, "MB")


def _text(skill: Skill) -> str:
    fields = json.dumps({**skill.frontmatter, "name": skill.name})
    headings = "".join(f"\n## {each}\n" for each in skill.reading.headings)
    return f"---\n{fields}\n---\n{skill.reading.opening_text}\n{headings}"


def _process(root: Path, cache: Path) -> list[float]:
    command = [sys.executable, "-m", "bench.first_search", str(root), str(cache)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout)
    return found


def _ask(root: str, cache: str) -> list[float]:
    # What a server has loaded by then is no part of the question.
    import mcp_skills_server.runtime.session  # noqa: F401
    from mcp_skills_server.catalog.index import Index
    from mcp_skills_server.catalog.registry import Registry

    registry = Registry([root], index=Index(Path(cache), 1))
    registry.load()
    registry.keep_index(lambda: False)
    begin = process_time()
    from mcp_skills_server.runtime.search import Search

    Search(registry).find(_QUESTION, 5, lambda _: True)
    answered = process_time()
    for thread in threading.enumerate():
        if thread.name == "skills-search-index":
            thread.join()
    end = process_time()
    resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return [(answered - begin) * _MS, (end - answered) * _MS, float(resident.split()[1])]


if __name__ == "__main__":
    print(json.dumps(_ask(*sys.argv[1:])))
