"""Count the lines of Python that a call runs, so that a test can assert its cost without a clock.

A step is one executed line of Python. Work inside a line (a hash, a copy, a regular expression) does not count: for
patterns see `test_patterns.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any


def steps(call: Callable[[], object]) -> int:
    """Return how many lines of Python the call executes, whether or not it raises."""
    count = 0

    def local(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "line"
        return local

    before = sys.gettrace()
    sys.settrace(lambda _, __, ___: local)
    try:
        with suppress(Exception):  # the steps up to a refusal count too
            call()
    finally:
        sys.settrace(before)
    return count


def step_growth(call: Callable[[int], Callable[[], object]], size: int, times: int = 4) -> float:
    """Return the factor by which the steps grow when the input grows by `times`: `times` if linear."""
    steps(call(size))  # fills caches, which the count leaves out
    return steps(call(times * size)) / max(1, steps(call(size)))
