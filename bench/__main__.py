"""The command line of `make bench-peers`."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
from pathlib import Path
from typing import Final

from tools.pages import between_markers

from bench import wrk
from bench.client import REPOSITORY, BenchError
from bench.report import BEGIN, END, markdown
from bench.rounds import TRANSPORTS, Series, Skills, run, say
from bench.subjects import OTHERS, gather

QUIET: Final = 0.7
"""Load average above which a machine counts as busy, and its figures are not published."""
PAGE: Final = REPOSITORY / "docs" / "benchmarks.md"


def main() -> int:
    """Install, measure and write; return 1 if this server itself could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="This server beside its peers and its floor.")
    parser.add_argument("--quick", action="store_true", help="two rounds of 1,000 skills, fewer requests")
    parser.add_argument("--sizes", help="numbers of skills (default 1000,10000; the goals are about these)")
    parser.add_argument("--rounds", type=int, help="how often each server is started at each size (default 5)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", choices=OTHERS, help="a peer or the floor"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="the page to write (default docs/benchmarks.md)")
    options = parser.parse_args()
    try:
        sizes = [int(each) for each in (options.sizes or ("1000" if options.quick else "1000,10000")).split(",")]
    except ValueError:
        parser.error("--sizes takes numbers with commas between them, as in 10,1000")
    rounds = options.rounds or (2 if options.quick else 5)
    if min(sizes) < 1 or rounds < 1:
        parser.error("--sizes and --rounds take numbers above 0")
    load = os.getloadavg()[0]
    subjects, left_out = gather(options.only)
    if not wrk.is_installed():
        left_out["wrk"] = wrk.MISSING
    series: list[Series] = []
    requests = 50 if options.quick else 200
    try:
        with Skills(10, subjects[0]) as skills:  # warm up the machine
            run(skills, subjects, transports=TRANSPORTS, rounds=1, requests=1)
        for size in sizes:
            with Skills(size, subjects[0]) as skills:
                series += run(skills, subjects, transports=TRANSPORTS, rounds=rounds, requests=requests)
    except (BenchError, TimeoutError) as error:
        print(f"bench: this server could not be measured: {' '.join(str(error).split())[:600]}", file=sys.stderr)
        return 1
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    loads = f"load {load:.1f} before and {os.getloadavg()[0]:.1f} after"
    about = f"{datetime.datetime.now(datetime.UTC).date()}: {machine}, {loads}; {rounds} rounds."
    if load > QUIET:
        about += " The machine was loaded by other work, so times and their ratios are rough."
    text = markdown(about, subjects, series, left_out)
    print(text)
    page: Path = options.output or PAGE
    if load > QUIET and not options.output:
        say(f"load {load:.1f} before the run: these figures are not published (--output {PAGE} does it all the same)")
        return 0
    old = page.read_text(encoding="utf-8") if page.exists() else f"{BEGIN}\n{END}\n"
    page.write_text(between_markers(old, text, BEGIN, END), encoding="utf-8")
    say(f"written: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
