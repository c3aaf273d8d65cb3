"""File watcher and symlinks."""

from __future__ import annotations

from pathlib import Path

from catalog.forest import DEADLINE, ChangeListener, load_registry, skills, write_files
from catalog.watched import assert_changes_noticed, edit_and_wait, has_version, watching, write_version
from mcp_skills_server.catalog.watch import Watcher

LINKS = {
    "root/.claude/skills": "root/skills",
    "root/copy": "root/skills",
    "root/skills/up": "root",  # to its own root
    "root/skills/beta/loop": "root/skills",
    "root/other": "other",
    "other/first": "root",  # from another root
    "root/big": "big",  # to a tree that is not served
    "root/broken": "nothing",
}


def test_changes_are_noticed_in_a_root_with_links(tmp_path: Path) -> None:
    root = write_files(tmp_path / "root", skills("skills/alpha", "skills/beta"))
    other = write_files(tmp_path / "other", skills("x"))
    write_files(tmp_path / "big", {f"{number}/file": "x" for number in range(50)})
    for link, target in LINKS.items():
        (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / link).symlink_to(tmp_path / target)
    with watching(root, other) as (_, listener):
        edit_and_wait(listener, other, "x", 2)
        (root / "later").symlink_to(root)
        assert_changes_noticed(listener, root, "skills/alpha", "skills/beta", "x")


def test_linked_folder_is_watched_after_it_was_replaced(tmp_path: Path) -> None:
    root = write_files(tmp_path / "root", skills("own"))
    for number, package in enumerate(("package", "next"), 1):
        write_version(tmp_path / package, "tea", number)
    (root / "tea").symlink_to(tmp_path / "package/tea")
    registry = load_registry(root)
    listener = ChangeListener(registry)
    with Watcher(registry) as watcher:
        assert watcher.armed.wait(DEADLINE)
        (tmp_path / "package").rename(tmp_path / "before")
        (tmp_path / "next").rename(tmp_path / "package")
        listener.until(has_version("tea", 2))
        for number in (3, 4):
            edit_and_wait(listener, tmp_path / "package", "tea", number)
