"""What workers keep for each other: whole records or none, of a bounded size, whatever the disk does."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from mcp_skills_server.web.workers.records import Records, read_records

pytestmark = pytest.mark.skipif(os.name == "nt", reason="there are no workers on Windows")


def test_what_was_put_last_into_each_slot_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "runs_0")
    assert [*read_records(path)] == []
    records = Records(path)
    records.put(0, ("a", 1.5, None))
    records.put(2, ("c", ("d", "\udcff ü \n"), True))  # a path may hold bytes that are no UTF-8
    records.put(0, ("b", 2))
    assert [*read_records(path)] == [["b", 2], ["c", ["d", "\udcff ü \n"], True]]
    assert os.stat(path).st_mode & 0o777 == 0o600
    Records(path)
    assert [*read_records(path)] == []


def test_a_record_that_is_too_long_is_shortened_and_touches_no_other(tmp_path: Path) -> None:
    path = str(tmp_path / "runs_0")
    records = Records(path)
    for slot in (0, 1):
        records.put(slot, ("short", slot))
    records.put(0, ("\x00" * 5000, ("ü" * 5000, "kept"), 7))
    assert [*read_records(path)] == [["\x00" * 40 + "…", ["ü" * 40 + "…", "kept"], 7], ["short", 1]]


def test_what_is_not_whole_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "runs_0"
    records = Records(str(file))
    for slot in range(3):
        records.put(slot, ("text", slot))
    raw = file.read_bytes()
    for size in range(0, len(raw), 5):
        file.write_bytes(raw[:size])
        assert [*read_records(str(file))] == [["text", slot] for slot in range(_whole(raw, size))]
    file.write_bytes(raw.replace(b'"text",1', b'"test",1'))
    assert [*read_records(str(file))] == [["text", 0], ["text", 2]]


def _whole(raw: bytes, size: int) -> int:
    """How many records are whole in so much of a file."""
    ends = [raw.index(f'["text",{slot}]'.encode()) + len('["text",0]') for slot in range(3)]
    return sum(each <= size for each in ends)


def test_a_reader_never_sees_half_of_two_records(tmp_path: Path) -> None:
    path, done = str(tmp_path / "runs_0"), threading.Event()
    records = Records(path)

    def write() -> None:
        for number in range(3000):
            records.put(0, (str(number % 10) * 1500,))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        for (text,) in read_records(path):
            assert len(text) == 1500 and len({*text}) == 1
    writer.join()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no disk that is full")
def test_a_full_disk_is_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    Records("/dev/full").put(0, ("a",))
    assert "/dev/full: cannot be written (No space left on device); make space there" in caplog.text
