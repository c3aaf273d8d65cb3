"""A generated catalogue, with names and bytes as wild as a disk takes them, read back and proved on every way in."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from web.http_wire import client, http_serving
from wire import Era, serving, write_skill

SKILLS = 120
NAMES = [
    "notes.md", "Über uns.md", "日本語/説明.txt", "a b/c%20d#e?f.md", "data.bin", "q&a=1+2.json", "..almost.md", "~.x",
    "[x](y).md",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Skills in folders of several depths, with files that are text, nearly text, and not text at all."""
    chance = random.Random(40)
    root = tmp_path_factory.mktemp("generated")
    texts = [b"", b"text\n", b"\xef\xbb\xbfwith a BOM\r\n", "é\n".encode("latin-1"), b"nul\0", chance.randbytes(5000)]
    for number in range(SKILLS):
        levels = [f"team-{chance.randrange(9)}" for _ in range(chance.randrange(4))]
        skill = write_skill(root.joinpath(*levels, f"skill-{number:03}"), body="# S\n" + "x" * chance.randrange(3000))
        for name in chance.sample(NAMES, chance.randrange(len(NAMES))):
            (skill / name).parent.mkdir(parents=True, exist_ok=True)
            (skill / name).write_bytes(chance.choice(texts))
    return root


def prove_all(entries: list[dict[str, Any]], read: Callable[[str], bytes], folder: Path) -> None:
    """Every file of the folder is listed once, and every listed byte is there and proves (S40-16, S40-18)."""
    seen: list[str] = []
    for entry in entries:
        directory = entry["uri"].removesuffix("SKILL.md")
        assert directory.rstrip("/").rpartition("/")[2] == entry["frontmatter"]["name"]
        for each in entry["resources"]:
            raw = read(each["uri"])
            assert each["uri"].startswith(directory) and len(raw) == each["size"]
            assert "sha256:" + hashlib.sha256(raw).hexdigest() == each["digest"]
            seen.append(each["uri"])
        assert entry["uri"] in seen
    on_disk = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith((".", "~$"))]
    assert len(entries) == SKILLS
    assert len(seen) == len(set(seen)) == len(on_disk)


@pytest.mark.requirement("S40-14", "S40-16", "S40-17", "S40-18", "S76-12", "MCP-55", "X-3")
def test_every_listed_byte_can_be_read_back_and_proves(folder: Path, era: Era) -> None:
    with serving(folder, era=era) as wire:
        prove_all(wire.every_skill(), wire.read, folder)
    with http_serving(folder) as server, client(server, era) as asked:
        prove_all(asked.every_skill(), asked.read, folder)
