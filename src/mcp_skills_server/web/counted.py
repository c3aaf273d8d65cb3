"""Log lines that strangers cause: the first at once, then at most one line a minute, with how often each was said."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

_EVERY_S: Final = 60.0


def _on_the_loop(seconds: float, then: Callable[[], None]) -> Any:
    return asyncio.get_running_loop().call_later(seconds, then)


class Counted:
    """Tells each thing at once, or counted in the next line.

    Args:
        log: takes a line, such as `logger.warning`.
        later: calls a function after so many seconds; the running loop's unless a test says otherwise.
    """

    def __init__(
        self, log: Callable[[str, str], None], later: Callable[[float, Callable[[], None]], Any] = _on_the_loop
    ) -> None:
        self._log = log
        self._later = later
        self._counts: Counter[str] = Counter()
        self._waits = False

    def tell(self, words: str) -> None:
        """Log it, now or counted. The words must be few and fixed: nothing of a client's."""
        self._counts[words] += 1
        if not self._waits:
            self._flush()

    def _flush(self) -> None:
        lines = (words if times == 1 else f"{words} ({times:,} times)" for words, times in self._counts.items())
        self._log("%s", "; ".join(lines))
        self._counts.clear()
        self._waits = True
        self._later(_EVERY_S, self._again)

    def _again(self) -> None:
        self._waits = False
        if self._counts:
            self._flush()
