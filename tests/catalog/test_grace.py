"""What was whole stands for a moment: skills whose SKILL.md has become worse, and bytes that were just replaced."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from catalog.forest import DEADLINE, Patch, Told, codes, loaded, plant, served, skill_md, skills
from mcp_skills_server.catalog import grace
from mcp_skills_server.catalog.grace import GracePeriod
from mcp_skills_server.model import SKILL_MD
from tables import each_row


def test_a_state_counts_when_it_has_lasted_and_what_was_found_whole_is_no_longer_held(monkeypatch: Patch) -> None:
    now, rung = [100.0], threading.Event()
    monkeypatch.setattr(grace.time, "monotonic", lambda: now[0])
    subject = GracePeriod(rung.set, quiet_s=1)
    assert subject.keep(0, "a", "torn")
    now[0] += 0.9
    assert subject.keep(0, "a", "torn") and subject.keep(0, "b", None)
    now[0] += 0.05
    assert subject.keep(0, "a", "torn otherwise")  # it is still being written
    now[0] += 0.96
    assert subject.keep(0, "a", "torn otherwise") and not subject.keep(0, "b", None)
    now[0] += 0.05
    assert not subject.keep(0, "a", "torn otherwise")
    assert subject.places == []
    assert rung.wait(DEADLINE)
    for directory in ("a", "a/b", "c"):
        assert subject.keep(0, directory, "torn")
    subject.discard_others(0, "a", {"a"})
    subject.discard_others(1, "", ())
    assert subject.places == [(0, "a"), (0, "c")]


@each_row("torn", ["", "---\nname: a\n", "---\nname: a\ndescription: [\n---\n", "---\nname: b\n---\n", None])
def test_a_skill_stands_while_its_skill_md_is_torn_and_falls_when_it_stays_so(tmp_path: Path, torn: str | None) -> None:
    registry = loaded(plant(tmp_path, skills("a", "a/inner", "b")), quiet_s=0.3)
    seen, before = Told(registry), registry.snapshot.skills["a"]
    if torn is None:
        (tmp_path / "a/SKILL.md").unlink()
    else:
        plant(tmp_path, {"a/SKILL.md": torn})
    assert not registry.refresh() and not registry.refresh([str(tmp_path / "a/SKILL.md")])
    assert registry.snapshot.skills["a"] is before and codes(registry) == []
    assert dict(seen.next().before)["a"] is before  # nobody looked but the registry itself
    assert served(registry) == ["a/inner", "b"]


def test_a_skill_that_is_whole_again_was_never_gone(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a")), quiet_s=60)
    seen = Told(registry)
    for text in ("", "---\n", skill_md("a", "version: 2")):
        plant(tmp_path, {"a/SKILL.md": text})
        registry.refresh([str(tmp_path / "a/SKILL.md")])
        assert served(registry) == ["a"]
    (changes,) = seen.all
    assert registry.snapshot.skills["a"].frontmatter["version"] == 2
    assert changes.files == {("a", SKILL_MD)}


def test_a_root_that_is_a_skill_keeps_its_name_and_the_paths_below(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path / "r", {"SKILL.md": skill_md("top")} | skills("in")), quiet_s=60)
    (tmp_path / "r/SKILL.md").unlink()
    assert not registry.refresh()
    assert list(registry.snapshot.skills) == ["top", "top/in"]


def test_a_folder_that_is_gone_takes_its_skill_along_and_what_was_broken_before_is_not_held(tmp_path: Path) -> None:
    registry = loaded(plant(tmp_path, skills("a", "b") | {"c/SKILL.md": "x"}), quiet_s=60)
    shutil.rmtree(tmp_path / "a")
    plant(tmp_path, {"c/SKILL.md": "y\0"})
    registry.refresh([str(tmp_path / "a"), str(tmp_path / "c")])
    assert served(registry) == ["b"] and codes(registry) == ["nul-byte"]
