"""Where a skill was fetched from is known by the record beside it, wherever the root begins."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mcp_skills_server.catalog.fetched import UNKNOWN
from mcp_skills_server.catalog.registry import Registry
from tables import each_row
from wire import write_skill

SITE = "https://example.com"


def record(folder: Path, name: str, source: str = f"{SITE}/.well-known/agent-skills/index.json") -> Path:
    path = folder / ".mcp-skills" / "skills" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"name": name, "source": source}))
    return path


def origins(root: Path) -> dict[str, str | None]:
    registry = Registry([root])
    registry.load()
    return {path: skill.origin for path, skill in registry.snapshot.skills.items()}


def test_what_was_fetched_has_an_origin_and_what_lies_beside_it_has_none(tmp_path: Path) -> None:
    write_skill(tmp_path / "mine")
    write_skill(tmp_path / "theirs")
    write_skill(tmp_path / "theirs" / "inner")
    record(tmp_path, "theirs")
    assert origins(tmp_path) == {"mine": None, "theirs": SITE, "theirs/inner": SITE}


@pytest.mark.parametrize(("root", "path"), [(".", "deep/skills/theirs"), ("deep/skills/theirs", "theirs")])
def test_the_root_may_lie_above_the_folder_or_be_the_skill(tmp_path: Path, root: str, path: str) -> None:
    write_skill(tmp_path / "deep" / "skills" / "theirs")
    record(tmp_path / "deep" / "skills", "theirs")
    assert origins(tmp_path / root) == {path: SITE}


def test_a_root_within_a_fetched_skill_is_of_its_origin(tmp_path: Path) -> None:
    write_skill(tmp_path / "theirs" / "more" / "inner")
    record(tmp_path, "theirs")
    assert origins(tmp_path / "theirs" / "more") == {"inner": SITE}


def test_a_query_of_the_source_is_not_shown(tmp_path: Path) -> None:
    write_skill(tmp_path / "theirs")
    record(tmp_path, "theirs", "https://u:p@example.com/skills/index.json?key=secret#x")
    assert origins(tmp_path) == {"theirs": "https://example.com/skills/index.json"}


@each_row("text", ["", "[]", '{"source": 3}', '{"source": ""}', "{" * 100_000, '{"source": "a\\u001b"}'])
def test_a_record_that_says_nothing_makes_no_skill_a_local_one(tmp_path: Path, text: str) -> None:
    write_skill(tmp_path / "theirs")
    record(tmp_path, "theirs").write_text(text)
    assert origins(tmp_path) == {"theirs": UNKNOWN}


def test_neither_does_a_record_that_is_a_link_or_a_folder(tmp_path: Path) -> None:
    for name in ("linked", "folder"):
        write_skill(tmp_path / name)
    path = record(tmp_path, "linked")
    path.unlink()
    path.symlink_to(os.devnull)
    (path.parent / "folder.json").mkdir()
    assert origins(tmp_path) == {"linked": UNKNOWN, "folder": UNKNOWN}


def test_a_record_that_came_later_counts_with_the_next_scan(tmp_path: Path) -> None:
    write_skill(tmp_path / "theirs")
    registry = Registry([tmp_path])
    registry.load()
    record(tmp_path, "theirs")
    registry.refresh()
    assert registry.snapshot.skills["theirs"].origin == SITE


def bundle(folder: Path) -> None:
    """What a site gives for a skill with one inside: the inner one is there twice."""
    for place in ("outer", "outer/parts/inner", "inner"):
        write_skill(folder / place, references__a_md="a")
    files = {"SKILL.md": "1" * 64, "references/a.md": "2" * 64}
    nested = {f"parts/inner/{path}": digest for path, digest in files.items()}
    source = f"{SITE}/.well-known/agent-skills/index.json"
    for name, seen in (("outer", files | nested), ("inner", files)):
        record(folder, name).write_text(json.dumps({"name": name, "source": source, "files": seen}))


@pytest.mark.parametrize("below", ["", "some/folder"])
def test_a_nested_skill_that_was_fetched_alone_too_is_one_skill(tmp_path: Path, below: str) -> None:
    bundle(tmp_path / below)
    registry = Registry([tmp_path])
    registry.load()
    skills = registry.snapshot.skills
    top = f"{below}/" if below else ""
    assert sorted(skills) == [f"{top}inner", f"{top}outer"]
    assert "parts/inner/SKILL.md" in skills[f"{top}outer"].files  # S40-16
    (tmp_path / below / "outer" / "parts" / "inner" / "SKILL.md").touch()
    registry.refresh([str(tmp_path / below / "outer" / "parts" / "inner" / "SKILL.md")])
    assert sorted(registry.snapshot.skills) == [f"{top}inner", f"{top}outer"]


@each_row("wrong", ["gone", "source", "files", "record"])
def test_it_stays_a_skill_of_its_own_where_that_is_not_what_was_fetched(tmp_path: Path, wrong: str) -> None:
    bundle(tmp_path)
    file = tmp_path / ".mcp-skills" / "skills" / "inner.json"
    seen = json.loads(file.read_text())
    if wrong == "gone":
        (tmp_path / "inner" / "SKILL.md").unlink()
    elif wrong == "record":
        file.unlink()
    else:
        file.write_text(json.dumps(seen | {wrong: "https://other.example" if wrong == "source" else {"SKILL.md": "3"}}))
    assert "outer/parts/inner" in origins(tmp_path)
