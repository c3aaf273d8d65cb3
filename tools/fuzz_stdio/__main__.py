"""`make fuzz-stdio`: say everything to real server processes over stdio that a client may get wrong, for minutes.

Garbage, batches, lines of 20 MB, lone surrogates, half lines, ids that stand twice, requests before and after
handshakes, two handshakes, and changes drawn by lot of what real clients say. Wanted is that no process ends, hangs,
grows or logs a bug, and that each line has the answer that JSON-RPC owes it, once. Ends with 1 otherwise; the seed
that is printed draws the same lines again.
"""

from __future__ import annotations

import argparse
import random
import sys
from time import monotonic

from tools.fuzz_stdio.conversation import LONG_S, grown, short
from tools.fuzz_stdio.lines import corpus
from tools.fuzz_stdio.server import Count, FuzzError


def main() -> int:
    """Talk for so many minutes; 1 if something was found."""
    parser = argparse.ArgumentParser(
        prog="tools.fuzz_stdio", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10, help="how long (default 10)")
    parser.add_argument("--seed", type=int, default=None, help="draw the same lines again")
    options = parser.parse_args()
    seed: int = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"fuzz-stdio: --seed {seed}", flush=True)
    dice, count, lines = random.Random(seed), Count(), corpus()
    found: list[str] = []
    end = monotonic() + options.minutes * 60
    while (left := end - monotonic()) > 0:
        try:
            if left > LONG_S and count.processes % 15 == 0:
                grown(dice, lines, LONG_S, count)
            else:
                short(dice, lines, count)
        except FuzzError as error:
            found.append(str(error))
            print(f"FOUND  process {count.processes}: {error}", flush=True)
    growth = ", ".join(f"{each / (1 << 20):+.1f}" for each in count.grown) or "none was long enough"
    print(
        f"fuzz-stdio: {count.lines:,} lines to {count.processes:,} processes, {count.answers:,} answers and "
        f"{count.notifications:,} notifications; growth in MiB: {growth}; {len(found)} found"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
