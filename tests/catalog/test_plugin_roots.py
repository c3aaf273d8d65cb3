"""An Agent Plugin 1.0 as a root: its name before its skills, and nothing but those right below `skills`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from catalog.forest import loaded
from forkserver import run
from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import open_roots
from mcp_skills_server.errors import UsageError
from mcp_skills_server.model import Standing
from tables import each_row
from wire import COMMAND, serving, write_skill

SCHEMA = "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json"


def plugin(folder: Path, **fields: object) -> Path:
    """A plugin with two skills, and what is none of them."""
    write_skill(folder / "skills" / "one")
    write_skill(folder / "skills" / "two")
    write_skill(folder / "skills" / "group" / "deep")
    write_skill(folder / "beside")
    (folder / "plugin.json").write_text(json.dumps({"$schema": SCHEMA, "name": "acme", **fields}), encoding="utf-8")
    return folder


def test_its_name_is_the_namespace_and_only_its_skills_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = loaded(plugin(tmp_path / "p"))
    served = {path for path, skill in registry.snapshot.skills.items() if skill.standing > 0}
    assert served == {"acme/one", "acme/two"}
    (found,) = [each for each in registry.snapshot.all_problems if each.code == "too-deep"]
    assert "deep" in found.path
    index = Index(tmp_path / "index", 1)
    monkeypatch.setattr(disk, "_SETTLED_NS", 0)
    kept = Registry([tmp_path / "p"], index=index)
    kept.load()
    kept.keep_index()
    before = kept.remembered()
    assert before is not None and before.paths(Standing.LENIENT) == ["acme/one", "acme/two"]


def test_an_edit_is_followed_below_its_name(tmp_path: Path) -> None:
    folder = plugin(tmp_path / "p")
    registry = Registry([folder], quiet_s=0)
    registry.load()
    write_skill(folder / "skills" / "three")
    registry.refresh([str(folder / "skills" / "three" / "SKILL.md")])
    shutil.rmtree(folder / "skills" / "one")
    registry.refresh()
    assert {"acme/three", "acme/two"} <= set(registry.snapshot.skills) and "acme/one" not in registry.snapshot.skills
    with serving(folder) as wire:
        found = [each["uri"] for each in wire.request("skills/list")["skills"] if "uri" in each]
        assert not found or all("acme/" in each for each in found)


def test_two_plugins_stand_side_by_side_and_a_source_names_one(tmp_path: Path) -> None:
    one, two = plugin(tmp_path / "a"), plugin(tmp_path / "b", name="other")
    assert {"acme/one", "other/one"} <= set(loaded(one, two).snapshot.skills)
    config = tmp_path / "c.toml"
    config.write_text(f'[[source]]\nfrom = "{one}"\nexclude = ["two"]\n', encoding="utf-8")
    with serving("--config", config) as wire:
        assert [each["frontmatter"]["name"] for each in wire.request("skills/list")["skills"]] == ["one"]


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


def test_a_plugin_without_skills_or_with_a_link_for_them_is_refused(tmp_path: Path) -> None:
    folder = plugin(tmp_path / "p")
    (folder / "skills").rename(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="skills"):
        open_roots([folder])
    (folder / "skills").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="skills"):
        open_roots([folder])
