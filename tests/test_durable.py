"""Which files somebody else may have written."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from mcp_skills_server.durable import replace_file, untrusted_reason
from tables import each_row


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
@each_row(
    ("mode", "reason"),
    [(0o600, ""), (0o644, ""), (0o660, "is writable by other users"), (0o602, "is writable by other users")],
)
def test_what_others_may_write_is_not_trusted(tmp_path: Path, mode: int, reason: str) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(mode)
    assert untrusted_reason(path.stat()) == reason


@pytest.mark.skipif(sys.platform == "win32", reason="owners of POSIX")
@each_row(("owner", "reason"), [(0, ""), (1000, ""), (1001, "belongs to another user")])
def test_what_another_user_than_root_owns_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, owner: int, reason: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert untrusted_reason(os.stat_result((0o100600, 1, 1, 1, owner, 0, 0, 0, 0, 0))) == reason


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
@pytest.mark.parametrize("mode", [0o400, 0o600, 0o644])
def test_a_replaced_file_has_the_mode_that_is_wanted(tmp_path: Path, mode: int) -> None:
    replace_file(tmp_path / "a", b"x", mode)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode
