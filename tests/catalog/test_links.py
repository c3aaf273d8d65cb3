"""Links to skill folders: each folder is served once, by the rules of a scanned folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from catalog.forest import Patch, assert_served, load_registry, problem_codes, skills, valid_paths, write_files
from catalog.watched import edit_and_wait, has_version, serves, watching, write_version
from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits, MirroredRoot


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Skill and a link to it in the folder of a host, as `npx skills add NAME` installs them."""
    write_files(tmp_path, {**skills(".agents/skills/pdf"), ".agents/skills/pdf/references/a.md": "a"})
    (tmp_path / ".claude/skills").mkdir(parents=True)
    (tmp_path / ".claude/skills/pdf").symlink_to("../../.agents/skills/pdf")
    return tmp_path


def test_linked_skill_is_served_with_files_and_origin_of_its_folder(project: Path) -> None:
    write_files(project, {".agents/skills/.mcp-skills/skills/pdf.json": '{"source": "https://example.com"}'})
    registry = load_registry(project / ".claude/skills")
    assert valid_paths(registry) == ["pdf"]
    skill = registry.snapshot.skills["pdf"]
    assert registry.read(skill.files["references/a.md"]) == b"a"
    assert registry.body(skill).text == "Do it."
    assert skill.origin == "https://example.com"
    assert registry.problems() == []


def test_links_are_not_followed_when_disabled_or_in_fetched_roots(project: Path) -> None:
    root = project / ".claude/skills"
    without = load_registry(root, limits=Limits(links=False))
    mirrored = Registry([MirroredRoot(str(root), "git+https://git.example/x")])
    mirrored.load()
    write_files(root, {".mcp-skills/skills/pdf.json": '{"source": "https://example.com"}'})
    for registry in (without, mirrored, load_registry(root)):
        assert_served(registry, [], problems=["link-outside"])


def test_folder_with_several_links_is_served_once(project: Path) -> None:
    root, target = project / ".claude/skills", project / ".agents/skills"
    write_files(project, skills(".agents/skills/pdf/inner"))
    (root / "zzz").symlink_to(target / "pdf")
    (root / "inner").symlink_to(target / "pdf/inner")
    other = write_files(project / "other", {})
    (other / "third").symlink_to(target / "pdf")
    for roots in ((root, other), (root, target), (target, root)):
        registry = load_registry(*roots)
        assert_served(registry, ["pdf", "pdf/inner"], problems=[])
    registry = load_registry(project, limits=Limits(hidden=True))
    assert valid_paths(registry) == [".agents/skills/pdf", ".agents/skills/pdf/inner"]


def test_links_to_other_folders_than_skills_are_reported(tmp_path: Path) -> None:
    root = write_files(tmp_path / "root", skills("one"))
    (root / "no-skill").symlink_to(write_files(tmp_path / "none", {"x": "x"}))
    (root / "collection").symlink_to(write_files(tmp_path / "several", skills("deeper")))
    (root / "parent").symlink_to(write_files(tmp_path, skills(".")))
    registry = load_registry(root)
    assert_served(registry, ["one"], problems=["link-outside"] * 3)
    (root / "no-skill").unlink()
    registry.refresh([str(root / "no-skill")])
    assert problem_codes(registry) == ["link-outside"] * 2
    assert sorted(registry.roots[0].links) == ["collection", "parent"], "a watcher polls these"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("foreign", ["", "SKILL.md"])
def test_link_to_a_folder_of_another_user_is_refused(project: Path, foreign: str) -> None:
    os.chown(project / ".agents/skills/pdf" / foreign, 65534, 65534)
    registry = load_registry(project / ".claude/skills")
    assert valid_paths(registry) == []
    (found,) = registry.problems()
    assert found.code == "link-outside"
    assert "user" in found.message


def test_linked_folder_obeys_the_rules_of_a_scanned_folder(project: Path) -> None:
    target = write_files(project / ".agents/skills/pdf", {".env": "key", "node_modules/x": "x", "big": "x" * 3000})
    write_files(project, {"secret.md": "key", "more/SKILL.md": "x"})
    (target / "leak.md").symlink_to("../../../secret.md")
    (target / "more").symlink_to(project / "more")
    (target / "own.md").symlink_to("references/a.md")
    registry = load_registry(project / ".claude/skills")
    files = registry.snapshot.skills["pdf"].files
    assert sorted(files) == ["SKILL.md", "big", "own.md", "references/a.md"]
    assert problem_codes(registry) == ["link-outside", "link-outside"]
    assert registry.read(files["own.md"]) == b"a"
    assert (
        problem_codes(load_registry(project / ".claude/skills", limits=Limits(bytes=2000))).count("too-many-bytes") == 1
    )


def test_link_target_swapped_for_another_link_is_not_opened(project: Path, monkeypatch: Patch) -> None:
    write_files(project, {**skills("secret/pdf"), "secret/pdf/key": "key"})
    real_open = disk.open_real

    def swap(path: str) -> object:
        shutil.move(project / ".agents", project / "moved")
        (project / ".agents").mkdir()
        (project / ".agents/skills").symlink_to(project / "secret")
        return real_open(path)

    monkeypatch.setattr(disk, "open_real", swap)
    registry = load_registry(project / ".claude/skills")
    assert_served(registry, [], problems=["link-outside"])


def test_changes_of_links_and_their_targets_are_noticed(project: Path) -> None:
    root, target = project / ".claude/skills", project / ".agents/skills/pdf"
    write_files(project, skills("other/pdf", "late/doc"))
    with watching(root) as (registry, listener):
        edit_and_wait(listener, target.parent, "pdf", 2)
        write_files(target, skills("inner"))
        listener.until(serves("pdf", "pdf/inner"))
        write_version(target, "inner", 3)
        listener.until(has_version("pdf/inner", 3))
        target.rename(project / "away")
        listener.until(serves())
        (project / "away").rename(target)
        listener.until(serves("pdf", "pdf/inner"))
        (root / "new").symlink_to(target)
        (root / "pdf").unlink()
        listener.until(lambda found: [*found.snapshot.skills] == ["new", "new/inner"])
        write_version(target.parent, "pdf", 4)
        listener.until(has_version("new", 4))
        (root / "doc").symlink_to("../../late/doc")
        listener.until(lambda found: "doc" in found.snapshot.skills)
        edit_and_wait(listener, project / "late", "doc", 5)
        (root / "doc").unlink()
        (root / "doc").symlink_to("../../other/pdf")
        listener.until(lambda found: found.snapshot.skills["doc"].frontmatter["name"] == "pdf")
        write_version(project / "other", "pdf", 6)
        listener.until(has_version("doc", 6))
        shutil.rmtree(project / "other")
        listener.until(lambda found: "doc" not in found.snapshot.skills)
        write_files(project, skills("other/pdf"))
        listener.until(lambda found: "doc" in found.snapshot.skills)
        write_version(project / "other", "pdf", 7)
        listener.until(has_version("doc", 7))
        assert registry.snapshot.skills["doc"].files
