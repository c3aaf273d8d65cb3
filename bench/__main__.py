"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from bench.measure import ALL, Bench
from bench.report import Row, Run


def main() -> int:
    """Measure, print one table and, when asked, write JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Speed and memory beside their floors.")
    parser.add_argument("--sizes", help="numbers of skills, by default 10,1000,10000 (with --quick 10,1000)")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--only", action="append", choices=ALL, metavar="NAME", help=f"one of {', '.join(ALL)}")
    options = parser.parse_args()
    try:
        sizes = [int(each) for each in (options.sizes or ("10,1000" if options.quick else "10,1000,10000")).split(",")]
    except ValueError:
        parser.error("--sizes takes numbers with commas between them, as in 10,1000")
    if min(sizes) < 1:
        parser.error("--sizes takes numbers above 0")
    run = Run()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="skills-bench-") as scratch:
        for size in sizes:
            _say(f"{size:,} skills: writing them")
            bench = Bench(size, options.quick, Path(scratch))
            for name in options.only or ALL:
                _say(f"{size:,} skills: {name}")
                rows.extend(ALL[name](bench))
            bench.close()
    run.tell(rows, "medians unless p99 or max is said", options.json)
    return 0


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
