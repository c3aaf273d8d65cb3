"""No descriptor left to open a file of a skill with: that request fails, and the next one after it does not.

Over HTTP, where connections want descriptors too, this is proved in tests/web/test_crowds.py.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from wire import Era, WireError, serving, write_skill

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sets the limit of another process")

NOTES = "skill://alpha/notes.md"


@contextmanager
def none_left(pid: int) -> Iterator[None]:
    """While this lasts, the process can open nothing more."""
    highest = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    # Below what is open: a gap among the numbers is no place for another file then.
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(3, highest), before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_skill(tmp_path / "alpha", notes_md="notes")
    write_skill(tmp_path / "beta")
    return tmp_path


def test_what_cannot_be_opened_is_an_error_of_its_request_alone(folder: Path, era: Era) -> None:
    with serving(folder, "--no-watch", era=era) as wire:
        wire.every_skill()  # an entry whose digests were never computed would be left out
        call = {"name": "skills_load", "arguments": {"names": ["alpha"]}}
        assert not wire.request("tools/call", call).get("isError")  # and what it imports late is there
        with none_left(wire.process.pid):
            for uri in (NOTES, "skill://beta/SKILL.md"):
                with pytest.raises(WireError):
                    wire.request("resources/read", {"uri": uri})
            loaded = wire.request("tools/call", {"name": "skills_load", "arguments": {"names": ["beta"]}})
            assert loaded["isError"] is True
            assert {skill["uri"].split("/")[-2] for skill in wire.every_skill()} == {"alpha", "beta"}
        assert wire.request("resources/read", {"uri": NOTES})["contents"][0]["text"] == "notes"
    assert b"Too many open files" in wire.stderr and b"Traceback" not in wire.stderr


def test_an_edit_that_cannot_be_read_is_found_once_it_can(folder: Path) -> None:
    with serving(folder, "--poll", era="legacy") as wire:
        wire.every_skill()
        with none_left(wire.process.pid):
            write_skill(folder / "alpha", description="Another.", notes_md="notes")
            assert {skill["uri"].split("/")[-2] for skill in wire.every_skill()} == {"alpha", "beta"}
        write_skill(folder / "gamma")
        wire.until("notifications/skills/list_changed")
        seen = {skill["uri"].split("/")[-2]: skill["frontmatter"]["description"] for skill in wire.every_skill()}
        assert seen["alpha"] == "Another." and {"beta", "gamma"} <= seen.keys()
    assert b"Traceback" not in wire.stderr
