"""Origins of fetched skills, from the records beside them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from catalog.forest import load_registry, skills, write_files
from mcp_skills_server.catalog.fetched import UNKNOWN
from tables import each_row

SITE = "https://example.com"
INDEX = f"{SITE}/.well-known/agent-skills/index.json"


def write_record(folder: Path, name: str, source: str = INDEX, **more: object) -> Path:
    """Write the record that `fetch` leaves of a skill."""
    path = f".mcp-skills/skills/{name}.json"
    return write_files(folder, {path: json.dumps({"name": name, "source": source, **more})}) / path


def origins(root: Path) -> dict[str, str | None]:
    return {path: skill.origin for path, skill in load_registry(root).snapshot.skills.items()}


def test_fetched_skill_has_its_origin_in_any_root_that_contains_it(tmp_path: Path) -> None:
    top = write_files(tmp_path / "top", skills("deep/mine", "deep/theirs", "deep/theirs/inner"))
    registry = load_registry(top)
    write_record(top / "deep", "theirs")
    assert origins(top) == {"deep/mine": None, "deep/theirs": SITE, "deep/theirs/inner": SITE}
    assert origins(top / "deep/theirs") == {"theirs": SITE, "theirs/inner": SITE}
    assert origins(top / "deep/theirs/inner") == {"inner": SITE}
    assert registry.refresh()
    assert registry.snapshot.skills["deep/theirs"].origin == SITE


def test_record_over_16_mib_gives_an_unknown_origin(tmp_path: Path) -> None:
    path = write_record(write_files(tmp_path, skills("theirs")), "theirs")
    for size, origin in ((16 << 20, SITE), ((16 << 20) + 1, UNKNOWN)):
        path.write_text(path.read_text().rjust(size))
        assert origins(tmp_path) == {"theirs": origin}


def test_origin_omits_credentials_and_query_of_the_source(tmp_path: Path) -> None:
    write_record(
        write_files(tmp_path, skills("theirs")), "theirs", "https://u:p@example.com/skills/index.json?key=secret#x"
    )
    assert origins(tmp_path) == {"theirs": "https://example.com/skills/index.json"}


@each_row("text", ["", "[]", '{"source": 3}', '{"source": ""}', "{" * 100_000, '{"source": "a\\u001b"}'])
def test_invalid_record_gives_an_unknown_origin(tmp_path: Path, text: str) -> None:
    write_record(write_files(tmp_path, skills("theirs")), "theirs").write_text(text)
    assert origins(tmp_path) == {"theirs": UNKNOWN}


def test_record_that_is_a_link_or_a_folder_gives_an_unknown_origin(tmp_path: Path) -> None:
    path = write_record(write_files(tmp_path, skills("linked", "folder")), "linked")
    path.unlink()
    path.symlink_to(os.devnull)
    (path.parent / "folder.json").mkdir()
    assert origins(tmp_path) == {"linked": UNKNOWN, "folder": UNKNOWN}


def write_nested_twice(folder: Path) -> Path:
    """Write a skill with a nested one, also fetched alone; return the nested one's own record."""
    paths = ("outer", "outer/parts/inner", "inner")
    write_files(folder, skills(*paths) | {f"{path}/references/a.md": "a" for path in paths})
    files = {"SKILL.md": "1" * 64, "references/a.md": "2" * 64}
    write_record(folder, "outer", files=files | {f"parts/inner/{path}": digest for path, digest in files.items()})
    return write_record(folder, "inner", files=files)


@pytest.mark.parametrize("below", ["", "some/folder/"])
def test_nested_skill_that_was_also_fetched_alone_is_served_once(tmp_path: Path, below: str) -> None:
    write_nested_twice(tmp_path / below)
    registry = load_registry(tmp_path)
    assert sorted(registry.snapshot.skills) == [f"{below}inner", f"{below}outer"]
    assert "parts/inner/SKILL.md" in registry.snapshot.skills[f"{below}outer"].files  # S40-16
    nested = tmp_path / below / "outer/parts/inner/SKILL.md"
    nested.touch()
    registry.refresh([str(nested)])
    assert sorted(registry.snapshot.skills) == [f"{below}inner", f"{below}outer"]


@each_row("change", ["no record", "no skill", {"source": "https://other.example"}, {"files": {"SKILL.md": "3"}}])
def test_nested_skill_that_differs_from_the_fetched_one_is_served(
    tmp_path: Path, change: str | dict[str, object]
) -> None:
    record = write_nested_twice(tmp_path)
    if change == "no record":
        record.unlink()
    elif change == "no skill":
        (tmp_path / "inner" / "SKILL.md").unlink()
    elif isinstance(change, dict):
        record.write_text(json.dumps(json.loads(record.read_text()) | change))
    assert "outer/parts/inner" in origins(tmp_path)
