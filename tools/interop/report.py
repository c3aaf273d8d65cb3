"""The table of what was seen, and what of it is unexpected."""

from __future__ import annotations

from collections.abc import Sequence

from tools.interop.baseline import Verdict
from tools.interop.runs import Run


def summary(rows: Sequence[tuple[Run, Verdict]]) -> str:
    """The table."""
    head = ("referee", "version", "era", "transport", "passed", "failed", "warned", "skipped", "expected", "UNEXPECTED")
    lines: list[tuple[str, ...]] = [head]
    for run, verdict in rows:
        counts = verdict.counts
        other = sum(counts.values()) - sum(counts[each] for each in ("SUCCESS", "INFO", "WARNING", "SKIPPED"))
        numbers = (counts["SUCCESS"], other, counts["WARNING"], counts["SKIPPED"], verdict.expected)
        shown = (*map(str, numbers), str(len(verdict.unexpected)))
        lines.append((run.referee, run.version, run.era, run.transport, *shown))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    out: list[str] = []
    for line in lines:
        cells = [
            cell.ljust(width) if number < 4 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        out.append("  ".join(cells).rstrip())
    return "\n".join(out)


def report(rows: Sequence[tuple[Run, Verdict]]) -> int:
    """Print what came of it; how much of it is unexpected."""
    print(summary(rows))
    unexpected = 0
    for run, verdict in rows:
        where = f"{run.referee}, {run.era}, {run.transport}"
        for check in verdict.unexpected:
            unexpected += 1
            print(f"UNEXPECTED  {where}: {check.scenario} / {check.id}: {check.status} {check.message}".rstrip())
    for run, verdict in rows:
        for scenario, identifier in verdict.stale:
            where = f"{run.referee}, {run.era}, {run.transport}"
            print(f"expected to fail, but did not; take it out of the baseline  {where}: {scenario} / {identifier}")
    return unexpected
