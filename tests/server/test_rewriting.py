"""A file that is rewritten without end: its skill is never missing and never unknown, and no bytes belie a digest."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tables import each_row
from wire import Wire, WireError, serving, write_skill

_EVERY_S = 0.002


def truncate(place: Path, text: str) -> None:
    """As a plain write does it, in two steps, with a broken file between them."""
    with place.open("w") as file:
        file.write(text[:20])
        file.flush()
        time.sleep(_EVERY_S / 4)  # the writer's own pace, nothing that a test waits for
        file.write(text[20:])


def rename(place: Path, text: str) -> None:
    """As a careful editor does it."""
    place.with_name(".new").write_text(text)
    place.with_name(".new").rename(place)


def unlink(place: Path, text: str) -> None:
    """As some editors do it: for a moment there is no such file."""
    place.unlink()
    place.write_text(text)


@contextmanager
def rewritten(work: Callable[[Path, str], None], skill: Path, every_s: float = _EVERY_S) -> Iterator[list[int]]:
    """Rewrite the files of a skill, each time with another length; yields how often that was done so far."""
    stop, done = threading.Event(), [0]

    def go_on() -> None:
        while not stop.wait(every_s):
            done[0] += 1
            body = "# Busy\n\n" + "x" * (done[0] % 500) + "\n"
            work(skill / "SKILL.md", "---\nname: busy\ndescription: Is rewritten all the time.\n---\n\n" + body)
            work(skill / "guide.md", body)

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()


def answers(wire: Wire, uri: str) -> bool:
    """Whether each of the four questions shows the skill; the instructions alone may be refused for the moment."""
    assert {each["uri"] for each in wire.request("skills/list")["skills"]} == {uri, "skill://calm/SKILL.md"}
    assert wire.request("skills/get", {"uri": uri})["skill"]["frontmatter"]["name"] == "busy"
    assert wire.request("resources/list")["resources"][0]["uri"] == uri
    try:
        instructions = wire.request("skills/get", {"name": "busy"})["instructions"]
    except WireError as error:
        instructions = str(error)
    if "is being changed or cannot be read" in instructions:
        return False
    assert instructions.startswith("# Busy")
    return True


@each_row("work", [truncate, rename, unlink])
def test_a_rewritten_skill_is_never_missing(tmp_path: Path, work: Callable[[Path, str], None]) -> None:
    busy, uri = write_skill(tmp_path / "busy", body="# Busy\n", guide_md="x"), "skill://busy/SKILL.md"
    write_skill(tmp_path / "calm")
    with serving(tmp_path) as wire:
        assert answers(wire, uri)
        with rewritten(work, busy) as done:
            answered: list[bool] = []
            while len(answered) < 100 or done[0] < 150:
                answered.append(answers(wire, uri))
        assert any(answered) and wire.process.poll() is None


@pytest.mark.requirement("S40-18", "X-7")
@each_row("work", [truncate, rename])
def test_what_is_served_has_a_listed_digest(tmp_path: Path, work: Callable[[Path, str], None]) -> None:
    """What is read was listed just before the read, or is listed just after it."""
    busy = write_skill(tmp_path / "busy", body="# Busy\n", guide_md="x")
    with serving(tmp_path) as wire:

        def listed() -> dict[str, str]:
            return {each["uri"]: each["digest"] for skill in wire.every_skill() for each in skill["resources"]}

        def is_proved(uri: str) -> bool:
            before = listed()
            try:
                raw = wire.read(uri)
            except WireError:
                return False  # it never held still; nothing was served
            after = listed()
            digest = "sha256:" + hashlib.sha256(raw).hexdigest()
            # A read between two listings that agree has no excuse; if they differ, the file changed meanwhile.
            assert digest == before[uri] or before[uri] != after[uri]
            return digest in {before[uri], after[uri]}

        with rewritten(work, busy, every_s=0.02):
            verdicts = [is_proved(uri) for _ in range(10) for uri in listed()]
            assert any(verdicts)
        assert all(is_proved(uri) for uri in listed())
