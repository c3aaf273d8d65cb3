"""`make interop`: check the server with independent referees, on fixtures/skills.

Installs pinned referees below `.interop/`, runs each against a real server in both protocol eras over HTTP and stdio,
some in parallel, and counts every check itself: a referee that skips its checks still reports "passed". Checks that are
expected to fail are listed in tests/interop/expected-failures.yaml, each with a reason.

Exits with 1 after an unexpected result. Without npm, or if an installation fails, it prints the reason and exits with
0.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import yaml
from tools.interop.referees import (
    MAY_SKIP,
    base_suite,
    client,
    inspector,
    installed_by_vercel,
    libraries,
    skills_scenarios,
    skillsaw,
)
from tools.interop.schema import VERSION, schema_checks
from tools.interop.setup import (
    BROKEN,
    CONFORMANCE,
    ERAS,
    HERE,
    INSPECTOR,
    PACKAGES,
    PYTHON_PACKAGES,
    SKILLSAW,
    VERCEL,
    RefereeError,
    install,
    install_python,
    server_checks,
    serving,
    unavailable,
)
from tools.interop.verdicts import Baseline, Check, Verdict, judge, read_baseline
from tools.pages import table


def summary(rows: Sequence[tuple[Run, Verdict]]) -> str:
    head = ("referee", "version", "era", "transport", "passed", "failed", "warned", "skipped", "expected", "UNEXPECTED")
    lines: list[Sequence[str]] = [head]
    for run, verdict in rows:
        counts = verdict.counts
        other = sum(counts.values()) - sum(counts[each] for each in ("SUCCESS", "INFO", "WARNING", "SKIPPED"))
        numbers = (counts["SUCCESS"], other, counts["WARNING"], counts["SKIPPED"], verdict.expected)
        shown = (*map(str, numbers), str(len(verdict.unexpected)))
        lines.append((run.referee, run.version, run.era, run.transport, *shown))
    return table(lines, right=range(4, len(head)))


def report(rows: Sequence[tuple[Run, Verdict]]) -> int:
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


_AT_ONCE: Final = (os.cpu_count() or 1) + 1
"""Referees that run in parallel: each waits for the server half of its time."""


@dataclass(frozen=True, slots=True)
class Run:
    """One row of the table: a referee in one era over one transport."""

    referee: str
    version: str
    era: str
    transport: str
    suite: str
    work: Callable[[], list[Check]]


def runs(url: str, pythons: Mapping[str, Path]) -> Iterator[Run]:
    number = PACKAGES[CONFORMANCE]
    for era in ERAS:
        yield Run("conformance, skills", number, era, "http", f"skills {era}", partial(skills_scenarios, url, era))
    for era in ERAS:
        yield Run(f"conformance, base {ERAS[era]}", number, era, "http", ERAS[era], partial(base_suite, url, era))
    pairs = [(transport, address, era) for transport, address in (("http", url), ("stdio", None)) for era in ERAS]
    for transport, address, era in pairs:
        yield Run("Inspector", PACKAGES[INSPECTOR], era, transport, "inspector", partial(inspector, era, address))
    for transport, address, era in pairs:
        yield Run("schema of the extension", VERSION, era, transport, "schema", partial(schema_checks, era, address))
    for site, address in (("live", url), ("static", None)):
        work = partial(installed_by_vercel, address)
        yield Run("skills (Vercel)", PACKAGES[VERCEL], "discovery", site, "vercel", work)
    if SKILLSAW in pythons:
        work = partial(skillsaw, pythons[SKILLSAW])
        yield Run("skillsaw", PYTHON_PACKAGES[SKILLSAW][1], "SKILL.md", "files", SKILLSAW, work)
    clients = list(libraries(pythons))
    for each in clients:
        for transport, address, era in pairs:
            if era in each.eras and not (address and each.serve):
                yield Run(each.name, each.version, era, transport, each.suite, partial(client, each, era, address))
    # The valid skills must be visible beside skills with every kind of problem.
    for each in clients:
        if each.serve or each.starts_often:  # the latter would take minutes
            continue
        era = each.eras[0]
        work = partial(client, each, era, None, BROKEN)
        yield Run(f"{each.name}, broken skills", each.version, era, "stdio", f"broken {each.suite}", work)


def perform(run: Run) -> list[Check]:
    """Return the checks of a run, or one failure if the referee does not work."""
    try:
        return run.work()
    except (RefereeError, ValueError, KeyError, OSError) as error:
        return [Check(run.era, "ran", "FAILURE", f"{type(error).__name__}: {error}")]


def judged(pythons: Mapping[str, Path], baseline: Baseline) -> list[tuple[Run, Verdict]]:
    """Perform and judge every run in parallel, with one server for all runs over HTTP.

    Raises:
        RefereeError: the server does not start.
    """

    def judge_one(run: Run) -> tuple[Run, Verdict]:
        may_skip = MAY_SKIP[run.era] if run.suite.startswith("skills ") else frozenset[str]()
        return run, judge(run.suite, perform(run), baseline, may_skip)

    log: list[str] = []
    with serving(log) as url, ThreadPoolExecutor(_AT_ONCE, "referee") as pool:
        rows = list(pool.map(judge_one, runs(url, pythons)))
    own = Run("our server", "", "both", "http", "server", lambda: server_checks(log))
    return [*rows, (own, judge("server", perform(own), baseline))]


def main() -> int:
    """Run every referee and print the results; return 1 if one is unexpected."""
    parser = argparse.ArgumentParser(
        prog="tools.interop", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--install", action="store_true", help="only install the referees")
    options = parser.parse_args()
    if reason := unavailable():
        print(f"interop: skipped, {reason}")
        return 0
    begun = time.monotonic()
    baseline = read_baseline(yaml.safe_load((HERE / "expected-failures.yaml").read_text(encoding="utf-8")))
    pythons: dict[str, Path] = {}
    with ThreadPoolExecutor(1 + len(PYTHON_PACKAGES)) as pool:
        packages = pool.submit(install)
        environments = {suite: pool.submit(install_python, suite) for suite in PYTHON_PACKAGES}
    try:
        packages.result()
    except RefereeError as error:
        print(f"interop: skipped, the referees cannot be installed: {error}")
        return 0
    for suite, environment in environments.items():
        try:
            pythons[suite] = environment.result()
        except RefereeError as error:
            print(f"interop: {suite} is skipped: {error}")
    installed = time.monotonic() - begun
    if options.install:
        print(f"interop: installed, {installed:.0f} s")
        return 0
    try:
        unexpected = report(judged(pythons, baseline))
    except RefereeError as error:
        print(f"interop: {error}")
        return 1
    spent = os.times()
    took = f"{time.monotonic() - begun:.0f} s, of them {installed:.0f} s to install"
    processors = f"{spent.children_user + spent.children_system:.0f} s of processors"
    print(f"interop: {took}; {processors}; {unexpected} unexpected")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
