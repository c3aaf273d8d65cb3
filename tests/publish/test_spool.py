"""Bytes set aside: they stay as long as somebody holds them, and no longer."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest

from mcp_skills_server.publish.artifacts import Spool
from tables import each_row


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_what_was_written_is_read_in_whole_and_in_parts() -> None:
    spool = Spool()
    slots = [spool.write(raw) for raw in (b"first", b"", b"second")]
    assert [slot.read() for slot in slots] == [b"first", b"", b"second"]
    assert (slots[2].read(2), slots[2].read(2, 3), slots[2].read(4, 100)) == (b"cond", b"con", b"nd")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files by /proc")
def test_a_file_goes_with_the_last_slot_in_it() -> None:
    gc.collect()
    before = open_files()
    spool = Spool(segment=10)
    slots = [spool.write(b"0123456789") for _ in range(5)]
    assert open_files() == before + 5
    del slots[:3]
    assert open_files() == before + 2
    del slots, spool
    assert open_files() == before


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files by /proc")
def test_a_file_of_mostly_waste_is_given_up_but_not_under_a_reader() -> None:
    gc.collect()
    before = open_files()
    spool = Spool(segment=100)
    slots = {str(number): spool.write(b"%10d" % number) for number in range(30)}
    kept = {key: slot for key, slot in slots.items() if int(key) % 10 == 3}
    reading = kept["3"]
    del slots
    moved = spool.tidy(kept)
    assert sorted(moved) == ["13", "23", "3"]
    kept |= moved
    assert [slot.read() for slot in kept.values()] == [b"%10d" % number for number in (3, 13, 23)]
    assert reading.read() == b"%10d" % 3
    del reading, moved
    assert open_files() == before + 1
    assert spool.tidy(kept) == {}


@each_row(("kept", "moved"), [(4, 4), (5, 0), (10, 0)])
def test_a_file_is_given_up_when_less_than_half_of_it_is_used(kept: int, moved: int) -> None:
    spool = Spool(segment=100)
    slots = {str(number): spool.write(b"%10d" % number) for number in range(10)}
    assert len(spool.tidy(dict(list(slots.items())[:kept]))) == moved


def test_a_file_that_is_still_written_to_is_not_given_up() -> None:
    spool = Spool(segment=100)
    slots = [spool.write(b"%10d" % number) for number in range(9)]
    assert spool.tidy({"0": slots[0]}) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="files in memory are Linux's")
def test_memory_serves_where_there_is_no_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(**_options: object) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("mcp_skills_server.publish.artifacts.tempfile.TemporaryFile", nowhere)
    assert Spool().write(b"kept").read() == b"kept"
