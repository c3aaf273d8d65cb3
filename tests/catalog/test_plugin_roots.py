"""Plugins and marketplaces as roots: the name of a plugin before its skills, and nothing but its skills."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from catalog.forest import Patch, loaded
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


def plugin(folder: Path, **fields: object) -> Path:
    write_skill(folder / "skills" / "one")
    write_skill(folder / "skills" / "two")
    write_skill(folder / "skills" / "group" / "deep")
    write_skill(folder / "beside")
    (folder / "plugin.json").write_text(json.dumps({"$schema": SCHEMA, "name": "acme", **fields}), encoding="utf-8")
    return folder


def served(registry: Registry) -> set[str]:
    return {path for path, skill in registry.snapshot.skills.items() if skill.standing > 0}


def test_its_name_is_the_namespace_and_only_its_skills_are_served(tmp_path: Path, monkeypatch: Patch) -> None:
    registry = loaded(plugin(tmp_path / "p"))
    assert served(registry) == {"acme/one", "acme/two"}
    (found,) = [each for each in registry.snapshot.all_problems if each.code == "too-deep"]
    assert "deep" in found.path
    index = Index(tmp_path / "index", 1)
    monkeypatch.setattr(disk, "_SETTLED_NS", 0)
    kept = loaded(tmp_path / "p", index=index)
    kept.save_index()
    before = kept.remembered()
    assert before is not None and before.paths(Standing.LENIENT) == ["acme/one", "acme/two"]


def test_a_place_is_judged_at_one_cost_however_many_folders_a_manifest_lists() -> None:
    class Counted(dict[str, str]):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("each skill outside would cost a look at each folder")

    layout = Layout(Counted({"": "acme", "skills": "acme", "a/b": "acme"}))
    assert layout.is_too_deep("skills/group/deep") and layout.is_too_deep("a/b/c")
    assert not any(map(layout.is_too_deep, ("", "skills", "skills-2/x", "a", "a/c")))


def test_a_manifest_of_more_than_a_mebibyte_is_none(tmp_path: Path) -> None:
    manifest = plugin(tmp_path) / "plugin.json"
    for size, path in ((1 << 20, "acme/one"), ((1 << 20) + 2, "skills/one")):
        manifest.write_text(manifest.read_text().rjust(size))
        assert path in loaded(tmp_path).snapshot.skills


def test_what_plugin_writes_is_read(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "tea")
    written = [*COMMAND, "plugin", str(tmp_path / "skills"), "--output", str(tmp_path / "made"), "--name", "drinks"]
    assert run(written, capture_output=True).returncode == 0
    assert set(loaded(tmp_path / "made").snapshot.skills) == {"drinks/tea"}


@each_row("text", ["{", "[]", "{}", '{"name": "acme"}', '{"$schema": "https://other.example/plugin.json", "name": 3}'])
def test_another_plugin_json_changes_nothing(tmp_path: Path, text: str) -> None:
    write_skill(tmp_path / "skills" / "one")
    (tmp_path / "plugin.json").write_text(text, encoding="utf-8")
    assert set(loaded(tmp_path).snapshot.skills) == {"skills/one"}


@each_row("name", ["", "Acme", "a/b", "..", "a--b", "-a", "a" * 65, 3, None])
def test_a_name_that_breaks_the_format_is_refused(tmp_path: Path, name: object) -> None:
    with pytest.raises(UsageError, match=r"plugin\.json"):
        open_roots([plugin(tmp_path / "p", name=name)])


def test_a_plugin_may_have_no_skills_and_a_link_for_them_is_not_followed(tmp_path: Path) -> None:
    folder = plugin(tmp_path / "p")
    (folder / "skills").rename(tmp_path / "elsewhere")
    assert not loaded(folder).snapshot.skills
    (folder / "skills").symlink_to(tmp_path / "elsewhere")
    registry = loaded(folder)
    assert not registry.snapshot.skills and "link-outside" in {each.code for each in registry.snapshot.all_problems}


def claude_plugin(folder: Path, *skills: str, **fields: object) -> Path:
    for each in skills:
        write_skill(folder / each)
    manifest = folder / ".claude-plugin" / "plugin.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps(fields), encoding="utf-8")
    return folder


def marketplace(folder: Path, *plugins: object, **fields: object) -> Path:
    manifest = folder / ".claude-plugin" / "marketplace.json"
    manifest.parent.mkdir(parents=True, exist_ok=True)
    about = {"name": "acme", "owner": {"name": "Acme"}, "plugins": plugins, **fields}
    manifest.write_text(json.dumps(about), encoding="utf-8")
    return folder


def test_a_plugin_of_claude_code_has_its_skills_folder_and_those_that_it_lists(tmp_path: Path) -> None:
    folder = claude_plugin(
        tmp_path / "p", "skills/one", "more/two", "alone", "other/three", name="acme", skills=["./more", "./alone"]
    )
    assert served(loaded(folder)) == {"acme/one", "acme/two", "acme/alone"}
    write_skill(folder / "more" / "two" / "inner")
    assert {"acme/two", "acme/two/inner"} < set(loaded(folder).snapshot.skills)
    lone = claude_plugin(tmp_path / "q", name="lone", skills="./")
    write_skill(lone, name="tea")
    assert set(loaded(lone).snapshot.skills) == {"lone/tea"}


def test_a_marketplace_serves_the_skills_of_its_own_plugins_and_names_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    claude_plugin(folder / "plugins" / "first", "skills/one", name="first")
    claude_plugin(folder / "plugins" / "second", "skills/one", "extra/two", name="second", skills="./extra")
    for name in ("xlsx", "docx", "other"):
        write_skill(folder / "shared" / name)
    write_skill(folder / "template")
    claude_plugin(folder / "half", "skills/tea", name="half", skills=["../../x"])
    far = {"source": "github", "repo": "acme/far"}
    marketplace(
        folder,
        {"name": "first", "source": "./plugins/first"},
        {"name": "second", "source": "second"},
        {"name": "sheets", "source": "./", "strict": False, "skills": ["./shared/xlsx"]},
        {"name": "texts", "source": "./", "strict": False, "skills": ["./shared/docx"]},
        {"name": "far", "source": far},
        {"name": "half", "source": "./half"},
        {"name": "above", "source": "./../../etc"},
        {"name": "Not A Name", "source": "./template"},
        "nothing",
        metadata={"pluginRoot": "./plugins"},
    )
    registry = loaded(folder)
    assert served(registry) == {"first/one", "second/one", "second/two", "sheets/xlsx", "texts/docx"}
    lines = [each.message for each in registry.snapshot.all_problems if each.code == "plugin-elsewhere"]
    assert len(lines) == 5 and any("'far'" in each and "acme/far" in each for each in lines)
    assert any("'above'" in each and "leads out" in each for each in lines)
    done = run([*COMMAND, "list", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.count("[plugin-elsewhere]") == 5


def test_a_plugin_that_is_added_to_a_marketplace_is_served_after_the_next_full_look(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    for name in ("first", "second"):
        claude_plugin(folder / name, "skills/one", name=name)
    first, second = ({"name": name, "source": f"./{name}"} for name in ("first", "second"))
    registry = loaded(marketplace(folder, first))
    assert set(registry.snapshot.skills) == {"first/one"}
    marketplace(folder, first, second)
    registry.refresh()
    assert set(registry.snapshot.skills) == {"first/one", "second/one"}
    write_skill(folder / "second" / "skills" / "two")
    registry.refresh([str(folder / "second" / "skills" / "two" / "SKILL.md")])
    assert "second/two" in registry.snapshot.skills
    (folder / ".claude-plugin" / "marketplace.json").unlink()
    (folder / ".claude-plugin" / "plugin.json").write_text('{"name": "Broken Name"}', encoding="utf-8")
    registry.refresh()  # what cannot be read changes nothing
    assert "second/two" in registry.snapshot.skills


def test_of_two_skills_with_one_path_the_second_is_named(tmp_path: Path) -> None:
    registry = loaded(claude_plugin(tmp_path / "p", "a/tea", "b/tea", name="acme", skills=["./a", "./b"]))
    assert registry.snapshot.skills["acme/tea"].directory == "a/tea"
    (found,) = registry.snapshot.problems
    assert found.code == "shadowed" and found.path.endswith("b/tea")
    shutil.rmtree(tmp_path / "p" / "a" / "tea")
    registry.refresh()
    assert registry.snapshot.skills["acme/tea"].directory == "b/tea" and not registry.snapshot.problems
