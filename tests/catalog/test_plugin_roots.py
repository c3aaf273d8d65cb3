"""Plugins and marketplaces as roots: namespaces and served folders."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from catalog.forest import Patch, load_registry, problem_codes, skill_md, skills, write_files
from commands.calls import json_of, run
from mcp_skills_server.catalog import disk
from mcp_skills_server.catalog.index import Index
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.report import report_to_log
from mcp_skills_server.model import Standing
from tables import each_row
from wire import write_skill

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
    found = [each for each in registry.snapshot.problems if each.code == "plugin-unlisted"]
    assert [each.path for each in found] == [f"{tmp_path}/p/beside", f"{tmp_path}/p/skills/group/deep"]
    index = Index(tmp_path / "index", 1)
    monkeypatch.setattr(disk, "_SETTLED_NS", 0)
    registry = load_registry(tmp_path / "p", index=index)
    registry.save_index()
    indexed = registry.remembered()
    assert indexed is not None
    assert indexed.paths(Standing.LENIENT) == ["acme/one", "acme/two"]


def test_manifest_over_one_mebibyte_is_a_problem(tmp_path: Path) -> None:
    manifest = write_plugin(tmp_path) / "plugin.json"
    for size, path, codes in ((1 << 20, "acme/one", []), ((1 << 20) + 2, "skills/one", ["plugin-manifest"])):
        manifest.write_text(manifest.read_text().rjust(size))
        registry = load_registry(tmp_path)
        assert path in registry.snapshot.skills
        assert [each for each in problem_codes(registry) if each != "plugin-unlisted"] == codes


def test_plugin_command_writes_a_plugin_that_can_be_a_root(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "tea")
    done = run("package", tmp_path / "skills", "--output", tmp_path / "output", "--name", "drinks")
    assert done.returncode == 0
    assert set(load_registry(tmp_path / "output").snapshot.skills) == {"drinks/tea"}


@each_row("text", ["{", "[]", "{}", '{"name": "acme"}', '{"$schema": "https://other.example/plugin.json", "name": 3}'])
def test_other_plugin_json_is_ignored(tmp_path: Path, text: str) -> None:
    write_skill(tmp_path / "skills" / "one")
    (tmp_path / "plugin.json").write_text(text, encoding="utf-8")
    assert set(load_registry(tmp_path).snapshot.skills) == {"skills/one"}


@each_row(("name", "code", "path"), [
    *((name, "plugin-name", f"{name}/one") for name in ("Acme", "a--b", "a..b", "my_plugin", "X")),
    *((name, "plugin-manifest", "skills/one") for name in ("", "a/b", "..", "-a", "a b", "a" * 65, 3, None)),
])  # fmt: skip
def test_plugin_of_an_invalid_name_is_served_where_possible_and_reported(
    tmp_path: Path, name: object, code: str, path: str
) -> None:
    registry = load_registry(write_plugin(tmp_path / "p", name=name))
    assert path in usable(registry)
    (found,) = [each for each in registry.snapshot.problems if each.code not in {"plugin-unlisted", "near-miss"}]
    assert (found.code, found.path, found.line) == (code, f"{tmp_path}/p/plugin.json", 1)
    assert "lowercase letters, digits" in found.hint


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
    (tmp_path.parent / "etc").mkdir(exist_ok=True)
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
    assert usable(registry) == {"first/one", "second/one", "second/two", "sheets/xlsx", "texts/docx", "half/tea"}
    expected = [
        ("plugin-manifest", "the name 'Not A Name'"), ("plugin-manifest", "a plugin has no name"),
        ("plugin-path", "'../../x' names no folder"), ("plugin-path", "'./../../etc' leads out of the root"),
        ("plugin-elsewhere", "'far' lies elsewhere ('github' 'acme/far')"),
        ("plugin-unlisted", "shared/other"), ("plugin-unlisted", "template"),
    ]  # fmt: skip
    lines = [str(each) for each in registry.snapshot.problems]
    assert len(lines) == len(expected)
    for code, words in expected:
        assert any(f"[{code}]" in line and words in line for line in lines), words
    done = run("list", folder)
    assert done.returncode == 0
    assert all(line in done.stderr for line in lines)


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


def problems_of(registry: Registry) -> list[tuple[str, str, int | None]]:
    """Return code, path below the root and line of each problem outside of skills."""
    top = f"{registry.roots[0].shown}/"
    return [(each.code, each.path.removeprefix(top), each.line) for each in registry.snapshot.problems]


MARKET = ".claude-plugin/marketplace.json"


def test_plugin_with_a_skill_md_and_no_skills_folder_is_one_skill(tmp_path: Path) -> None:
    solo = write_claude_plugin(tmp_path / "checkout", name="solo")
    write_skill(solo, name="solo")
    registry = load_registry(solo)
    assert registry.snapshot.skills["solo/solo"].standing is Standing.VALID
    assert problem_codes(registry) == []
    market = write_marketplace(tmp_path / "m", *({"name": name, "source": f"./{name}-1.0"} for name in ("tea", "db")))
    for name in ("tea", "db"):
        write_skill(market / f"{name}-1.0", name=name, references__more_md="x")
    write_skill(market / "db-1.0" / "inner")
    registry = load_registry(market)
    assert set(registry.snapshot.paths(Standing.VALID)) == {"tea/tea", "db/db", "db/db/inner"}
    assert problem_codes(registry) == []
    write_skill(market / "tea-1.0" / "skills" / "green")
    registry.refresh()
    assert usable(registry) == {"tea/green", "db/db", "db/db/inner"}
    assert problems_of(registry) == [("plugin-unlisted", "tea-1.0", None)]


def test_skill_of_a_whole_plugin_has_the_plugins_name(tmp_path: Path) -> None:
    folder = write_claude_plugin(tmp_path / "p", name="tea", skills=["./"])
    write_skill(folder, name="tea")
    index = Index(tmp_path / "index", 1)
    registry = load_registry(folder, index=index)
    assert (usable(registry), problem_codes(registry)) == ({"tea/tea"}, [])
    write_files(folder, {".claude-plugin/plugin.json": '{"name": "cups", "skills": "."}'})
    registry.refresh()
    assert (usable(registry), problem_codes(registry)) == ({"cups/tea"}, ["name-mismatch"])
    shutil.rmtree(folder / ".claude-plugin")
    registry.refresh()
    assert (usable(registry), problem_codes(registry)) == ({"tea"}, ["name-mismatch"])


def test_entry_for_the_root_that_lists_skills_has_no_others(tmp_path: Path) -> None:
    """So several entries share one folder in Claude Code; any other entry adds to `skills`."""
    folder = tmp_path / "m"
    for path in ("skills/tea", "more/jam", "part/skills/cup", "part/more/pot"):
        write_skill(folder / path)
    part = {"name": "part", "source": "./part", "strict": False, "skills": ["./more"]}
    write_marketplace(folder, {"name": "whole", "source": ".", "skills": ["./more"]}, part)
    assert usable(load_registry(folder)) == {"whole/jam", "part/cup", "part/pot"}
    for listed in ("./gone", "./"):
        write_marketplace(folder, {"name": "whole", "source": ".", "skills": [listed]}, part)
        assert usable(load_registry(folder)) == {"whole/tea", "part/cup", "part/pot"}


def test_plugin_that_its_marketplace_fetches_from_elsewhere_is_served_from_the_root(tmp_path: Path) -> None:
    folder = write_claude_plugin(tmp_path / "m", "skills/tea", name="drinks")
    write_marketplace(folder, {"name": "drinks", "source": {"source": "github", "repo": "acme/drinks"}})
    assert usable(load_registry(folder)) == {"drinks/tea"}


def test_linked_skills_folder_of_a_plugin_is_served_if_it_lies_in_the_root(tmp_path: Path) -> None:
    folder = write_marketplace(tmp_path / "m", {"name": "in", "source": "./in"}, {"name": "out", "source": "./out"})
    write_skill(folder / "skills" / "tea")
    write_skill(tmp_path / "away" / "jam")
    for name, target in (("in", "../skills"), ("out", tmp_path / "away")):
        (folder / name).mkdir()
        (folder / name / "skills").symlink_to(target)
    registry = load_registry(folder)
    assert usable(registry) == {"in/tea"}
    assert problems_of(registry) == [("link-outside", "out/skills", None)]
    out = {"name": "out", "source": "./out", "skills": ["./skills"]}
    registry = load_registry(write_marketplace(folder, out))
    assert ("plugin-path", MARKET, 1) in problems_of(registry)


TRAILING_COMMA_LINE = 3 if sys.version_info >= (3, 13) else 4
"""Python 3.13 reports the comma itself, and older ones what follows it."""


@each_row(("raw", "line", "words"), [
    (b'{"name": "m",\n "plugins": [\n  {"name": "p"},\n]}', TRAILING_COMMA_LINE, "is not valid JSON"),
    (b"", 1, "is not valid JSON"), (b"// plugins\n{}", 1, "is not valid JSON"),
    (b'{"name": "m",\n "owner": "caf\xe9"}', 2, "not UTF-8"), (b"[" * 200_000, None, "nests too deep"),
    (b"[]", 1, "not a JSON object"), (b"{}", 1, "an empty one"), (b'{"a": ' + b"1" * 5000 + b"}", None, "a number"),
    (b'{"name": "m",\n "owner": {}}', 1, "'plugins' is not a list"),
    (b'{"name": "m",\n "plugins": {"p": "./"}}', 1, "'plugins' is not a list"),
])  # fmt: skip
def test_skills_of_a_broken_marketplace_are_served_by_their_paths(
    tmp_path: Path, raw: bytes, line: int | None, words: str
) -> None:
    write_skill(tmp_path / "p" / "skills" / "tea")
    registry = load_registry(write_files(tmp_path, {MARKET: raw}))
    assert usable(registry) == {"p/skills/tea"}
    (found,) = registry.snapshot.problems
    assert (found.code, found.path, found.line) == ("plugin-manifest", f"{tmp_path}/{MARKET}", line)
    assert words in found.message
    write_marketplace(tmp_path, {"name": "p", "source": "./p"})
    registry.refresh()
    write_files(tmp_path, {MARKET: raw})
    registry.refresh()  # an edit that breaks the manifest renames no skill
    assert usable(registry) == {"p/tea"}
    assert [each.code for each in registry.snapshot.problems] == ["plugin-manifest"]


@each_row(("raw", "line", "words"), [
    (b'\xef\xbb\xbf{"name": "p"}', 1, "byte order mark"),
    (b'{\n "name": "p",\n "skills": [\n  "./skills"],\n "skills": [\n  "./skills"]\n}', 6, "the key 'skills'"),
    (b'{"name": "q",\n\n "name":\n "p"}', 4, "the key 'name'"),
    (b'{"name": "p",\n "author": {"name": "x"}, "x": ["name"]}', None, ""),
])  # fmt: skip
def test_manifest_that_some_hosts_refuse_is_used_and_reported(
    tmp_path: Path, raw: bytes, line: int | None, words: str
) -> None:
    write_skill(tmp_path / "skills" / "tea")
    registry = load_registry(write_files(tmp_path, {".claude-plugin/plugin.json": raw}))
    assert usable(registry) == {"p/tea"}
    found = [("plugin-manifest", each.line, words in each.message) for each in registry.snapshot.problems]
    assert found == ([("plugin-manifest", line, True)] if words else [])


@pytest.mark.parametrize("unreadable", [".claude-plugin/marketplace.json", ".claude-plugin/plugin.json"])
def test_manifest_that_is_no_file_is_reported(tmp_path: Path, unreadable: str) -> None:
    write_skill(tmp_path / "skills" / "tea")
    (tmp_path / unreadable).mkdir(parents=True)
    registry = load_registry(tmp_path)
    assert usable(registry) == {"skills/tea"}
    assert problems_of(registry) == [("plugin-manifest", unreadable, None)]


def test_bad_plugin_of_a_marketplace_stops_no_other(tmp_path: Path) -> None:
    for name in ("bad", "good"):
        write_skill(tmp_path / name / "skills" / "tea")
    write_marketplace(tmp_path, {"name": "bad", "source": "./bad"}, {"name": "good", "source": "./good"}, None, 3, [])
    write_files(tmp_path, {"bad/.claude-plugin/plugin.json": '{"name": "bad",}'})
    registry = load_registry(tmp_path)
    assert usable(registry) == {"bad/tea", "good/tea"}
    found = [each for each in problems_of(registry) if each[1] != MARKET]
    assert found == [("plugin-manifest", "bad/.claude-plugin/plugin.json", 1)]
    assert len(problems_of(registry)) == 4


@each_row(("path", "words", "is_served"), [
    ("./more/jam/SKILL.md", "names a file", True), ("./more/Jam", "names no folder", False),
    ("./more/*", "names no folder", False), ("more\\jam", "names no folder", False), ("", "", True),
    ("./more/jam/notes.md", "names no folder", False), ("../..", "leads out of the root", False),
    ("/", "leads out of the root", False), ("./a\0b", "names no folder", False), ("\ud800", "names no folder", False),
    ("./more/jam/", "", True), ("./more/../more/jam", "", True), (7, "names no folder", False),
    ({"path": "./more"}, "names no folder", False), (["./more"], "", True),
])  # fmt: skip
def test_wrong_path_of_a_manifest_is_reported_with_its_line(
    tmp_path: Path, path: object, words: str, is_served: bool
) -> None:
    folder = write_skill(tmp_path / "p" / "more" / "jam", notes_md="x").parents[1]
    if path == "":
        folder.joinpath("more/jam").rename(folder / "jam")
    write_skill(folder / "skills" / "tea")
    fields = {"name": "p", "skills": path}
    write_files(folder, {".claude-plugin/plugin.json": json.dumps(fields, indent=1)})
    registry = load_registry(folder)
    assert usable(registry) == {"p/tea", *(["p/jam"] if is_served else [])}
    found = [each for each in registry.snapshot.problems if each.code != "plugin-unlisted"]
    assert [each.code for each in found] == (["plugin-path"] if words else [])
    for each in found:
        assert words in each.message
        assert each.line == (3 if isinstance(path, str) else 4 if isinstance(path, dict) else None)


def test_line_of_a_wrong_path_is_that_of_its_own_entry(tmp_path: Path) -> None:
    entries = [{"name": name, "source": "./", "skills": ["./gone"]} for name in ("a", "b")]
    write_files(tmp_path, {MARKET: json.dumps({"name": "./gone", "plugins": entries}, indent=1)})
    lines = (tmp_path / MARKET).read_text().splitlines()
    expected = [number for number, line in enumerate(lines, 1) if line.strip() == '"./gone"']
    assert [each.line for each in load_registry(tmp_path).snapshot.problems] == expected


def test_number_of_reported_faults_of_manifests_is_bounded(tmp_path: Path) -> None:
    write_files(tmp_path, {MARKET: '{"plugins": [' + ",".join(["1"] * 5_000) + "]}"})
    assert len(load_registry(tmp_path).snapshot.problems) == 100


def test_skill_in_no_plugin_is_named_by_commands_and_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_marketplace(tmp_path / "m", {"name": "one", "source": "./one"})
    for path in ("one/skills/tea", "one/skills/group/deep", "extra/skills/jam", ".hidden/cup"):
        write_skill(folder / path)
    (write_skill(folder / "extra" / "case") / "SKILL.md").rename(folder / "extra/case/Skill.md")
    paths = ["extra/case", "extra/skills/jam", "one/skills/group/deep"]
    for command in ("list", "validate"):
        done = run(command, folder)
        said = done.stdout + done.stderr
        for path in paths:
            assert (
                f"{folder}/{path}: warning: the skill at {path} is not part of any plugin of marketplace.json; " in said
            )
        passed = {each["reason"]: each for each in json_of(command, folder)["passed_over"]}
        assert passed["dot-folder"]["folders"] == [".hidden"]
        assert passed["no-plugin"] == {
            "root": str(folder), "skills": 3, "folders": paths, "complete": True, "reason": "no-plugin"
        }  # fmt: skip
    report_to_log(load_registry(folder))
    assert caplog.text.count("[plugin-unlisted]") == 3


@each_row(("path", "name", "is_noted"), [
    *((f"other/{path}", "other", True) for path in (
        "SKILL.md.txt", "SKILL (1).md", "SKILLS.md", " SKILL.md", "SKILL.md ", "skill-copy.md", "SKILL.markdown",
        "SKILL.MD.md", "other.md", "OTHER.MD", "SKILL_2.md", "SKILL", "SKILL.mdx")),
    ("other.md", "other", True), ("group/jam.md", "jam", True), ("group/README.md", "jam", True),
    ("agents/reviewer.md", "reviewer", False), ("agents/one.md", "", False), ("other/notes.md", "notes", False),
    ("tea/other.md", "other", False), ("group/jam.txt", "jam", False), ("docs/skills.md", "", False),
    *((f"{folder}{archive}", "", True) for folder in ("", "group/") for archive in ("x.zip", "x.skill", "x.tar.xz")),
    ("docs/x.zip", "", False),
])  # fmt: skip
def test_near_miss_beside_skills_has_one_note(tmp_path: Path, path: str, name: str, is_noted: bool) -> None:
    write_files(tmp_path, {**skills("tea", "group/cup"), path: skill_md(name) if name else "x"})
    registry = load_registry(tmp_path)
    assert usable(registry) == {"tea", "group/cup"}
    noted = [(each.code, each.severity, each.path) for each in registry.snapshot.problems]
    assert noted == ([("near-miss", "note", f"{tmp_path}/{path}")] if is_noted else [])
    done = run("validate", tmp_path, "--strict")
    assert (done.returncode, done.stdout.count("[near-miss]")) == (0, int(is_noted))


def test_near_miss_goes_with_its_file_and_stays_while_it_is_edited(tmp_path: Path) -> None:
    registry = load_registry(write_files(tmp_path, {**skills("tea"), "jam/SKILL.md.txt": skill_md("jam")}))
    near = tmp_path / "jam" / "SKILL.md.txt"
    near.write_text(skill_md("jam", body="More."))
    registry.refresh([str(near)])
    assert [each.code for each in registry.snapshot.problems] == ["near-miss"]
    near.rename(near.with_name("SKILL.md"))
    registry.refresh([str(near), str(near.with_name("SKILL.md"))])
    assert (usable(registry), registry.snapshot.problems) == ({"tea", "jam"}, ())
