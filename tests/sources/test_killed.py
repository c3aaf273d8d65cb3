"""A process that is killed at any moment leaves whole skills or none, and the next one finishes the work."""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from forkserver import Popen, run
from mcp_skills_server.format import archive
from mcp_skills_server.format.archive import Files
from sources.publishers import Asked, Publisher, Route, answer, skill_md
from wire import COMMAND, DEADLINE

SKILLS = 24
KILLS = 24


def version(name: str, number: int) -> Files:
    """The files of a skill in one of its versions; no two versions share one."""
    said = f"This is version {number}.\n".encode()
    files = {"SKILL.md": (skill_md(name, f"Version {number}."), False)}
    for path in ("references/rules.md", "references/deep/more.md", f"assets/only-in-{number}.bin", "scripts/run.sh"):
        files[path] = (path.encode() + b" " + said * 200, path.endswith(".sh"))
    return files


def found(place: Path) -> Files:
    return {
        path.relative_to(place).as_posix(): (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in place.rglob("*")
        if not path.is_dir()
    }


class Round:
    """One fetch that is killed while its k-th artifact is served, or once some skills are in their places."""

    def __init__(self, site: Publisher, place: Path, number: int, dice: random.Random) -> None:
        self._left = dice.randrange(1, SKILLS + 1)
        self._half = dice.random() < 0.3
        self._wanted = 0 if self._half else dice.randrange(SKILLS + 1)
        self._dawdle = dice.randrange(1000)
        self._due = threading.Event()
        self._lock = threading.Lock()
        for skill in range(SKILLS):
            name = f"skill-{skill}"
            raw = archive.pack(version(name, number))[1]
            site.add(name, raw, route=self._route(raw))
        self._arguments = [*COMMAND, "fetch", site.url, "--output", str(place), "--allow-private"]
        self._place = place

    def _route(self, raw: bytes) -> Route:
        def route(_: Asked) -> Iterator[bytes]:
            said = answer(raw)
            with self._lock:
                self._left -= 1
                mine = self._left == 0
            if mine and self._half:
                yield said[: len(said) // 2]
                self._due.set()
            yield said[len(said) // 2 if mine and self._half else 0 :]
            if mine:
                self._due.set()

        return route

    def _places(self) -> set[tuple[str, int]]:
        """Each skill that is there, and which directory it is."""
        with suppress(FileNotFoundError), os.scandir(self._place) as entries:
            return {(each.name, each.inode()) for each in entries if each.name != ".mcp-skills"}
        return set()

    def run(self) -> None:
        before = self._places()
        process = Popen(self._arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            assert self._due.wait(DEADLINE)
            until = time.monotonic() + DEADLINE
            while len(self._places() - before) < self._wanted and process.poll() is None:
                assert time.monotonic() < until
            for _ in range(0 if self._half else self._dawdle):  # from nothing to some milliseconds
                os.path.exists(self._place)
        finally:
            process.kill()
            process.wait()


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
def test_every_skill_is_whole_after_a_kill_at_any_moment(tmp_path: Path) -> None:
    dice = random.Random(5)
    place = tmp_path / "skills"
    outcomes: set[tuple[int, ...]] = set()
    with Publisher() as site:
        for number in range(KILLS):
            Round(site, place, number, dice).run()
            seen: list[int] = []
            for name in sorted(os.listdir(place)):
                if name != ".mcp-skills":
                    files = found(place / name)
                    whole = [each for each in range(number + 1) if files == version(name, each)]
                    assert len(whole) == 1, f"{name} after kill {number}: {sorted(files)}"
                    seen.append(number - whole[0])
            outcomes.add(tuple(seen))
            assert os.listdir(tmp_path) == ["skills"]
        assert len(outcomes) > 3  # it was not killed at the same point every time
        arguments = [*COMMAND, "fetch", site.url, "--output", str(place), "--allow-private"]
        for _ in range(2):
            done = run(arguments, capture_output=True, text=True, check=False, timeout=DEADLINE)
            assert done.returncode == 0, done.stderr
        assert f"{SKILLS} unchanged (0 bytes downloaded)" in done.stderr
        for skill in range(SKILLS):
            assert found(place / f"skill-{skill}") == version(f"skill-{skill}", KILLS - 1)
        assert not os.listdir(place / ".mcp-skills" / "stage")
