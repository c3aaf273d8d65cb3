"""Bytes set aside: they are read back in whole and in parts, and their place is used again."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from mcp_skills_server.publish.artifacts import Spool


def test_what_was_written_is_read_in_whole_and_in_parts() -> None:
    spool = Spool()
    slots = [spool.write(raw) for raw in (b"first", b"", b"second")]
    assert [slot.read() for slot in slots] == [b"first", b"", b"second"]
    assert (slots[2].read(2), slots[2].read(2, 3), slots[2].read(4, 100)) == (b"cond", b"con", b"nd")


def unnamed() -> dict[str, int]:
    """The sizes of the open files that have no name."""
    found: dict[str, int] = {}
    for each in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{each}").endswith("(deleted)"):
                found[each] = os.stat(f"/proc/self/fd/{each}").st_size
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds the file by /proc")
def test_the_place_of_what_goes_is_used_again_and_no_file_has_a_name() -> None:
    before = unnamed()
    spool = Spool()
    sizes: list[int] = []
    for _ in range(4):
        slots = [spool.write(os.urandom(1 << 20)) for _ in range(8)]
        (own,) = unnamed().keys() - before.keys()
        sizes.append(unnamed()[own])
        for slot in slots:
            spool.delete(slot.row)
    assert max(sizes) < 2 * sizes[0]


def test_memory_serves_where_there_is_no_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> None:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("mcp_skills_server.publish.artifacts.tempfile.gettempdir", nowhere)
    assert Spool().write(b"kept" * 1_000_000).read(0, 4) == b"kept"
