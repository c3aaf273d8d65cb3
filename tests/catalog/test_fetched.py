"""Where a skill was fetched from is known by the record beside it, wherever the root begins."""

from __future__ import annotations

import json
import os
from pathlib import Path
from weakref import ref

import pytest

from catalog.forest import loaded, plant, skills
from mcp_skills_server.catalog.fetched import UNKNOWN, Origins
from tables import each_row

SITE = "https://example.com"


def record(
    folder: Path, name: str, source: str = f"{SITE}/.well-known/agent-skills/index.json", **more: object
) -> Path:
    path = f".mcp-skills/skills/{name}.json"
    return plant(folder, {path: json.dumps({"name": name, "source": source, **more})}) / path


def origins(root: Path) -> dict[str, str | None]:
    return {path: skill.origin for path, skill in loaded(root).snapshot.skills.items()}


def test_what_was_fetched_has_an_origin_wherever_the_root_begins_and_its_neighbour_has_none(tmp_path: Path) -> None:
    top = plant(tmp_path / "top", skills("deep/mine", "deep/theirs", "deep/theirs/inner"))
    registry = loaded(top)
    record(top / "deep", "theirs")
    for name, found in {
        ".": {"deep/mine": None, "deep/theirs": SITE, "deep/theirs/inner": SITE},
        "deep/theirs": {"theirs": SITE, "theirs/inner": SITE},
        "deep/theirs/inner": {"inner": SITE},
    }.items():
        assert origins(top / name) == found
    assert registry.refresh() and registry.snapshot.skills["deep/theirs"].origin == SITE, "a record that came later"


def test_what_a_scan_cached_ends_with_it_without_garbage_collection(tmp_path: Path) -> None:
    """None runs before the end of the first scan, and what is there then is exempt for ever (`gc.freeze`)."""
    found = Origins(str(tmp_path), None)
    assert found.of("a/b") is None
    alive = ref(found)
    del found
    assert alive() is None


def test_a_record_of_more_than_16_mib_says_nothing(tmp_path: Path) -> None:
    path = record(plant(tmp_path, skills("theirs")), "theirs")
    for size, origin in ((16 << 20, SITE), ((16 << 20) + 2, UNKNOWN)):
        path.write_text(path.read_text().rjust(size))
        assert origins(tmp_path) == {"theirs": origin}


def test_a_query_of_the_source_is_not_shown(tmp_path: Path) -> None:
    record(plant(tmp_path, skills("theirs")), "theirs", "https://u:p@example.com/skills/index.json?key=secret#x")
    assert origins(tmp_path) == {"theirs": "https://example.com/skills/index.json"}


@each_row("text", ["", "[]", '{"source": 3}', '{"source": ""}', "{" * 100_000, '{"source": "a\\u001b"}'])
def test_a_record_that_says_nothing_makes_no_skill_a_local_one(tmp_path: Path, text: str) -> None:
    record(plant(tmp_path, skills("theirs")), "theirs").write_text(text)
    assert origins(tmp_path) == {"theirs": UNKNOWN}


def test_neither_does_a_record_that_is_a_link_or_a_folder(tmp_path: Path) -> None:
    path = record(plant(tmp_path, skills("linked", "folder")), "linked")
    path.unlink()
    path.symlink_to(os.devnull)
    (path.parent / "folder.json").mkdir()
    assert origins(tmp_path) == {"linked": UNKNOWN, "folder": UNKNOWN}


def bundle(folder: Path) -> Path:
    """What a site gives for a skill with one inside: the inner one is there twice."""
    places = ("outer", "outer/parts/inner", "inner")
    plant(folder, skills(*places) | {f"{place}/references/a.md": "a" for place in places})
    files = {"SKILL.md": "1" * 64, "references/a.md": "2" * 64}
    record(folder, "outer", files=files | {f"parts/inner/{path}": digest for path, digest in files.items()})
    return record(folder, "inner", files=files)


@pytest.mark.parametrize("below", ["", "some/folder/"])
def test_a_nested_skill_that_was_fetched_alone_too_is_one_skill(tmp_path: Path, below: str) -> None:
    bundle(tmp_path / below)
    registry = loaded(tmp_path)
    assert sorted(registry.snapshot.skills) == [f"{below}inner", f"{below}outer"]
    assert "parts/inner/SKILL.md" in registry.snapshot.skills[f"{below}outer"].files  # S40-16
    nested = tmp_path / below / "outer/parts/inner/SKILL.md"
    nested.touch()
    registry.refresh([str(nested)])
    assert sorted(registry.snapshot.skills) == [f"{below}inner", f"{below}outer"]


@each_row("wrong", [None, "gone", {"source": "https://other.example"}, {"files": {"SKILL.md": "3"}}])
def test_it_stays_a_skill_of_its_own_if_not_fetched(tmp_path: Path, wrong: str | dict[str, object] | None) -> None:
    file = bundle(tmp_path)
    if wrong == "gone":
        (tmp_path / "inner" / "SKILL.md").unlink()
    elif isinstance(wrong, dict):
        file.write_text(json.dumps(json.loads(file.read_text()) | wrong))
    else:
        file.unlink()
    assert "outer/parts/inner" in origins(tmp_path)
