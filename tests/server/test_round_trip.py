"""A generated catalogue with unusual names and bytes, verified over stdio and HTTP."""

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
    """Skills at several depths, with files of text, of almost text, and of bytes."""
    rng = random.Random(40)
    root = tmp_path_factory.mktemp("generated")
    texts = [b"", b"text\n", b"\xef\xbb\xbfwith a BOM\r\n", "é\n".encode("latin-1"), b"nul\0", rng.randbytes(5000)]
    for number in range(SKILLS):
        levels = [f"team-{rng.randrange(9)}" for _ in range(rng.randrange(4))]
        skill = write_skill(root.joinpath(*levels, f"skill-{number:03}"), body="# S\n" + "x" * rng.randrange(3000))
        for name in rng.sample(NAMES, rng.randrange(len(NAMES))):
            (skill / name).parent.mkdir(parents=True, exist_ok=True)
            (skill / name).write_bytes(rng.choice(texts))
    return root


def verify(entries: list[dict[str, Any]], read: Callable[[str], bytes], folder: Path) -> None:
    """Assert that each file is listed once, with its size and digest (S40-16, S40-18)."""
    listed: list[str] = []
    for entry in entries:
        directory = entry["uri"].removesuffix("SKILL.md")
        assert directory.rstrip("/").rpartition("/")[2] == entry["frontmatter"]["name"]
        for each in entry["resources"]:
            raw = read(each["uri"])
            assert each["uri"].startswith(directory)
            assert len(raw) == each["size"]
            assert "sha256:" + hashlib.sha256(raw).hexdigest() == each["digest"]
            listed.append(each["uri"])
        assert entry["uri"] in listed
    on_disk = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith((".", "~$"))]
    assert len(entries) == SKILLS
    assert len(listed) == len(set(listed)) == len(on_disk)


@pytest.mark.requirement("S40-14", "S40-16", "S40-17", "S40-18", "S76-12", "MCP-55", "X-3")
def test_each_file_is_listed_with_the_digest_of_its_bytes(folder: Path, era: Era) -> None:
    with serving(folder, era=era) as wire:
        verify(wire.every_skill(), wire.read, folder)
    with http_serving(folder) as server, client(server, era) as http:
        verify(http.every_skill(), http.read, folder)
