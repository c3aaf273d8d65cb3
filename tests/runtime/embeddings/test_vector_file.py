"""Vectors on disk: kept, shared by two processes, and passed over where they must not be used."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mcp_skills_server.runtime.embeddings.vector_file import VectorFile

KEY = "a" * 64
ONE = {b"1" * 32: b"\0\0\0\1" * 3}
TWO = {b"2" * 32: b"\0\0\0\2" * 3}
THREE = {b"3" * 32: b"\0\0\0\3" * 3}


@pytest.fixture
def file(tmp_path: Path) -> VectorFile:
    made = VectorFile(tmp_path / "embeddings", KEY)
    assert made.load() == {}
    made.add(ONE, {})
    made.add(TWO, ONE)
    return made


def again(file: VectorFile, key: str = KEY) -> VectorFile:
    return VectorFile(file.path.parent, key)


def test_the_next_process_finds_what_was_kept(file: VectorFile) -> None:
    assert again(file).load() == ONE | TWO
    assert again(file, "b" * 64).load() == {}


def test_two_processes_add_to_one_file(file: VectorFile) -> None:
    other = again(file)
    other.load()
    other.add(THREE, {})
    file.add({b"4" * 32: b"1234" * 3}, {})
    assert again(file).load().keys() == {digit * 32 for digit in (b"1", b"2", b"3", b"4")}


@pytest.mark.parametrize("cut", [1, 4, 20, 47])
def test_a_record_that_was_cut_is_passed_over_and_the_file_written_anew(
    file: VectorFile, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file.path.write_bytes(file.path.read_bytes()[:-cut])
    mine = again(file)
    assert mine.load() == ONE
    assert len(caplog.records) == 1
    mine.add(THREE, ONE)
    assert again(file).load() == ONE | THREE


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n",
        b"null\n",
        b"[" * 100_000,
        b"\xff\xff",
        b'{"format": 1, "dimensions": -8, "key": "' + b"a" * 64 + b'"}\n',
    ],
)
def test_a_damaged_file_is_as_good_as_none(file: VectorFile, raw: bytes) -> None:
    file.path.write_bytes(raw)
    mine = again(file)
    assert mine.load() == {}
    mine.add(TWO, {})
    assert again(file).load() == TWO


def test_a_changed_byte_is_noticed(file: VectorFile) -> None:
    raw = bytearray(file.path.read_bytes())
    raw[-10] ^= 1
    file.path.write_bytes(raw)
    assert again(file).load() == ONE


def test_what_others_may_write_is_not_believed(file: VectorFile, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    file.path.chmod(0o666)
    assert again(file).load() == {}
    assert "may be written by others" in caplog.text
    file.path.chmod(0o600)
    file.path.parent.chmod(0o777)
    assert again(file).load() == {}


def test_a_link_is_not_followed(file: VectorFile) -> None:
    moved = file.path.rename(file.path.with_name("elsewhere"))
    file.path.symlink_to(moved)
    assert again(file).load() == {}


def test_others_go_where_a_file_is_replaced(file: VectorFile) -> None:
    file.replace(THREE)
    file.add(ONE, {})
    assert again(file).load() == THREE | ONE


def test_a_folder_that_cannot_be_made_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    file = VectorFile(tmp_path / "file" / "embeddings", KEY)
    assert file.load() == {}
    file.add(ONE, {})


@pytest.mark.parametrize("dimensions", ["Infinity", "1e400", "NaN", "null", "-9", "[]"])
def test_a_header_that_means_no_number_is_passed_over(file: VectorFile, dimensions: str) -> None:
    file.path.write_text(f'{{"format": 1, "key": "{KEY}", "dimensions": {dimensions}}}\n')
    made = again(file)
    assert made.load() == {}
    made.add(ONE, {})
    assert again(file).load() == ONE
