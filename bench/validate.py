"""How long `validate` takes over many skills, beside one process that walks, reads and hashes every file.

`python -m bench.validate`. The skills are those of `bench.generate`. Both are new processes, in turn; processor time is
that of all processes of a run together.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

from bench.client import REPOSITORY, BenchError
from bench.generate import generate
from bench.report import Row, Run

_FLOOR: Final = "import sys; from bench.bare import bare_scan; bare_scan(sys.argv[1], None, hashes=True)"
_GOAL_S: Final = 6.0


def timed(*arguments: str) -> tuple[float, float]:
    """Seconds of one run of Python, and seconds of processor time that it took with its children."""
    before, start = os.times(), perf_counter()
    done = subprocess.run([sys.executable, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    took, after = perf_counter() - start, os.times()
    if done.returncode:
        raise BenchError(f"{arguments[:3]} ended with {done.returncode}: {done.stderr.strip()}")
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return took, processor


def measure(size: int, rounds: int, scratch: Path) -> Iterator[Row]:
    """Validate all, from cold as far as the program goes."""
    root = scratch / "skills"
    generate(root, size)
    ours: list[tuple[float, float]] = []
    floor: list[tuple[float, float]] = []
    for _ in range(rounds):
        ours.append(timed("-m", "mcp_skills_server", "validate", str(root)))
        floor.append(timed("-c", _FLOOR, str(root)))
    goal = _GOAL_S if size == 10_000 else None
    wall, processor = (
        [median(each[column] for each in runs) for runs in (ours, floor)] for column in (0, 1)
    )  # fmt: skip
    yield Row("validate, whole command", size, rounds, wall[0], wall[1], "s", most=goal)
    yield Row("of that: processor time", size, rounds, processor[0], processor[1], "s")


def main() -> int:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.validate", description="Checking skills beside reading them."
    )
    parser.add_argument("--size", type=int, default=10_000, help="number of generated skills")
    parser.add_argument("--rounds", type=int, help="runs of each side (default 3)")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, and 1,000 skills at most")
    options = parser.parse_args()
    size = min(options.size, 1000) if options.quick else options.size
    rounds = options.rounds or (1 if options.quick else 3)
    run = Run()
    with tempfile.TemporaryDirectory(prefix="skills-bench-") as scratch:
        rows = list(measure(size, rounds, Path(scratch)))
    run.tell(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
