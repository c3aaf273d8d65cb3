"""Followers, visitors, tool sessions and writers of a soak, and the judge of their state at quiet moments."""

from __future__ import annotations

import os
import random
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from queue import Empty
from time import monotonic
from typing import Any, Final

from tools.soak.world import CONNECTION_ERRORS, FIXED, LAG_S, NEVER, Deployment, Target, digest

from web.http_wire import HttpClient, client, verify_files
from wire import Era, WireError

ERAS: Final[tuple[Era, Era]] = ("legacy", "modern")
SKILLS_CHANGED: Final = "notifications/skills/list_changed"


class Follower(threading.Thread):
    """A client that stays connected and lists the skills again at each change notification."""

    def __init__(self, target: Target, era: Era, soak: Deployment) -> None:
        super().__init__(daemon=True)
        self.target, self.era, self._soak = target, era, soak
        self.known: dict[str, str] = {}

    def run(self) -> None:
        while not self._soak.gate.over.is_set():
            began = monotonic()
            try:
                with client(self.target.server, self.era) as connection:
                    self._follow(connection)
            except CONNECTION_ERRORS as error:
                self.known = {}
                self._soak.record_lost_response(self.target, began, f"a stream of {self.era}", error)
            NEVER.wait(0.2)

    def _follow(self, connection: HttpClient) -> None:
        stream = connection.hear()
        self._fetch(connection)
        while not self._soak.gate.over.is_set():
            received: list[Any] = []
            with suppress(Empty):
                received.append(stream.messages.get(timeout=0.5))
                while True:  # coalesce all that arrived meanwhile
                    received.append(stream.messages.get_nowait())
            if any(each is None or "method" not in each for each in received):
                raise ConnectionResetError("the stream ended")
            self._soak.score.add("notifications", len(received))
            if any(each["method"] == SKILLS_CHANGED for each in received):
                self._fetch(connection)

    def _fetch(self, connection: HttpClient) -> None:
        entries = connection.every_skill()
        self.known = {each["uri"]: each["digest"] for entry in entries for each in entry["resources"]}


def write(soak: Deployment, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 1, 5))):
        soak.score.add(f"files: {soak.folder.edit(rng.choice('ab'), rng)}")


def visit(soak: Deployment, rng: random.Random) -> None:
    """Connect, list, read, perhaps listen, and leave with or without ending the session."""
    target, era, began = rng.choice(soak.targets), rng.choice(ERAS), monotonic()
    try:
        with client(target.server, era) as connection:
            if rng.random() < 0.3:
                connection.hear()
            entries = connection.every_skill()
            for entry in rng.sample(entries, min(3, len(entries))):
                _read(soak, connection, rng.choice(entry["resources"]), began)
            if era == "legacy" and rng.random() < 0.5:
                connection.delete()
        soak.score.add(f"short connections, {era}")
    except CONNECTION_ERRORS as error:
        soak.record_lost_response(target, began, f"a visit by {era}", error)


def _read(soak: Deployment, connection: HttpClient, resource: dict[str, Any], began: float) -> None:
    uri = resource["uri"]
    if resource["digest"] not in soak.folder.written_digests(uri):
        soak.score.fail(f"the listing of {uri} has a digest that no writer wrote")
    try:
        raw = connection.read(uri)
    except WireError as error:
        if not soak.folder.changed_since(uri, began - LAG_S):
            raise
        soak.score.add(f"reads of a file that just changed: {error.code}")
        return
    if digest(raw) == resource["digest"]:
        soak.score.add("reads that match their digest")
    elif digest(raw) in soak.folder.written_digests(uri) and soak.folder.changed_since(uri, began - LAG_S):
        soak.score.add("reads of a newer edition than listed")
    else:
        soak.score.fail(f"wrong bytes of {uri}: {len(raw)} bytes, {digest(raw)}")


def run_tool_session(soak: Deployment, rng: random.Random) -> None:
    """Run a session of the tools whose requests go to random replicas."""
    began, handle = monotonic(), None
    for _ in range(rng.randrange(3, 12)):
        target, sent_at = rng.choice(soak.targets[1:]), monotonic()
        connection = HttpClient(target.server, "modern")
        given = {"names": [FIXED]} if handle is None else {"session": handle, "skill": FIXED, "path": "SKILL.md"}
        call = {"name": "skills_load" if handle is None else "skills_read", "arguments": given}
        try:
            result = connection.request("tools/call", call)
        except CONNECTION_ERRORS as error:
            soak.record_lost_response(target, sent_at, "a session", error)
            continue
        if not result.get("isError"):
            handle = handle or result["structuredContent"]["session"]
            soak.score.add("session requests")
            continue
        text = result["content"][0]["text"]
        # A restarted server connects to Redis and scans before it knows the session.
        starting = target.may_lose_response(sent_at) and "Unknown session" not in text
        if soak.redis_killed_at + LAG_S >= began or starting:
            soak.score.add("session requests without Redis")
        else:
            soak.score.fail(f"a session was lost at {target.name}: {text}")
        return


QUIET_S: Final = 30.0
"""Seconds after the last edit in which all clients must have the current state and all processes run."""
MAX_GROWTH: Final = 16 << 20
"""Bytes by which a process may grow from its quiet moment at a third of its life to its last one."""
MAX_DESCRIPTORS: Final = 8


class Judge:
    """Checks the state of clients and servers, and the memory of processes, at each quiet moment."""

    def __init__(self, soak: Deployment, followers: list[Follower]) -> None:
        self.soak, self.followers = soak, followers
        self.memory: defaultdict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)

    def judge(self) -> None:
        """Check that clients are up to date, files match their digests and sessions start; measure processes."""
        current, began = self.soak.folder.current_digests(), monotonic()
        behind = [*self.followers]
        while behind and monotonic() < began + QUIET_S:
            NEVER.wait(0.02)
            behind = [each for each in behind if each.known != current]
            if not behind:
                self.soak.score.slowest = max(self.soak.score.slowest, monotonic() - began)
        for each in behind:
            self.soak.score.fail(
                f"a notification was lost: {each.era} at {each.target.name} lacks {_difference(each, current)}"
            )
        for target in self.soak.targets:
            for era in ERAS:
                self._check_listing(target, era, current)
        for target in self.soak.targets[1:]:
            self._check_session_starts(target, began + QUIET_S)
        for target in self.soak.targets:
            for pid in target.processes():
                with suppress(OSError):
                    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
                    self.memory[target.name, pid].append((pages * os.sysconf("SC_PAGE_SIZE"), descriptors))

    def _check_listing(self, target: Target, era: Era, current: dict[str, str]) -> None:
        try:
            with client(target.server, era) as connection:
                entries = connection.every_skill()
                if {each["uri"]: each["digest"] for entry in entries for each in entry["resources"]} != current:
                    self.soak.score.fail(f"{target.name} lists other files in the era {era} than exist")
                self.soak.score.add(
                    "reads that match their digest", sum(verify_files(connection, entry) for entry in entries)
                )
                if era == "legacy":
                    connection.delete()
        except CONNECTION_ERRORS as error:
            self.soak.score.fail(f"at a quiet moment, {target.name} by {era}: {error!r}")

    def _check_session_starts(self, target: Target, until: float) -> None:
        call = {"name": "skills_load", "arguments": {"names": [FIXED]}}
        while True:
            with suppress(*CONNECTION_ERRORS):
                if not HttpClient(target.server, "modern").request("tools/call", call).get("isError"):
                    return
            if monotonic() > until:
                self.soak.score.fail(f"{target.name} starts no session although Redis runs")
                return
            NEVER.wait(0.1)

    def memory_table(self) -> list[tuple[str, ...]]:
        """Return a row for each process of three quiet moments, and record a failure for each that grew."""
        rows: list[tuple[str, ...]] = []
        for (name, pid), seen in self.memory.items():
            if len(seen) < 3:
                continue
            (first, held), (last, holds) = seen[len(seen) // 3], seen[-1]
            rows.append((name, str(len(seen)), f"{first / 1e6:.1f}", f"{last / 1e6:.1f}", str(held), str(holds)))
            if last - first > MAX_GROWTH or holds - held > MAX_DESCRIPTORS:
                self.soak.score.fail(f"{name} ({pid}) grew: {first:,} to {last:,} bytes, {held} to {holds} descriptors")
        return rows


def _difference(follower: Follower, current: dict[str, str]) -> str:
    known = follower.known
    uris = [uri for uri in {*known, *current} if known.get(uri) != current.get(uri)]
    return f"{len(uris)} of {len(current)} files, such as {sorted(uris)[:3]}"
