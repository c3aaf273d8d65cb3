"""Host configuration files on disk: size limit and owner."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.hosts.disk import read, replace


def test_file_of_16_mib_is_the_largest(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.touch()
    os.truncate(path, 16 << 20)
    assert len(read(path).raw or b"") == 16 << 20
    os.truncate(path, (16 << 20) + 1)
    with pytest.raises(UsageError, match="larger than 16 MiB; name"):
        read(path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_file_and_backup_keep_their_owner(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"{}")
    os.chown(path, 1000, 1001)
    backup = replace(read(path), b"new")
    assert backup is not None
    assert {(each.stat().st_uid, each.stat().st_gid) for each in (path, backup)} == {(1000, 1001)}
