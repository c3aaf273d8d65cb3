"""Plugins and marketplaces as roots: namespaces and served folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from catalog.forest import Patch, load_registry, problem_codes, write_files
from forkserver import run
from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.plugins import Layout
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import open_roots
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import Standing
from tables import each_row
from wire import COMMAND, write_skill

SCHEMA = "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json"


def write_plugin(folder: Path, **fields: object) -> Path:
    """Write a plugin with the skills `one` and `two`, and with two skills that are not served."""
    for path in ("skills/one", "skills/two", "skills/group/deep", "beside"):
        write_skill(folder / path)
    return write_files(folder, {"plugin.json": json.dumps({"$schema": SCHEMA, "name": "acme", **fields})})


def usable(registry: Registry) -> set[str]:
    return set(registry.snapshot.paths(Standing.LENIENT))


def test_plugin_name_is_the_namespace_of_its_skills(tmp_path: Path, monkeypatch: Patch) -> None:
    registry = load_registry(write_plugin(tmp_path / "p"))
    assert usable(registry) == {"acme/one", "acme/two"}
    (found,) = [each for each in registry.snapshot.all_problems if each.code == "too-deep"]
    assert "deep" in found.path
    index = Index(tmp_path / "index", 1)
    monkeypatch.setattr(disk, "_SETTLED_NS", 0)
    registry = load_registry(tmp_path / "p", index=index)
    registry.save_index()
    indexed = registry.remembered()
    assert indexed is not None
    assert indexed.paths(Standing.LENIENT) == ["acme/one", "acme/two"]


def test_plugin_depth_check_does_not_iterate_over_folders() -> None:
    class Folders(dict[str, str]):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("the cost grows with the number of folders")

    layout = Layout(Folders({"": "acme", "skills": "acme", "a/b": "acme"}))
    for location in ("skills/group/deep", "a/b/c"):
        assert layout.is_too_deep(location)
    for location in ("", "skills", "skills-2/x", "a", "a/c"):
        assert not layout.is_too_deep(location)


def test_manifest_over_one_mebibyte_is_ignored(tmp_path: Path) -> None:
    manifest = write_plugin(tmp_path) / "plugin.json"
    for size, path in ((1 << 20, "acme/one"), ((1 << 20) + 2, "skills/one")):
        manifest.write_text(manifest.read_text().rjust(size))
        assert path in load_registry(tmp_path).snapshot.skills


def test_plugin_command_writes_a_plugin_that_can_be_a_root(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "tea")
    command = [*COMMAND, "plugin", str(tmp_path / "skills"), "--output", str(tmp_path / "output"), "--name", "drinks"]
    assert run(command, capture_output=True).returncode == 0
    assert set(load_registry(tmp_path / "output").snapshot.skills) == {"drinks/tea"}


@each_row("text", ["{", "[]", "{}", '{"name": "acme"}', '{"$schema": "https://other.example/plugin.json", "name": 3}'])
def test_other_plugin_json_is_ignored(tmp_path: Path, text: str) -> None:
    write_skill(tmp_path / "skills" / "one")
    (tmp_path / "plugin.json").write_text(text, encoding="utf-8")
    assert set(load_registry(tmp_path).snapshot.skills) == {"skills/one"}


@each_row("name", ["", "Acme", "a/b", "..", "a--b", "-a", "a" * 65, 3, None])
def test_invalid_plugin_name_is_refused(tmp_path: Path, name: object) -> None:
    with pytest.raises(UsageError, match=r"plugin\.json"):
        open_roots([write_plugin(tmp_path / "p", name=name)])


def test_plugin_without_skills_is_empty_and_its_link_not_followed(tmp_path: Path) -> None:
    folder = write_plugin(tmp_path / "p")
    (folder / "skills").rename(tmp_path / "elsewhere")
    assert not load_registry(folder).snapshot.skills
    (folder / "skills").symlink_to(tmp_path / "elsewhere")
    registry = load_registry(folder)
    assert not registry.snapshot.skills
    assert "link-outside" in problem_codes(registry)


def write_claude_plugin(folder: Path, *skills: str, **fields: object) -> Path:
    for each in skills:
        write_skill(folder / each)
    return write_files(folder, {".claude-plugin/plugin.json": json.dumps(fields)})


def write_marketplace(folder: Path, *plugins: object, **fields: object) -> Path:
    manifest = {"name": "acme", "owner": {"name": "Acme"}, "plugins": plugins, **fields}
    return write_files(folder, {".claude-plugin/marketplace.json": json.dumps(manifest)})


def test_claude_plugin_serves_its_skills_folder_and_listed_folders(tmp_path: Path) -> None:
    paths = ("skills/one", "more/two", "alone", "other/three")
    folder = write_claude_plugin(tmp_path / "p", *paths, name="acme", skills=["./more", "./alone"])
    assert usable(load_registry(folder)) == {"acme/one", "acme/two", "acme/alone"}
    write_skill(folder / "more" / "two" / "inner")
    assert {"acme/two", "acme/two/inner"} < set(load_registry(folder).snapshot.skills)
    lone = write_claude_plugin(tmp_path / "q", name="lone", skills="./")
    write_skill(lone, name="tea")
    assert set(load_registry(lone).snapshot.skills) == {"lone/tea"}


def test_marketplace_serves_its_own_plugins_and_reports_others(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    write_claude_plugin(folder / "plugins" / "first", "skills/one", name="first")
    write_claude_plugin(folder / "plugins" / "second", "skills/one", "extra/two", name="second", skills="./extra")
    for name in ("xlsx", "docx", "other"):
        write_skill(folder / "shared" / name)
    write_skill(folder / "template")
    write_claude_plugin(folder / "half", "skills/tea", name="half", skills=["../../x"])
    write_marketplace(
        folder,
        {"name": "first", "source": "./plugins/first"},
        {"name": "second", "source": "second"},
        {"name": "sheets", "source": "./", "strict": False, "skills": ["./shared/xlsx"]},
        {"name": "texts", "source": "./", "strict": False, "skills": ["./shared/docx"]},
        {"name": "far", "source": {"source": "github", "repo": "acme/far"}},
        {"name": "half", "source": "./half"},
        {"name": "above", "source": "./../../etc"},
        {"name": "Not A Name", "source": "./template"},
        "nothing",
        metadata={"pluginRoot": "./plugins"},
    )
    registry = load_registry(folder)
    assert usable(registry) == {"first/one", "second/one", "second/two", "sheets/xlsx", "texts/docx"}
    lines = [each.message for each in registry.snapshot.all_problems if each.code == "plugin-elsewhere"]
    assert len(lines) == 5
    assert any("'far'" in each and "acme/far" in each for each in lines)
    assert any("'above'" in each and "leads out" in each for each in lines)
    done = run([*COMMAND, "list", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.count("[plugin-elsewhere]") == 5


def test_plugin_added_to_a_marketplace_is_served_after_a_refresh(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    for name in ("first", "second"):
        write_claude_plugin(folder / name, "skills/one", name=name)
    first, second = ({"name": name, "source": f"./{name}"} for name in ("first", "second"))
    registry = load_registry(write_marketplace(folder, first))
    assert set(registry.snapshot.skills) == {"first/one"}
    write_marketplace(folder, first, second)
    registry.refresh()
    assert set(registry.snapshot.skills) == {"first/one", "second/one"}
    write_skill(folder / "second" / "skills" / "two")
    registry.refresh([str(folder / "second" / "skills" / "two" / "SKILL.md")])
    assert "second/two" in registry.snapshot.skills
    (folder / ".claude-plugin" / "marketplace.json").unlink()
    (folder / ".claude-plugin" / "plugin.json").write_text('{"name": "Broken Name"}', encoding="utf-8")
    registry.refresh()  # the last readable layout is kept
    assert "second/two" in registry.snapshot.skills


def test_second_skill_of_one_path_is_reported_as_shadowed(tmp_path: Path) -> None:
    registry = load_registry(write_claude_plugin(tmp_path / "p", "a/tea", "b/tea", name="acme", skills=["./a", "./b"]))
    assert registry.snapshot.skills["acme/tea"].directory == "a/tea"
    (found,) = registry.snapshot.problems
    assert found.code == "shadowed"
    assert found.path.endswith("b/tea")
    shutil.rmtree(tmp_path / "p" / "a" / "tea")
    registry.refresh()
    assert registry.snapshot.skills["acme/tea"].directory == "b/tea"
    assert not registry.snapshot.problems
