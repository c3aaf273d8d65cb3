"""A run that looks at what has changed alone leaves the same folder as one that looks at everything."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.commands.publish import publish
from publish.test_static import files, times, whole
from wire import write_skill

RECORD = ".mcp-skills-server.json"


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


class Runs:
    """Runs of `publish` in this process over one folder of skills."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = top / "skills"
        self.output = top / "public"
        self.loaded: list[int] = []
        self._top = top
        load = Registry.load

        def counted(registry: Registry) -> None:
            load(registry)
            self.loaded.append(len(registry.snapshot.skills))

        monkeypatch.setattr(Registry, "load", counted)

    def run(self, output: Path | None = None, cache: str = "cache", *more: str) -> list[int]:
        """How many skills were read, by each registry that was loaded."""
        self.loaded.clear()
        arguments = [
            self.root,
            "--output",
            output or self.output,
            "--cache-dir",
            self._top / cache,
            "--allow-partial",
            *more,
        ]
        publish.main([str(each) for each in arguments], standalone_mode=False)
        return self.loaded[:]

    def anew(self) -> dict[str, bytes]:
        """What a run into an empty folder makes of the same skills; artifacts of before are not there."""
        fresh = self._top / "fresh"
        shutil.rmtree(fresh, ignore_errors=True)
        self.run(fresh, "other")
        return files(fresh)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Six skills; what is written a moment ago counts as old."""
    monkeypatch.setattr(disk, "_SETTLED_NS", 0)
    runs = Runs(tmp_path, monkeypatch)
    for number in range(4):
        write_skill(runs.root / f"s{number}", notes_md=f"notes {number}")
    write_skill(runs.root / "alone")
    write_skill(runs.root / "team" / "deep")
    assert runs.run() == [6]
    return runs


def test_nothing_new_is_no_scan_and_no_write(runs: Runs) -> None:
    before = times(runs.output)
    assert runs.run() == [] and times(runs.output) == before


@pytest.mark.parametrize("place", ["s1", "alone", "team/deep"])
def test_one_edit_reads_one_skill(runs: Runs, place: str) -> None:
    append(runs.root / place / "SKILL.md", "\nmore\n")
    assert runs.run() == [1] and runs.run() == []
    tree, fresh = files(runs.output), runs.anew()
    assert (runs.root / place / "SKILL.md").read_bytes() in tree.values() and whole(runs.output)
    assert {path: tree[path] for path in fresh.keys() - {RECORD}} == {
        path: raw for path, raw in fresh.items() if path != RECORD
    }


def edit(skill: Path, turn: int, dice: random.Random, runs: Runs) -> None:
    manifest = skill / "SKILL.md"
    match dice.randrange(8):
        case 0 | 1 | 2:
            append(manifest, f"turn {turn}\n")
        case 3:
            (skill / f"new-{turn}.md").write_text("new")
        case 4:
            for each in skill.glob("n*.md"):
                each.unlink()
        case 5:
            manifest.write_text(f"---\nname: {skill.name}\ndescription: Turn {turn}.\n---\n\nBody {'x' * turn}\n")
        case 6:
            away = skill.rename(skill.parent / ".away")
            runs.run()
            away.rename(skill)
        case _:
            manifest.write_text(f"no frontmatter {'x' * turn}")


def test_after_any_edits_the_folder_is_what_a_run_from_nothing_makes(runs: Runs) -> None:
    dice = random.Random(13)
    skills = [runs.root / name for name in ("s0", "s1", "s2", "s3", "alone", "team/deep")]
    few = 0
    for turn in range(1, 30):
        for skill in dice.sample(skills, dice.choice([1, 1, 2])):
            edit(skill, turn, dice, runs)
        few += max(runs.run(), default=0) <= 2
        retired = {*json.loads((runs.output / RECORD).read_bytes())["retired"]}
        tree, fresh = files(runs.output), runs.anew()
        assert retired.isdisjoint(fresh)
        assert {path: raw for path, raw in tree.items() if path not in {*retired, RECORD}} == {
            path: raw for path, raw in fresh.items() if path != RECORD
        }
    assert few > 10  # no more was read than was edited


def test_a_folder_that_somebody_changed_is_set_right(runs: Runs) -> None:
    place = runs.output / ".well-known" / "skills" / "s1" / "notes.md"
    before = place.read_bytes()
    place.write_bytes(b"tampered")
    assert runs.run() == [6] and place.read_bytes() == before
    place.unlink()
    assert runs.run() == [6] and place.read_bytes() == before


@pytest.mark.parametrize("change", ["record", "record-gone", "journal", "staging", "cache"])
def test_doubts_about_the_folder_have_all_looked_at(runs: Runs, change: str) -> None:
    record = runs.output / RECORD
    before = record.read_bytes()
    if change == "record":
        record.write_bytes(before + b" ")
    elif change == "journal":
        (runs.output / ".mcp-skills-server.next").write_bytes(b'{"format": 2, "files": {}}')
    elif change == "staging":
        (runs.output / ".mcp-skills-server.staging").mkdir()
    elif change == "cache":
        for each in (runs.root.parent / "cache" / "publish").iterdir():
            each.write_bytes(b"{")
    else:
        shutil.rmtree(runs.output)
    assert runs.run() == [6] and whole(runs.output)
    if change != "record":
        assert record.read_bytes() == before


def test_other_options_have_all_looked_at(runs: Runs) -> None:
    assert runs.run(None, "cache", "--base-url", "https://cdn.example.com") == [6]
    assert runs.run(None, "cache", "--base-url", "https://cdn.example.com") == []
    assert runs.run(None, "cache", "--headers", "--base-url", "https://cdn.example.com") == [6]
    assert runs.run() == [6]
    assert runs.run(None, "cache", "--max-files", "1") == [6]


def test_an_artifact_goes_when_its_time_is_over(runs: Runs) -> None:
    append(runs.root / "s1" / "SKILL.md", "\nmore\n")
    assert runs.run() == [1]
    packed = runs.output / ".well-known" / "agent-skills" / "s1"
    assert len(list(packed.iterdir())) == 2 and runs.run() == []
    assert runs.run(None, "cache", "--keep", "0") == [6] and len(list(packed.iterdir())) == 1


def test_a_link_in_the_way_is_refused_still(runs: Runs) -> None:
    packed = runs.output / ".well-known" / "skills" / "s1"
    packed.rename(runs.root.parent / "elsewhere")
    packed.symlink_to(runs.root.parent / "elsewhere")
    append(runs.root / "s1" / "SKILL.md", "\nmore\n")
    before = files(runs.root.parent / "elsewhere")
    with pytest.raises(Exception, match="is no folder there"):
        runs.run()
    assert files(runs.root.parent / "elsewhere") == before


def test_a_skill_that_was_left_out_is_named_each_time(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    write_skill(runs.root / "Bad")
    assert runs.run() == [7]
    assert "Bad: not published: " in capsys.readouterr().err
    assert runs.run() == []
    assert "Bad: not published: " in capsys.readouterr().err
    append(runs.root / "Bad" / "SKILL.md", "\nmore\n")
    assert runs.run() == [7]


def test_skills_of_one_name_are_looked_at_together(runs: Runs) -> None:
    write_skill(runs.root / "other" / "s1", notes_md="notes 1")
    runs.run()
    append(runs.root / "other" / "s1" / "SKILL.md", "\nmore\n")
    assert runs.run() == [7]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_link_has_all_looked_at(runs: Runs, when: str) -> None:
    (runs.root / "s2" / "linked.md").symlink_to("notes.md")
    if when == "before":
        assert runs.run() == [6]
    (runs.root / "s2" / "SKILL.md").write_text("---\nname: s2\ndescription: Other.\n---\n\nMore of it.\n")
    assert runs.run() == [6]
    assert files(runs.output)[".well-known/skills/s2/linked.md"] == b"notes 2"
