"""Counts what a call does, so that a cost can be asserted without a clock.

A step is one line of Python that runs. What happens inside one line (a hash, a copy, a regular expression) is no
step: for patterns see `test_patterns.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any


def steps(call: Callable[[], object]) -> int:
    """How many lines of Python run in the call. What it raises is no matter of the count."""
    count = 0

    def local(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "line"
        return local

    before = sys.gettrace()
    sys.settrace(lambda _, __, ___: local)
    try:
        with suppress(Exception):  # a refusal is an answer, too
            call()
    finally:
        sys.settrace(before)
    return count


def growth(call: Callable[[int], Callable[[], object]], size: int, times: int = 4) -> float:
    """How many times as many steps an input of `times` the size takes. Linear is `times`, quadratic its square."""
    steps(call(size))  # what is kept after the first call is not counted
    return steps(call(times * size)) / max(1, steps(call(size)))
