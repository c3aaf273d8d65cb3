"""What must hold when all is quiet."""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final

from tools.soak.clients import ERAS, Follower
from tools.soak.deployment import FIXED, LOST, PAUSE, Deployment, Target

from web.http_wire import HttpClient, client, proved
from wire import Era

QUIET_S: Final = 30.0
"""Seconds within which, after the last edit, everybody must know what is there and every process is back."""
MOST_GROWTH: Final = 16 << 20
"""Bytes by which a process may be larger at its last quiet moment than after a third of its own."""
MOST_DESCRIPTORS: Final = 8


class Judge:
    """What must hold, and the weights of processes at each quiet moment."""

    def __init__(self, soak: Deployment, followers: list[Follower]) -> None:
        self.soak, self.followers = soak, followers
        self.weights: defaultdict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)

    def judge(self) -> None:
        """All is quiet: everybody knows everything, each byte is proved, sessions begin, and processes are weighed."""
        truth, began = self.soak.folder.truth(), monotonic()
        behind = [*self.followers]
        while behind and monotonic() < began + QUIET_S:
            PAUSE.wait(0.02)
            behind = [each for each in behind if each.known != truth]
            if not behind:
                self.soak.score.slowest = max(self.soak.score.slowest, monotonic() - began)
        for each in behind:
            self.soak.score.fail(
                f"a notice was lost: {each.era} at {each.target.name} does not know of {_apart(each, truth)}"
            )
        for target in self.soak.targets:
            for era in ERAS:
                self._prove(target, era, truth)
        for target in self.soak.targets[1:]:
            self._begins(target, began + QUIET_S)
        for target in self.soak.targets:
            for pid in target.processes():
                with suppress(OSError):
                    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
                    self.weights[target.name, pid].append((pages * os.sysconf("SC_PAGE_SIZE"), descriptors))

    def _prove(self, target: Target, era: Era, truth: dict[str, str]) -> None:
        try:
            with client(target.server, era) as one:
                entries = one.every_skill()
                if {each["uri"]: each["digest"] for entry in entries for each in entry["resources"]} != truth:
                    self.soak.score.fail(f"{target.name} lists by {era} what is not there")
                self.soak.score.add("reads proved by their digest", sum(proved(one, entry) for entry in entries))
                if era == "legacy":
                    one.delete()
        except LOST as error:
            self.soak.score.fail(f"while all was quiet, {target.name} by {era}: {error!r}")

    def _begins(self, target: Target, until: float) -> None:
        call = {"name": "skills_load", "arguments": {"names": [FIXED]}}
        while True:
            with suppress(*LOST):
                if not HttpClient(target.server, "modern").request("tools/call", call).get("isError"):
                    return
            if monotonic() > until:
                self.soak.score.fail(f"{target.name} begins no session though Redis is there")
                return
            PAUSE.wait(0.1)

    def weigh(self) -> list[tuple[str, ...]]:
        """A row for each process that lived long enough, and a failure for each that grew."""
        rows: list[tuple[str, ...]] = []
        for (name, pid), seen in self.weights.items():
            if len(seen) < 3:
                continue
            (first, held), (last, holds) = seen[len(seen) // 3], seen[-1]
            rows.append((name, str(len(seen)), f"{first / 1e6:.1f}", f"{last / 1e6:.1f}", str(held), str(holds)))
            if last - first > MOST_GROWTH or holds - held > MOST_DESCRIPTORS:
                self.soak.score.fail(f"{name} ({pid}) grew: {first:,} to {last:,} bytes, {held} to {holds} descriptors")
        return rows


def _apart(follower: Follower, truth: dict[str, str]) -> str:
    known = follower.known
    uris = [uri for uri in {*known, *truth} if known.get(uri) != truth.get(uri)]
    return f"{len(uris)} of {len(truth)} files, such as {sorted(uris)[:3]}"
