"""The command line of `make bench-peers`."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from bench.client import ERAS, REPOSITORY, BenchError
from bench.peers import page, subjects
from bench.peers.environments import CACHE, MissingError, node
from bench.peers.page import Results
from bench.peers.rounds import HTTP, STDIO, Series, Skills, load_now, patient, run, say

QUIET: Final = 0.7
"""A machine with more load than this before the run is busy, and what is seen there is not published."""
_SIZES: Final = "10,100,1000,10000,100000"
_QUICK: Final = "10,1000"


def main() -> int:
    """Install, measure and write; 1 if this server itself could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description="This server beside its peers.")
    parser.add_argument("--quick", action="store_true", help=f"two rounds, fewer requests, sizes {_QUICK}")
    parser.add_argument("--sizes", help=f"numbers of skills, by default {_SIZES}; 1000 is what the tables are about")
    parser.add_argument("--rounds", type=int, help="how often each server is started at each size (default 5)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a peer or floor; may stand twice")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where benchmarks.md is (default docs/)")
    parser.add_argument("--any-load", action="store_true", help="write into docs/ on a busy machine, too")
    options = parser.parse_args()
    known = (*subjects.PEERS, subjects.SDK_FLOOR, subjects.BARE)
    if wrong := [each for each in options.only if each not in known]:
        parser.error(f"--only takes {', '.join(known)}, not {wrong[0]}")
    try:
        sizes = sorted({int(each) for each in (options.sizes or (_QUICK if options.quick else _SIZES)).split(",")})
    except ValueError:
        parser.error("--sizes takes numbers with commas between them, as in 10,1000")
    if min(sizes) < 1 or (options.rounds or 1) < 1:
        parser.error("--sizes and --rounds take numbers above 0")
    load = load_now()
    folder = options.output or REPOSITORY / "docs"
    if load > QUIET and not options.output and not options.any_load:
        folder = CACHE / "out"
        say(f"load {load:.1f} before the run: these figures are not published (--any-load does it all the same)")
    try:
        for results in _measure(
            sizes, options.rounds or (2 if options.quick else 5), options.quick, options.only, load
        ):
            page.write(results, folder)
            say(f"written: {folder / page.PAGE} and {folder / page.FOLDER}")
    except (BenchError, TimeoutError) as error:
        print(f"bench: this server could not be measured: {' '.join(str(error).split())[:600]}", file=sys.stderr)
        return 1
    return 0


def _measure(sizes: list[int], rounds: int, quick: bool, only: list[str], load: float) -> Iterator[Results]:
    """What is known after each size, before its folder is removed, which takes long for many skills."""
    there, left_out = subjects.gather(only)
    requests = 50 if quick else 200
    size = max((each for each in sizes if each <= 1000), default=sizes[0])
    with Skills(10, there[0]) as skills:  # so that nobody's first round is the first on this machine
        list(run(skills, there, eras=ERAS, transport=STDIO, rounds=1, requests=1))
    about: dict[str, Any] = {
        "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}, {_node()}",
        "load": load,
        "rounds": rounds,
    }
    series: list[Series] = []
    asked = there
    for each, following in pairwise([*sizes, sizes[-1]]):
        with Skills(each, there[0]) as skills:
            eras = ERAS if each == size else ERAS[1:]
            times = rounds if each <= size else min(rounds, 3)
            found = list(run(skills, asked, eras=eras, transport=STDIO, rounds=times, requests=requests))
            if each == size:
                series += run(skills, asked, eras=ERAS[1:], transport=HTTP, rounds=times, requests=requests)
            series += found
            asked = patient(asked, found, following / each)
            shown = [one for one in there if any(visits.subject == one.key for visits in series)]
            yield Results({**about, "load_after": load_now()}, size, shown, left_out, series)


def _node() -> str:
    try:
        return f"Node {subprocess.check_output([node(), '--version'], text=True).strip().removeprefix('v')}"
    except MissingError:
        return "no Node"


if __name__ == "__main__":
    sys.exit(main())
