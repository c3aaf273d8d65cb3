"""Links in a root that lead to the folder of a skill: followed once, by the rules of a scanned folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from catalog.following import edit, serves, version, watching
from catalog.forest import Patch, codes, loaded, plant, served, skills
from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits, MirroredRoot
from mcp_skills_server.errors import StaleFileError


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What `npx skills add NAME --agent claude-code` leaves: the skill, and a link to it in the host's folder."""
    plant(tmp_path, {**skills(".agents/skills/pdf"), ".agents/skills/pdf/references/a.md": "a"})
    (tmp_path / ".claude/skills").mkdir(parents=True)
    (tmp_path / ".claude/skills/pdf").symlink_to("../../.agents/skills/pdf")
    return tmp_path


def test_a_link_to_a_skill_folder_is_served_as_that_skill(project: Path) -> None:
    registry = loaded(project / ".claude/skills")
    assert served(registry) == ["pdf"] and codes(registry) == []
    skill = registry.snapshot.skills["pdf"]
    assert registry.read(skill.files["references/a.md"]) == b"a"
    assert registry.body(skill).text and registry.problems() == []


def test_links_are_not_followed_without_leave_or_in_what_was_fetched(project: Path) -> None:
    root = project / ".claude/skills"
    without = loaded(root, limits=Limits(links=False))
    mirrored = Registry([MirroredRoot(str(root), "git+https://git.example/x")])
    mirrored.load()
    plant(root, {".mcp-skills/skills/pdf.json": '{"source": "https://example.com"}'})
    for registry in (without, mirrored, loaded(root)):
        assert served(registry) == [] and codes(registry) == ["link-outside"]


def test_a_fetched_skill_behind_a_link_keeps_its_origin(project: Path) -> None:
    plant(project, {".agents/skills/.mcp-skills/skills/pdf.json": '{"source": "https://example.com"}'})
    assert loaded(project / ".claude/skills").snapshot.skills["pdf"].origin == "https://example.com"


def test_one_folder_is_one_skill_however_many_links_lead_to_it(project: Path) -> None:
    root, target = project / ".claude/skills", project / ".agents/skills"
    plant(project, skills(".agents/skills/pdf/inner"))
    (root / "zzz").symlink_to(target / "pdf")
    (root / "inner").symlink_to(target / "pdf/inner")
    other = plant(project / "other", {})
    (other / "third").symlink_to(target / "pdf")
    for roots in ((root, other), (root, target), (target, root)):
        registry = loaded(*roots)
        assert served(registry) == ["pdf", "pdf/inner"] and codes(registry) == []
    registry = loaded(project, limits=Limits(hidden=True))
    assert served(registry) == [".agents/skills/pdf", ".agents/skills/pdf/inner"]


def test_links_to_no_skill_to_a_collection_and_around_the_root_are_problems(tmp_path: Path) -> None:
    root = plant(tmp_path / "root", skills("one"))
    targets = (tmp_path / "none", {"x": "x"}), (tmp_path / "several", skills("deeper")), (tmp_path, skills("."))
    for number, (target, files) in enumerate(targets):
        (root / f"link{number}").symlink_to(plant(target, files))
    registry = loaded(root)
    assert served(registry) == ["one"] and codes(registry) == ["link-outside"] * 3
    (root / "link0").unlink()
    registry.refresh([str(root / "link0")])
    assert codes(registry) == ["link-outside"] * 2, "a problem that is solved is gone"
    assert sorted(registry.roots[0].links) == ["link1", "link2"], "nor does a watcher poll it"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("foreign", ["", "SKILL.md"])
def test_a_link_into_another_users_folder_is_refused(project: Path, foreign: str) -> None:
    os.chown(project / ".agents/skills/pdf" / foreign, 65534, 65534)
    registry = loaded(project / ".claude/skills")
    assert served(registry) == [] and codes(registry) == ["link-outside"]
    (found,) = registry.problems()
    assert "user" in found.message


def test_what_lies_behind_a_link_obeys_the_rules_of_a_scanned_folder(project: Path) -> None:
    target = plant(project / ".agents/skills/pdf", {".env": "key", "node_modules/x": "x", "big": "x" * 3000})
    plant(project, {"secret.md": "key", "more/SKILL.md": "x"})
    (target / "leak.md").symlink_to("../../../secret.md")
    (target / "more").symlink_to(project / "more")
    (target / "own.md").symlink_to("references/a.md")
    registry = loaded(project / ".claude/skills")
    files = registry.snapshot.skills["pdf"].files
    assert sorted(files) == ["SKILL.md", "big", "own.md", "references/a.md"]
    assert codes(registry) == ["link-outside", "link-outside"]
    assert registry.read(files["own.md"]) == b"a"
    assert codes(loaded(project / ".claude/skills", limits=Limits(bytes=2000))).count("too-many-bytes") == 1


def test_a_target_that_is_swapped_for_a_link_is_never_opened(project: Path, monkeypatch: Patch) -> None:
    plant(project, {**skills("secret/pdf"), "secret/pdf/key": "key"})
    real = disk.open_real

    def swap(path: str) -> object:
        shutil.move(project / ".agents", project / "moved")
        (project / ".agents").mkdir()
        (project / ".agents/skills").symlink_to(project / "secret")
        return real(path)

    monkeypatch.setattr(disk, "open_real", swap)
    registry = loaded(project / ".claude/skills")
    assert served(registry) == [] and codes(registry) == ["link-outside"]


def test_bytes_of_another_folder_that_the_link_leads_to_by_now_are_stale(project: Path) -> None:
    link = project / ".claude/skills/pdf"
    registry = loaded(project / ".claude/skills")
    plant(project, {**skills("other/pdf"), "other/pdf/references/a.md": "b"})
    link.unlink()
    link.symlink_to("../../other/pdf")
    with pytest.raises(StaleFileError) as raised:
        registry.read(registry.snapshot.skills["pdf"].files["references/a.md"])
    registry.rescan(raised.value.path)
    assert registry.read(registry.snapshot.skills["pdf"].files["references/a.md"]) == b"b"


def test_a_python_environment_is_passed_over(tmp_path: Path) -> None:
    plant(tmp_path, {**skills("one", "venv/lib/two", "tool/env/three"), "one/env/x": "x", "one/env/pyvenv.cfg": ""})
    plant(tmp_path, {"venv/pyvenv.cfg": "", "tool/env/pyvenv.cfg": ""})
    registry = loaded(tmp_path)
    assert served(registry) == ["one"] and codes(registry) == []
    skill = registry.snapshot.skills["one"]
    assert [*skill.files] == ["SKILL.md"] and not skill.empty
    registry.refresh([str(tmp_path / place) for place in ("venv/lib/two", "venv/lib", "venv")])
    assert served(registry) == ["one"]
    (tmp_path / "venv/pyvenv.cfg").unlink()
    registry.refresh([str(tmp_path / "venv/pyvenv.cfg")])
    assert served(registry) == ["one", "venv/lib/two"]
    plant(tmp_path, {"venv/pyvenv.cfg": ""})
    registry.refresh([str(tmp_path / "venv/pyvenv.cfg")])
    assert served(registry) == ["one"]


@pytest.mark.parametrize("poll", [False, True])
def test_all_that_happens_behind_a_link_shows(project: Path, poll: bool) -> None:
    root, target = project / ".claude/skills", project / ".agents/skills/pdf"
    plant(project, skills("other/pdf", "late/doc"))
    with watching(root, poll=poll) as (registry, seen):
        edit(target.parent, "pdf", 2)
        seen.until(version("pdf", 2))
        plant(target, skills("inner"))
        seen.until(serves("pdf", "pdf/inner"))
        edit(target, "inner", 3)
        seen.until(version("pdf/inner", 3))
        target.rename(project / "away")
        seen.until(serves())
        (project / "away").rename(target)
        seen.until(serves("pdf", "pdf/inner"))
        (root / "new").symlink_to(target)
        (root / "pdf").unlink()
        seen.until(lambda found: [*found.snapshot.skills] == ["new", "new/inner"])
        edit(target.parent, "pdf", 4)
        seen.until(version("new", 4))
        (root / "doc").symlink_to("../../late/doc")
        seen.until(lambda found: "doc" in found.snapshot.skills)
        edit(project / "late", "doc", 5)
        seen.until(version("doc", 5))
        (root / "doc").unlink()
        (root / "doc").symlink_to("../../other/pdf")
        seen.until(lambda found: found.snapshot.skills["doc"].frontmatter["name"] == "pdf")
        edit(project / "other", "pdf", 6)
        seen.until(version("doc", 6))
        shutil.rmtree(project / "other")
        seen.until(lambda found: "doc" not in found.snapshot.skills)
        plant(project, skills("other/pdf"))
        seen.until(lambda found: "doc" in found.snapshot.skills)
        edit(project / "other", "pdf", 7)
        seen.until(version("doc", 7))
        assert registry.snapshot.skills["doc"].files
