"""A link, wherever it lies and leads, neither silences the watch nor makes it watch what is not served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from catalog.following import changes_show, edit, version, watching
from catalog.forest import DEADLINE, Told, loaded, plant, skills
from mcp_skills_server.catalog.watch import Watcher
from mcp_skills_server.catalog.watch import watcher as module
from tables import each_row

LINKS: dict[str, Callable[[Path], tuple[Path, Path]]] = {
    "beside, in a dot folder": lambda top: (top / "root/.claude/skills", top / "root/skills"),
    "beside": lambda top: (top / "root/copy", top / "root/skills"),
    "to its own root": lambda top: (top / "root/skills/up", top / "root"),
    "inside a skill": lambda top: (top / "root/skills/beta/loop", top / "root/skills"),
    "into another root": lambda top: (top / "root/other", top / "other"),
    "from another root": lambda top: (top / "other/first", top / "root"),
    "to a tree that is not served": lambda top: (top / "root/big", top / "big"),
    "to nothing": lambda top: (top / "root/broken", top / "nothing"),
}


@each_row("kind", LINKS)
def test_edits_additions_and_deletions_are_noticed_beside_a_link(tmp_path: Path, kind: str) -> None:
    root, other = (
        plant(tmp_path / "root", skills("skills/alpha", "skills/beta")),
        plant(tmp_path / "other", skills("x")),
    )
    plant(tmp_path / "big", {f"{number}/file": "x" for number in range(50)})
    link, target = LINKS[kind](tmp_path)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    with watching(root, other) as (_, seen):
        edit(other, "x", 2)
        seen.until(version("x", 2))
        (root / "later").symlink_to(root)
        changes_show(seen, root, "skills/alpha", "skills/beta", "x")


def test_a_folder_behind_a_link_is_followed_after_another_one_took_its_place(tmp_path: Path) -> None:
    root = plant(tmp_path / "root", skills("own"))
    for package in ("now", "next"):
        plant(tmp_path / package, skills("tea"))
    edit(tmp_path / "next", "tea", 2)
    (root / "tea").symlink_to(tmp_path / "now/tea")
    registry = loaded(root)
    seen = Told(registry)
    with Watcher(registry) as watcher:
        assert watcher.armed.wait(DEADLINE)
        (tmp_path / "now").rename(tmp_path / "before")
        (tmp_path / "next").rename(tmp_path / "now")
        seen.until(version("tea", 2))
        for number in (3, 4):
            edit(tmp_path / "now", "tea", number)
            seen.until(version("tea", number))


def test_links_are_looked_at_again_when_their_targets_change_but_not_while_their_root_is_away(tmp_path: Path) -> None:
    """Else the index is not saved, and edits in other roots wait as parts of a burst."""
    plant(tmp_path / "far", skills("tea"))
    link = plant(tmp_path / "root", skills("own")) / "tea"
    link.symlink_to(tmp_path / "far/tea")
    roots = loaded(tmp_path / "root").roots
    (tmp_path / "root").rename(tmp_path / "away")
    assert module._changed_links(roots) == set()
    (tmp_path / "away").rename(tmp_path / "root")
    assert module._changed_links(roots) == set()
    (tmp_path / "far").rename(tmp_path / "farther")
    assert module._changed_links(roots) == {str(link)}
