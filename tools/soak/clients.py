"""Who asks: clients that stay and follow, clients that come and go, sessions that go on elsewhere, and writers."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from queue import Empty
from time import monotonic
from typing import Any, Final

from tools.soak.deployment import FIXED, LAG_S, LOST, PAUSE, Deployment, Target
from tools.soak.folder import digest

from web.http_wire import HttpClient, client
from wire import Era, WireError

ERAS: Final[tuple[Era, Era]] = ("legacy", "modern")
SKILLS_CHANGED: Final = "notifications/skills/list_changed"


class Follower(threading.Thread):
    """A client that stays, hears of changes, and knows only what it fetched upon them."""

    def __init__(self, target: Target, era: Era, soak: Deployment) -> None:
        super().__init__(daemon=True)
        self.target, self.era, self._soak = target, era, soak
        self.known: dict[str, str] = {}

    def run(self) -> None:
        """Until all is over."""
        while not self._soak.gate.over.is_set():
            began = monotonic()
            try:
                with client(self.target.server, self.era) as one:
                    self._follow(one)
            except LOST as error:
                self.known = {}
                self._soak.lost(self.target, began, f"a stream of {self.era}", error)
            PAUSE.wait(0.2)

    def _follow(self, one: HttpClient) -> None:
        stream = one.hear()
        self._fetch(one)
        while not self._soak.gate.over.is_set():
            heard: list[Any] = []
            with suppress(Empty):
                heard.append(stream.messages.get(timeout=0.5))
                while True:  # one fetch for all that came meanwhile
                    heard.append(stream.messages.get_nowait())
            if any(each is None or "method" not in each for each in heard):
                raise ConnectionResetError("the stream ended")
            self._soak.score.add("notices", len(heard))
            if any(each["method"] == SKILLS_CHANGED for each in heard):
                self._fetch(one)

    def _fetch(self, one: HttpClient) -> None:
        entries = one.every_skill()
        self.known = {each["uri"]: each["digest"] for entry in entries for each in entry["resources"]}


def write(soak: Deployment, dice: random.Random) -> None:
    """Some edits, one after the other."""
    for _ in range(dice.choice((1, 1, 1, 5))):
        soak.score.add(f"files: {soak.folder.edit(dice.choice('ab'), dice)}")


def visit(soak: Deployment, dice: random.Random) -> None:
    """Come, list, read, perhaps listen, and leave with or without a word."""
    target, era, began = dice.choice(soak.targets), dice.choice(ERAS), monotonic()
    try:
        with client(target.server, era) as one:
            if dice.random() < 0.3:
                one.hear()
            entries = one.every_skill()
            for entry in dice.sample(entries, min(3, len(entries))):
                _read(soak, one, dice.choice(entry["resources"]), began)
            if era == "legacy" and dice.random() < 0.5:
                one.delete()
        soak.score.add(f"clients that came and went, {era}")
    except LOST as error:
        soak.lost(target, began, f"a visit by {era}", error)


def _read(soak: Deployment, one: HttpClient, resource: dict[str, Any], began: float) -> None:
    uri = resource["uri"]
    if resource["digest"] not in soak.folder.ever(uri):
        soak.score.fail(f"the listing of {uri} has a digest that no writer wrote")
    try:
        raw = one.read(uri)
    except WireError as error:
        if not soak.folder.touched(uri, began - LAG_S):
            raise
        soak.score.add(f"reads of what had just been changed: {error.code}")
        return
    if digest(raw) == resource["digest"]:
        soak.score.add("reads proved by their digest")
    elif digest(raw) in soak.folder.ever(uri) and soak.folder.touched(uri, began - LAG_S):
        soak.score.add("reads of another edition than was listed")
    else:
        soak.score.fail(f"wrong bytes of {uri}: {len(raw)} bytes, {digest(raw)}")


def converse(soak: Deployment, dice: random.Random) -> None:
    """A session of the tools that goes on at whatever replica there is."""
    began, handle = monotonic(), None
    for _ in range(dice.randrange(3, 12)):
        target, asked = dice.choice(soak.targets[1:]), monotonic()
        one = HttpClient(target.server, "modern")
        given = {"names": [FIXED]} if handle is None else {"session": handle, "skill": FIXED, "path": "SKILL.md"}
        call = {"name": "skills_load" if handle is None else "skills_read", "arguments": given}
        try:
            result = one.request("tools/call", call)
        except LOST as error:
            soak.lost(target, asked, "a session", error)
            continue
        if not result.get("isError"):
            handle = handle or result["structuredContent"]["session"]
            soak.score.add("steps of sessions")
            continue
        text = result["content"][0]["text"]
        starting = target.excuses(asked) and "Unknown session" not in text  # its way to Redis, or the first scan
        if soak.redis_disturbed + LAG_S >= began or starting:
            soak.score.add("steps of sessions without Redis")
        else:
            soak.score.fail(f"a session was lost at {target.name}: {text}")
        return
