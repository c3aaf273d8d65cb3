"""A skill that is rewritten continuously."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dispatching import dispatching
from tables import each_row
from wire import WireError, write_skill

_PAUSE_S = 0.002


def truncate(path: Path, text: str) -> None:
    """Write in place, with an incomplete file for a moment."""
    with path.open("w") as file:
        file.write(text[:20])
        file.flush()
        time.sleep(_PAUSE_S / 4)
        file.write(text[20:])


def replace(path: Path, text: str) -> None:
    path.with_name(".new").write_text(text)
    path.with_name(".new").rename(path)


def unlink(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


@contextmanager
def rewriting(write: Callable[[Path, str], None], skill: Path, pause_s: float = _PAUSE_S) -> Iterator[list[int]]:
    """Rewrite a skill's files with varying lengths in a thread; yield its counter of rewrites."""
    stop, count = threading.Event(), [0]

    def rewrite() -> None:
        while not stop.wait(pause_s):
            count[0] += 1
            body = "# Busy\n\n" + "x" * (count[0] % 500) + "\n"
            fields = "---\nname: busy\ndescription: Is rewritten all the time.\n---\n\n"
            write(skill / "SKILL.md", fields + body)
            write(skill / "guide.md", body)

    thread = threading.Thread(target=rewrite, daemon=True)
    thread.start()
    try:
        yield count
    finally:
        stop.set()
        thread.join()


@pytest.mark.requirement("S40-18", "X-7")
@each_row("write", [truncate, replace, unlink])
def test_rewritten_skill_is_never_missing_and_its_bytes_match_a_listed_digest(
    tmp_path: Path, write: Callable[[Path, str], None]
) -> None:
    busy, uri = write_skill(tmp_path / "busy", body="# Busy\n", guide_md="x"), "skill://busy/SKILL.md"
    write_skill(tmp_path / "calm")
    with dispatching(tmp_path, watch=True) as wire:

        def has_instructions() -> bool:
            """Assert that lists and entry have the skill; return whether its instructions are readable."""
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

        def digests() -> dict[str, str]:
            resources = [each for skill in wire.every_skill() for each in skill["resources"]]
            return {each["uri"]: each["digest"] for each in resources}

        def is_listed(file: str) -> bool:
            before = digests()
            try:
                raw = wire.read(file)
            except WireError:
                return False  # the file changed during each try
            after = digests()
            digest = "sha256:" + hashlib.sha256(raw).hexdigest()
            if before.get(file) == after.get(file):  # else the file may have changed twice
                assert digest == before[file]
            return digest in {before.get(file), after.get(file)}

        with rewriting(write, busy) as count:
            readable: list[bool] = []
            while len(readable) < 100 or count[0] < 150:
                readable.append(has_instructions())
        assert any(readable)
        with rewriting(write, busy, pause_s=0.02):
            listed = [is_listed(each) for _ in range(10) for each in (uri, "skill://busy/guide.md")]
        assert any(listed)
        assert all(is_listed(each) for each in digests())
