"""File watcher and symlinks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from catalog.forest import DEADLINE, ChangeListener, load_registry, skills, write_files
from catalog.watched import assert_changes_noticed, edit_and_wait, has_version, watching, write_version
from mcp_skills_server.catalog.watch import Watcher
from tables import each_row

LINK_AND_TARGET: dict[str, Callable[[Path], tuple[Path, Path]]] = {
    "sibling, in a dot folder": lambda top: (top / "root/.claude/skills", top / "root/skills"),
    "sibling": lambda top: (top / "root/copy", top / "root/skills"),
    "to its own root": lambda top: (top / "root/skills/up", top / "root"),
    "inside a skill": lambda top: (top / "root/skills/beta/loop", top / "root/skills"),
    "into another root": lambda top: (top / "root/other", top / "other"),
    "from another root": lambda top: (top / "other/first", top / "root"),
    "to a tree that is not served": lambda top: (top / "root/big", top / "big"),
    "dangling": lambda top: (top / "root/broken", top / "nothing"),
}


@each_row("kind", LINK_AND_TARGET)
def test_changes_are_noticed_in_a_root_with_a_link(tmp_path: Path, kind: str) -> None:
    root = write_files(tmp_path / "root", skills("skills/alpha", "skills/beta"))
    other = write_files(tmp_path / "other", skills("x"))
    write_files(tmp_path / "big", {f"{number}/file": "x" for number in range(50)})
    link, target = LINK_AND_TARGET[kind](tmp_path)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
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
