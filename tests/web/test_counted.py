"""Lines that strangers cause: at most one a minute, and every cause counted."""

from __future__ import annotations

from collections.abc import Callable

from mcp_skills_server.web.counted import Counted


def test_the_first_is_told_at_once_and_the_rest_counted_once_a_minute() -> None:
    lines: list[str] = []
    timers: list[tuple[float, Callable[[], None]]] = []
    counted = Counted(lambda form, words: lines.append(form % words), lambda *timer: timers.append(timer))
    counted.tell("one left")
    assert lines == ["one left"]
    for _ in range(1500):
        counted.tell("one left")
    counted.tell("another came")
    assert lines == ["one left"] and [seconds for seconds, _ in timers] == [60]
    timers.pop()[1]()
    assert lines[1:] == ["one left (1,500 times); another came"]
    timers.pop()[1]()
    assert len(lines) == 2 and not timers  # a quiet minute says nothing
    counted.tell("one left")
    assert lines[2:] == ["one left"]
