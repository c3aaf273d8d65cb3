"""`make soak`: real servers under concurrent edits, clients and kills, for minutes, and checks of their state.

One server alone, replicas with one Redis (one of which is never killed), all on one folder. Writers edit, add,
rename and remove; clients of both eras connect and leave; servers and Redis are killed at random and restarted. At
quiet moments every client must be up to date, each file must match its digest, and processes are measured.
Exits with 1 if a byte was wrong, a notification, session or response was lost, or a process grew. The printed seed
repeats the same random choices, but not their timing.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

from tools.pages import table
from tools.soak.clients import ERAS, QUIET_S, Follower, Judge, run_tool_session, visit, write
from tools.soak.world import NEVER, Deployment

from shared.redis_servers import redis_server


def run(soak: Deployment, minutes: float, rng: random.Random) -> Judge:
    """Alternate disturbances and quiet moments until the time is over."""
    gate, end = soak.gate, monotonic() + minutes * 60
    followers = [Follower(target, era, soak) for target in soak.targets for era in ERAS]
    judge = Judge(soak, followers)
    works = ((write, 0.3), (write, 0.3), (visit, 0.2), (visit, 0.2), (run_tool_session, 0.3))
    threads: list[threading.Thread] = [*followers]
    for number, (work, most_s) in enumerate(works):
        threads.append(threading.Thread(target=_repeat, args=(soak, work, number, most_s), daemon=True))
    for thread in threads:
        thread.start()
    while monotonic() < end:
        stint = min(end, monotonic() + rng.uniform(10, 25))
        while monotonic() < stint:
            soak.kill_random(rng)
            NEVER.wait(rng.uniform(0.5, 6))
        with gate.quiet():
            judge.judge()
        soak.score.add("quiet moments")
        print(f"soak: {max(0, end - monotonic()):.0f} s to go, {len(soak.score.failures)} failures", file=sys.stderr)
    gate.over.set()
    for thread in threads:
        thread.join(QUIET_S)
    return judge


def _repeat(soak: Deployment, work: Callable[[Deployment, random.Random], None], number: int, most_s: float) -> None:
    rng = random.Random(f"{soak.seed} {number}")
    while not soak.gate.over.is_set():
        with soak.gate.turn():
            try:
                work(soak, rng)
            except Exception as error:  # keep the thread alive
                soak.score.fail(f"{work.__name__}: {error!r}")
        soak.gate.over.wait(rng.random() * most_s)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make soak", description="Run servers under edits, clients and kills, for minutes."
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="repeat the random choices of a run")
    options = parser.parse_args()
    if shutil.which("redis-server") is None:
        print("soak: there is no redis-server on PATH; install it", file=sys.stderr)
        return 2
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"soak: {options.minutes:g} minutes, --seed {seed}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="skills-soak-") as scratch, ExitStack() as stack:
        for variable in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
            os.environ[variable] = str(Path(scratch, variable))
        soak = Deployment(Path(scratch).resolve(), seed)
        soak.start(stack.enter_context(redis_server(Path(scratch, "redis"))), stack)
        judge = run(soak, options.minutes, random.Random(seed))
    rows = judge.memory_table()
    score = soak.score
    print(table([("what", "count"), *((what, f"{count:,}") for what, count in sorted(score.counts.items()))], {1}))
    print()
    print(
        table(
            [("process", "quiet moments", "MB then", "MB at the end", "descriptors then", "at the end"), *rows],
            range(1, 6),
        )
    )
    if not score.counts["quiet moments"] or not score.counts["reads that match their digest"]:
        score.fail("nothing was verified; give it more minutes")
    print(f"\nafter the last edit all clients were up to date within {score.slowest:.2f} s")
    print(f"{len(score.failures)} failures")
    return 1 if score.failures else 0


if __name__ == "__main__":
    sys.exit(main())
