"""`usage`: report how often each skill is used."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, Literal

import click

from mcp_skills_server.commands.features.records import OFF, store_at
from mcp_skills_server.commands.fields import (
    Options,
    choice,
    flag,
    option,
    output_format,
    takes,
    text,
)
from mcp_skills_server.commands.printing import say, say_json, say_table
from mcp_skills_server.errors import UsageError

if TYPE_CHECKING:
    from mcp_skills_server.telemetry.usage import Report

_SINCE: Final = re.compile(r"([1-9][0-9]{0,2})d")
_SHOWN: Final = 20
"""Lines that are printed without `--all`."""
_BARS: Final = 30
"""Days of a spark."""


class ShowUsageOptions(Options):
    usage: str | None = text(
        "The store of the counts: sqlite:FILE; by default in the user's state directory.", "STORE"
    )
    since: str = option("30d", "How many days back, at most 400.", metavar="DAYS")
    by: Literal["skill", "principal", "host"] = choice(
        "skill", "principal", "host", words="The grouping of the lines."
    )
    all: bool = flag("Print every line, not only the 20 most used.")
    form: Literal["table", "json"] = output_format("table", "json")


@click.command()
@takes(ShowUsageOptions)
def usage(options: ShowUsageOptions) -> None:
    """Show which skills were used, how often and when last, and which are served and never were.

    \b
    Examples:
      mcp-skills-server usage
      mcp-skills-server usage --since 7d --by host
      mcp-skills-server usage --usage sqlite:/var/lib/skills/usage.db --format json
    """
    from mcp_skills_server.telemetry.usage import KEPT_DAYS

    match = _SINCE.fullmatch(options.since)
    days = int(match[1]) if match else 0
    if not 1 <= days <= KEPT_DAYS:
        raise UsageError(f"--since {options.since}: write days, such as 30d, at most {KEPT_DAYS}d")
    store = store_at(options.usage, make=False)
    if store is None:
        where = options.usage or "in the user's state directory"
        if where == OFF:
            where = f"--usage {OFF}"
        hint = "serve with --usage sqlite:FILE, and name it here"
        raise UsageError(f"{where}: there are no counts; {hint}")
    report = store.report(options.by, days)
    if options.form == "json":
        lines = [asdict(line) | {"last": _moment(line.last)} for line in report.lines]
        say_json(
            {
                "since_days": days,
                "by": options.by,
                "lines": lines,
                "searches": report.searches,
                "empty_searches": report.empty,
                "questions": [{"text": words, "times": times} for words, times in report.questions],
            }
        )
    else:
        _show(report, options.by, most=len(report.lines) if options.all else _SHOWN)


def _show(report: Report, by: str, *, most: int) -> None:
    from mcp_skills_server.telemetry.usage import spark

    head = (by.upper(), "LOADS", "READS", "RUNS", "VERSIONS", "DROPPED", "LAST", "DAYS")
    rows = [
        (
            f"{line.name} ({line.label})" if line.label else line.name or "-",
            str(line.loads),
            str(line.reads),
            str(line.runs),
            str(line.versions) if by == "skill" else "-",
            str(line.dropped),
            (_moment(line.last) or "never")[:16].replace("T", " "),
            spark(line.days[-_BARS:]),
        )
        for line in report.lines[:most]
    ]
    say_table(head, rows, empty="nothing was used")
    if left := report.lines[most:]:
        unused = sum(row.last is None for row in left)
        say(f"{len(left):,} more, {unused:,} of them never used; --all prints them")
    if report.searches:
        say(f"searches: {report.searches:,}, of which {report.empty:,} found nothing")
    for words, times in report.questions:
        say(f"  {times:,} x {words}")


def _moment(moment: float | None) -> str | None:
    if moment is None:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))
