"""What a command takes as a whole process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

from bench.client import REPOSITORY


class Cost(NamedTuple):
    """Seconds of a process and of those that it waited for.

    Attributes:
        wall: from its start to its end.
        cpu: of processors, user and system.
    """

    wall: float
    cpu: float


def whole(command: Sequence[str]) -> tuple[subprocess.CompletedProcess[str], Cost]:
    """Run a command to its end in the repository, with byte code kept as an installed package has it."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    before, start = os.times(), perf_counter()
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, errors="replace", check=False
    )
    wall, after = perf_counter() - start, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return done, Cost(wall, used)
