"""Everything that is run, in order, some at a time, and what comes of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tools.interop.baseline import Baseline, Verdict, judge
from tools.interop.checks import Check
from tools.interop.conformance import MAY_SKIP, base_suite, skills_scenarios
from tools.interop.inspector import inspector
from tools.interop.installation import CONFORMANCE, INSPECTOR, PACKAGES, VERCEL
from tools.interop.libraries import client, libraries
from tools.interop.places import BROKEN
from tools.interop.processes import RefereeError
from tools.interop.server import ERAS, server_checks, serving
from tools.interop.vercel import installed_by_vercel

_AT_ONCE: Final = (os.cpu_count() or 1) + 1
"""Referees that run side by side: each waits for the server half of its time."""


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
    """Everything that is run, in order."""
    number = PACKAGES[CONFORMANCE]
    for era in ERAS:
        yield Run("conformance, skills", number, era, "http", f"skills {era}", partial(skills_scenarios, url, era))
    for era in ERAS:
        yield Run(f"conformance, base {ERAS[era]}", number, era, "http", ERAS[era], partial(base_suite, url, era))
    pairs = [(transport, address, era) for transport, address in (("http", url), ("stdio", None)) for era in ERAS]
    for transport, address, era in pairs:
        yield Run("Inspector", PACKAGES[INSPECTOR], era, transport, "inspector", partial(inspector, era, address))
    for site, address in (("live", url), ("static", None)):
        work = partial(installed_by_vercel, address)
        yield Run("skills (Vercel)", PACKAGES[VERCEL], "discovery", site, "vercel", work)
    there = list(libraries(pythons))
    for each in there:
        for transport, address, era in pairs:
            if era in each.eras and not (address and each.serve):
                yield Run(each.name, each.version, era, transport, each.suite, partial(client, each, era, address))
    # Beside skills with every kind of problem, the good ones must still be seen.
    for each in there:
        if each.serve:
            continue
        era = each.eras[0]
        work = partial(client, each, era, None, BROKEN)
        yield Run(f"{each.name}, broken skills", each.version, era, "stdio", f"broken {each.suite}", work)


def perform(run: Run) -> list[Check]:
    """Do it; a referee that does not do its work is a failure of its own."""
    try:
        return run.work()
    except (RefereeError, ValueError, KeyError, OSError) as error:
        return [Check(run.era, "ran", "FAILURE", f"{type(error).__name__}: {error}")]


def judged(pythons: Mapping[str, Path], baseline: Baseline) -> list[tuple[Run, Verdict]]:
    """Perform and judge every run, side by side, on one server for those that come over HTTP.

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
