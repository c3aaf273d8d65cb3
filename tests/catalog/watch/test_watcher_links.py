"""A link, wherever it lies and leads, neither silences the watch nor makes it watch what is not served."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from catalog.following import edit, serves, version, watching
from catalog.forest import plant, skills
from tables import each_row
from wire import serving, write_skill

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
        edit(root, "skills/alpha", 2)
        seen.until(version("skills/alpha", 2))
        edit(other, "x", 2)
        seen.until(version("x", 2))
        plant(root, skills("skills/gamma"))
        seen.until(serves("skills/alpha", "skills/beta", "skills/gamma", "x"))
        shutil.rmtree(root / "skills/beta")
        seen.until(serves("skills/alpha", "skills/gamma", "x"))


def test_a_link_that_comes_while_serving_changes_nothing(tmp_path: Path) -> None:
    root = plant(tmp_path / "root", skills("skills/alpha"))
    with watching(root) as (_, seen):
        (root / "all").symlink_to(root)
        edit(root, "skills/alpha", 2)
        seen.until(version("skills/alpha", 2))


def test_a_client_hears_of_edits_in_a_repository_whose_dot_folder_links_to_its_skills(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills/alpha")
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude/skills").symlink_to("../skills")
    with serving(tmp_path) as wire:
        for number in range(3):
            wire.pending()
            write_skill(tmp_path / "skills/alpha", description=f"Tells it in another way, number {number}.")
            wire.until("notifications/skills/list_changed")
            (entry,) = wire.every_skill()
            assert entry["description"].endswith(f"number {number}.")
