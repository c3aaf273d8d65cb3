"""A link, wherever it lies and leads, neither silences the watch nor makes it watch what is not served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from catalog.following import changes_show, edit, version, watching
from catalog.forest import plant, skills
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
