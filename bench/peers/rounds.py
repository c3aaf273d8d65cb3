"""Rounds of visits: every server once in each round, and first another one each time."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bench.client import ERAS, BenchError, Client, Era
from bench.generate import generate, questions
from bench.http import Load
from bench.peers.subjects import OURS, Start, Subject
from bench.peers.visit import PATIENCE_S, Setting, Visit, over_http, over_stdio

STDIO: Final = "stdio"
HTTP: Final = "http"
TOO_LONG_S: Final = 45.0
"""Whoever would take longer for the catalogue of the next size, in proportion, is not asked there."""


@dataclass(frozen=True, slots=True)
class Series:
    """The visits to one server in one era, over one transport, at one size.

    Attributes:
        subject: its key.
        era: the protocol.
        transport: `stdio` or `http`.
        size: how many skills.
        visits: the figures, one for each round.
        gave_up: why there are no more, or nothing.
    """

    subject: str
    era: Era
    transport: str
    size: int
    visits: list[Visit] = field(default_factory=list[Visit])
    gave_up: str = ""

    def as_json(self) -> dict[str, Any]:
        """For the raw figures."""
        return {
            "subject": self.subject,
            "era": self.era,
            "transport": self.transport,
            "size": self.size,
            "gave_up": self.gave_up,
            "visits": [visit.as_json() for visit in self.visits],
        }


class Skills:
    """A folder of skills and what the floors answer about it. Leaving the context removes it.

    Args:
        size: how many skills.
        subject: this server, whose answers the floors give.
    """

    def __init__(self, size: int, subject: Subject) -> None:
        self.size = size
        self._scratch = Path(tempfile.mkdtemp(prefix="skills-bench-"))
        self.root = self._scratch / "skills"
        self._kept = self._scratch / "kept"
        say(f"{size:,} skills: writing them")
        generate(self.root, size)
        self._constants = {era: self._record(subject, era) for era in ERAS}
        self.has_index = any(path.is_file() for path in self._kept.rglob("*"))

    def __enter__(self) -> Skills:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._scratch)

    def setting(self, subject: Subject, era: Era, requests: int) -> Setting:
        """What the next visit takes place among: with the cache that is kept, or an empty one."""
        cache = self._kept if subject.keeps_cache else Path(tempfile.mkdtemp(dir=self._scratch))
        return Setting(self.root, self.size, self._constants[era], requests, cache)

    def _record(self, subject: Subject, era: Era) -> Path:
        path = self._scratch / f"{era}.json"
        setting = Setting(self.root, self.size, path, 0, self._kept)
        with Client(subject.command(Start(self.root, path)), era, setting.environment, PATIENCE_S) as client:
            hello = "initialize" if era == "legacy" else "server/discover"
            answers: dict[str, Any] = {hello: client.shake_hands()}
            client.say_initialized()
            answers |= {key: client.ask(*request) for key, request in questions(self.size).items()}
        answers["skills/list"]["nextCursor"] = "x"
        answers["skills/get"] = answers["skills/get uri"]  # as the bare loop looks it up
        path.write_text(json.dumps(answers), encoding="utf-8")
        return path


def run(
    skills: Skills, subjects: Sequence[Subject], *, eras: Iterable[Era], transport: str, rounds: int, requests: int
) -> Iterator[Series]:
    """The series of all subjects that speak these eras over this transport, each visited once in each round."""
    there = [
        each for each in subjects if (skills.has_index or not each.keeps_cache) and (each.http or transport == STDIO)
    ]
    turns: list[tuple[Subject, Era]] = [(each, era) for era in eras for each in there if era in each.eras]
    if transport == HTTP:
        turns = [turn for turn in turns if turn[1] in turn[0].skills]
    series: dict[tuple[str, Era], Series] = {
        (each.key, era): Series(each.key, era, transport, skills.size) for each, era in turns
    }
    with Load() as load:
        for number in range(rounds):
            shift = number * len(turns) // rounds
            for subject, era in turns[shift:] + turns[:shift]:
                mine = series[subject.key, era]
                if mine.gave_up:
                    continue
                say(f"{skills.size:,} skills, {transport}, round {number + 1} of {rounds}: {subject.key}, {era}")
                setting = skills.setting(subject, era, requests)
                try:
                    if transport == HTTP:
                        mine.visits.append(over_http(subject, setting, load))
                    else:
                        mine.visits.append(over_stdio(subject, era, setting))
                except (BenchError, TimeoutError, OSError, ValueError, KeyError) as error:
                    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                    if subject.key == OURS:
                        raise
                    series[subject.key, era] = replace(mine, gave_up=reason)
                    say(f"{subject.key} gave up: {reason}")
    yield from series.values()


def patient(subjects: Iterable[Subject], series: Iterable[Series], times: float) -> list[Subject]:
    """Those that may be asked at a size so many times as large: this server, and who answers and is not too slow."""

    def would_take(visit: Visit) -> float:
        """Seconds: a start takes what it takes, and the rest grows with the size."""
        return (visit.cold + max(0, (visit.catalogue or 0) - visit.cold) * times) / 1e3

    bad = {
        each.subject for each in series if each.gave_up or any(would_take(visit) > TOO_LONG_S for visit in each.visits)
    }
    return [each for each in subjects if each.key not in bad or each.key.startswith(OURS)]


def load_now() -> float:
    """How busy the machine was in the last minute."""
    return os.getloadavg()[0]


def say(text: str) -> None:
    """Tell whoever waits."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
