"""Where a directory's times tell of its names: what the table of mounts says of the nearest one."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_skills_server.catalog.mounts import timed_device

LINE = "36 35 98:0 / {} rw,noatime shared:1 master:2 - {} /dev/x rw,errors=continue\n"


@pytest.mark.parametrize(
    ("mounts", "timed"),
    [
        ([("/", "ext4")], True),
        ([("/", "overlay")], True),
        ([("/", "9p")], False),
        ([("/", "ext4"), ("{here}", "nfs4")], False),
        ([("{here}", "btrfs"), ("/", "fuse.sshfs")], True),
        ([("{here}", "ext4"), ("{here}", "cifs")], False),  # the last one lies on top
        ([("/", "ext4"), ("{here}/below", "nfs")], True),
        ([("/", "xfs"), ("{here}-other", "virtiofs")], True),
        ([("/", "vfat"), ("{here}\\040and\\040more", "ext4")], False),
        ([], False),
    ],
)
def test_the_nearest_mount_counts(tmp_path: Path, mounts: list[tuple[str, str]], timed: bool) -> None:
    here = tmp_path / "a folder"
    here.mkdir()
    table = tmp_path / "mountinfo"
    escaped = str(here).replace(" ", "\\040")
    table.write_text("".join(LINE.format(place.format(here=escaped), kind) for place, kind in mounts))
    assert timed_device(str(here), str(table)) == (here.stat().st_dev if timed else None)


@pytest.mark.parametrize("text", ["", "36 35", "36 35 98:0 / / rw", "\x00" * 99, "1 2 3 4 5 - \n"])
def test_a_table_that_means_nothing_says_no(tmp_path: Path, text: str) -> None:
    (tmp_path / "mountinfo").write_text(text)
    assert timed_device(str(tmp_path), str(tmp_path / "mountinfo")) is None


def test_so_does_one_that_is_not_there_and_a_root_that_is_gone(tmp_path: Path) -> None:
    assert timed_device(str(tmp_path), str(tmp_path / "none")) is None
    table = tmp_path / "mountinfo"
    table.write_text(LINE.format("/", "ext4"))
    assert timed_device(str(tmp_path / "gone"), str(table)) is None
