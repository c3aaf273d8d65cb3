"""Counts of uses by day: what is counted, what is reported, and what a store of counts does. It knows no store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from mcp_skills_server.errors import SkillsServerError

By: TypeAlias = Literal["skill", "principal", "host"]
KEPT_DAYS: Final = 400
"""Older days are forgotten."""
DAY_S: Final = 24 * 3600
SEARCHES: Final = ("search", "empty")
"""Actions that are about no skill: a search that found some, and one that found none."""
OTHER: Final = "_OTHER"
"""The name under which counts what there is no place for."""
MOST_SHOWN: Final = 100
"""Questions of a report."""


class NotStoredError(SkillsServerError):
    """Counts cannot be stored now.

    Attributes:
        reason: why, for the operator; "" where the log has a line of it.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Count(NamedTuple):
    """What is counted."""

    day: int
    action: str
    skill: str
    digest: str
    principal: str
    host: str
    protocol: str


class Sum(NamedTuple):
    """How often something happened, and when last, in seconds since 1970."""

    times: int
    last: float


class Batch(NamedTuple):
    """What is stored at once, or not at all.

    Attributes:
        number: another one for each batch of this process. One that is stored again counts once.
        counts: what happened.
        questions: what was asked when nothing was found, and how often.
    """

    number: int
    counts: Mapping[Count, Sum]
    questions: Mapping[str, int]


class Row(NamedTuple):
    """What a store has of one skill, principal or host program, of one action on one day; `last` may be 0."""

    name: str
    action: str
    day: int
    times: int
    last: float


@dataclass(frozen=True, slots=True)
class Line:
    """What was counted of one skill, principal or host program.

    Attributes:
        name: which one; "" for who did not prove or say anything.
        loads: how often instructions were given.
        reads: how often another file was.
        runs: how often a script was started.
        dropped: how often it was unloaded before any other file of it was asked for.
        last: when it was last used, in seconds since 1970; None for never.
        days: loads, reads and runs of each day asked for, the oldest first.
        versions: how many different versions of it were loaded.
    """

    name: str
    loads: int = 0
    reads: int = 0
    runs: int = 0
    dropped: int = 0
    last: float | None = None
    days: tuple[int, ...] = ()
    versions: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What was counted.

    Attributes:
        lines: the most used first; by skill also those that are served and were never used.
        searches: how often skills were searched for.
        empty: how often of these nothing was found.
        questions: what was asked for then, the most frequent first, with how often; only where that is kept.
    """

    lines: tuple[Line, ...]
    searches: int
    empty: int
    questions: tuple[tuple[str, int], ...]


class UsageStore(Protocol):
    """Where counts are. One thread writes, any may read.

    Attributes:
        name: what it is called in messages.
    """

    name: str

    def add(self, batch: Batch) -> None:
        """Add to the counts, and forget what is older than is kept.

        Raises:
            NotStoredError: it is to be tried again, with the same batch.
        """
        ...

    def serve(self, came: Iterable[str], gone: Iterable[str] = ()) -> None:
        """Note which skills are served from now on and which no longer are.

        Raises:
            NotStoredError: it is to be tried again.
        """
        ...

    def report(self, by: By = "skill", days: int = 30) -> Report:
        """What was counted in the last days.

        Raises:
            UsageError: it cannot be read.
        """
        ...


def make_report(
    by: By,
    first: int,
    days: int,
    rows: Iterable[Row],
    *,
    versions: Mapping[str, int],
    served: Iterable[str],
    questions: Iterable[tuple[str, int]],
) -> Report:
    """The report of what a store has.

    Args:
        by: what a line is of.
        first: the first day.
        days: how many days.
        rows: all counts of these days, searches too.
        versions: by skill how many versions were loaded.
        served: the skills that are served, which are in it although they were never used.
        questions: the most frequent first.
    """
    found: dict[str, dict[str, int]] = {}
    last: dict[str, float] = {}
    spread: dict[str, list[int]] = {}
    searches = dict.fromkeys(SEARCHES, 0)
    for name, action, day, times, moment in rows:
        if not first <= day < first + days:
            continue  # the clock was set back
        if action in searches:
            searches[action] += times
            continue
        counted = found.setdefault(name, {})
        counted[action] = counted.get(action, 0) + times
        last[name] = max(last.get(name, 0.0), moment)
        if action in ("load", "read", "run"):
            spread.setdefault(name, [0] * days)[day - first] += times
    lines = [
        Line(
            name,
            counted.get("load", 0),
            counted.get("read", 0),
            counted.get("run", 0),
            counted.get("dropped", 0),
            last[name] or None,
            tuple(spread.get(name, [0] * days)),
            versions.get(name, 0),
        )
        for name, counted in found.items()
    ]
    lines.sort(key=lambda each: (-(each.loads + each.reads + each.runs), each.name))
    if by == "skill":
        lines += [Line(each, days=(0,) * days) for each in sorted(served) if each not in found]
    return Report(tuple(lines), sum(searches.values()), searches["empty"], tuple(questions))


def day_of(moment: float) -> int:
    """The day of a moment in UTC, counted from 1970."""
    return int(moment // DAY_S)


def spark(days: Sequence[int]) -> str:
    """Numbers as a line of bars."""
    most = max(days, default=0)
    return "".join(" " if not each else "▁▂▃▄▅▆▇█"[min(7, each * 8 // (most + 1))] for each in days)
