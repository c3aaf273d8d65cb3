"""Exhausted file descriptors over stdio: a request that needs one fails, and later ones succeed.

Connections over HTTP need descriptors, too: see tests/web/test_crowds.py.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from wire import Wire, WireError, serving, write_skill

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sets the limit of another process")

NOTES = "skill://alpha/notes.md"


@contextmanager
def no_descriptors(pid: int) -> Iterator[None]:
    """Let the process open no file while the context is active."""
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    # Below the open descriptors, so that no gap among their numbers can be used.
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def names(wire: Wire) -> set[str]:
    return {skill["uri"].split("/")[-2] for skill in wire.every_skill()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A root of two skills."""
    write_skill(tmp_path / "alpha", notes_md="notes")
    write_skill(tmp_path / "beta")
    return tmp_path


def test_unopenable_file_fails_its_request_only(folder: Path) -> None:
    with serving(folder, "--no-watch", era="modern") as wire:
        wire.every_skill()  # computes the digests, without which a skill is left out
        assert not wire.call("skills_load", names=["alpha"]).get("isError")  # imports late modules
        with no_descriptors(wire.process.pid):
            for uri in (NOTES, "skill://beta/SKILL.md"):
                with pytest.raises(WireError):
                    wire.request("resources/read", {"uri": uri})
            assert wire.call("skills_load", names=["beta"])["isError"] is True
            assert names(wire) == {"alpha", "beta"}
        assert wire.request("resources/read", {"uri": NOTES})["contents"][0]["text"] == "notes"
        wire.wait_for_log(b"Too many open files")
    assert b"Traceback" not in wire.stderr


def test_unreadable_edit_is_found_once_it_is_readable(folder: Path) -> None:
    with serving(folder, "--poll", era="legacy") as wire:
        wire.every_skill()
        with no_descriptors(wire.process.pid):
            write_skill(folder / "alpha", description="Another.", notes_md="notes")
            assert names(wire) == {"alpha", "beta"}
        write_skill(folder / "gamma")
        wire.until("notifications/skills/list_changed")
        assert names(wire) >= {"alpha", "beta", "gamma"}
        (alpha,) = (each for each in wire.every_skill() if "/alpha/" in each["uri"])
        assert alpha["frontmatter"]["description"] == "Another."
    assert b"Traceback" not in wire.stderr
