"""The approvals file: permissions, locking, atomic updates and validation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.runtime.scripts import approvals
from mcp_skills_server.runtime.scripts.approvals import Approval, read, update
from tables import each_row

PROGRAM = """
import sys
from pathlib import Path
from mcp_skills_server.runtime.scripts import approvals
approvals._LOCK_S = 0.1
approvals.update(Path(sys.argv[1]), lambda known: [*known, *known])
"""


def check_files(file: Path) -> None:
    """Check that the file and its lock are private and the only files."""
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert set(os.listdir(file.parent)) <= {"approvals.json", "approvals.json.lock"}
    assert Path(f"{file}.lock").stat().st_mode & 0o777 == 0o600


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "new" / "state" / "approvals.json"
    update(path, lambda _: [Approval("https://example.com", "thing", "sha256:0", 0.0)])
    return path


def test_update_holds_the_lock_from_read_to_write(file: Path) -> None:
    def edit(known: tuple[Approval, ...]) -> tuple[Approval, ...]:
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(file)], capture_output=True, text=True, check=False)
        assert "another process is changing it; try again" in done.stderr
        return known[:-1]

    update(file, edit)
    assert read(file) == ()


def test_failed_write_is_refused_and_leaves_no_files(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_files(file)
    before = read(file)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(UsageError, match=r"^.*No space left on device.*$"):
        update(file, lambda _: [])
    assert read(file) == before
    check_files(file)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_file_writable_by_others_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    for use in (read, lambda path: update(path, lambda known: known)):
        with pytest.raises(UsageError, match="others may write it"):
            use(file)


ENTRY = '{"version": 1, "approvals": [{"origin": "o", "skill": "s", "digest": "d", "approved_at": %s}]}'


@each_row(
    "raw",
    ["", "[]", "{}", '{"version": 2, "approvals": []}', '{"version":1,"approvals":[3]}',
     *(ENTRY % moment for moment in ("1e400", "NaN", "1e18", "-1"))],
)  # fmt: skip
def test_invalid_approvals_file_is_refused(tmp_path: Path, raw: str) -> None:
    path = tmp_path / "approvals.json"
    assert read(path) == (), "the file does not exist"
    path.write_text(ENTRY % 0)
    path.chmod(0o600)
    assert read(path)[0].day == "1970-01-01"
    path.write_text(raw)
    with pytest.raises(UsageError, match="not an approvals file"):
        read(path)


def test_oversized_or_unreadable_file_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = file.stat().st_size
    monkeypatch.setattr(approvals, "_MAX_BYTES", size)
    assert len(read(file)) == 1
    monkeypatch.setattr(approvals, "_MAX_BYTES", size - 1)
    with pytest.raises(UsageError, match=r"cannot be read \(it has more than .* bytes\); check it"):
        read(file)
    with pytest.raises(UsageError, match=r"cannot be read \(.*\); check it"):
        read(file.parent)


def test_update_through_symlink_changes_its_target(tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to("real.json")
    update(link, lambda _: [Approval("o", "s", "d", 1.0)])
    assert link.is_symlink()
    assert len(read(tmp_path / "real.json")) == len(read(link)) == 1
