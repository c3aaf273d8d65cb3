"""A host's file as it is read and replaced, by itself; the commands have tests of what comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.hosts import disk


def test_a_file_of_sixteen_mib_is_read_and_none_that_is_larger(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(16 << 20)
        found = disk.read(path)
        assert found.raw is not None and len(found.raw) == 16 << 20
        file.truncate((16 << 20) + 1)
    with pytest.raises(UsageError, match="larger than 16 MiB"):
        disk.read(path)


def test_what_is_replaced_is_kept_once_and_no_other_copy_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.json"
    assert disk.replace(disk.read(path), b"one") is None
    kept = [disk.replace(disk.read(path), new) for new in (b"two", b"one", b"three", b"one", b"four")]
    names = ["config.json.bak", "config.json.bak.1", "config.json.bak", "config.json.bak.2", "config.json.bak"]
    assert kept == [path.with_name(name) for name in names]
    contents = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    assert contents == {
        "config.json": b"four",
        "config.json.bak": b"one",
        "config.json.bak.1": b"two",
        "config.json.bak.2": b"three",
    }


def test_a_file_that_changed_since_it_was_read_stays(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"old")
    found = disk.read(path)
    path.write_bytes(b"of somebody else")
    with pytest.raises(UsageError, match="it changed while it was edited"):
        disk.replace(found, b"ours")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("config.json", b"of somebody else")]
