"""Nested skills that are not served: excluded, switched off, gated or without SKILL.md, they take their files along."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from catalog.forest import load_registry, problem_codes, skill_md, skills, write_files
from catalog.test_selection import stdout_of
from catalog.test_views import ANN, grant, views_of
from mcp_skills_server.catalog.gates import Gate, GateRefusal, Selection
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.catalog.switches import switch
from mcp_skills_server.dialects import runtime
from mcp_skills_server.model import Problem, Standing
from mcp_skills_server.provenance.lock import LockedSource, Pins
from tables import each_row

FILES = {**skills("a", "a/in", "a/in/core"), "a/in/secret.txt": "secret", "a/own.txt": "own"}
OUTER = ["SKILL.md", "in/core/SKILL.md", "own.txt"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_files(tmp_path / "root", FILES)


def locked(root: Path, *left_out: str) -> Pins:
    """Return the gate of a lock of all skills but these."""
    registry = load_registry(root)
    digests = {path: registry.digest_over(skill) for path, skill in registry.snapshot.skills.items()}
    return Pins({str(root): LockedSource("", "", {path: digests[path] for path in digests if path not in left_out})})


def files_of_outer(registry: Registry) -> list[str]:
    registry.load()
    return sorted(registry.snapshot.skills["a"].files)


@each_row("make_gate", [
    lambda _: Selection(exclude=["a/in"]),
    lambda _: Selection(include=["a", "a/in/core"]),
    lambda root: locked(root, "a/in"),
    lambda _: lambda _, skill: GateRefusal(None) if skill.path == "a/in" else None,
])  # fmt: skip
def test_refused_nested_skill_takes_its_files_out_of_the_outer_one(
    tmp_path: Path, make_gate: Callable[[Path], Gate]
) -> None:
    (write_files(tmp_path / "root", FILES) / "a/in/away").symlink_to("/etc")
    root = tmp_path / "root"
    registry = Registry([root], gate=make_gate(root))
    assert files_of_outer(registry) == OUTER
    assert sorted(registry.snapshot.skills) == ["a", "a/in/core"]
    outer = registry.snapshot.skills["a"]
    assert outer.standing is Standing.VALID and not outer.findings, "the broken link is the nested skill's"
    assert registry.snapshot.find(("a", "in", "secret.txt"), Standing.UNUSABLE) is None
    if isinstance(make_gate(root), Pins):
        return  # the lock has the nested skill's files in its digest of the outer one
    (root / "a/in/secret.txt").write_text("another secret")
    assert not registry.refresh(), "nothing of a served skill has changed"
    registry.refresh([str(root / "a/in/secret.txt")])
    assert registry.snapshot.skills["a"] is outer


def test_link_in_a_served_skill_reads_nothing_of_the_refused_one_around_it(root: Path) -> None:
    (root / "a/in/core/note.txt").symlink_to("../secret.txt")
    (root / "a/in/core/mine.txt").symlink_to("SKILL.md")
    assert "in/core/note.txt" in load_registry(root).snapshot.skills["a"].files
    expected = sorted([*OUTER, "in/core/mine.txt"])
    assert files_of_outer(Registry([root], gate=Selection(exclude=["a/in"]))) == expected
    granted = views_of(load_registry(root), grant("token:ann", "a", "a/in/core")).for_principal(ANN)
    assert sorted(granted.snapshot.skills["a"].files) == expected


def test_switched_off_nested_skill_comes_and_goes_with_its_files(root: Path) -> None:
    registry = load_registry(root)
    before = registry.snapshot.skills["a"]
    switch(str(root), "a/in", on=False)
    changes = registry.refresh([str(root / "skills-off.txt")])
    assert sorted(changes.before) == ["a", "a/in", "a/in/core"]
    assert files_of_outer(registry) == ["SKILL.md", "own.txt"]
    assert "in" not in (registry.snapshot.children(("a",), Standing.VALID) or {})
    switch(str(root), "a/in", on=True)
    registry.refresh([str(root / "skills-off.txt")])
    assert registry.snapshot.skills["a"].files.keys() == before.files.keys()


def test_lock_admits_a_skill_with_its_refused_nested_ones_or_without(root: Path) -> None:
    pins = locked(root)
    switch(str(root), "a/in", on=False)
    registry = Registry([root], gate=pins)
    assert files_of_outer(registry) == ["SKILL.md", "own.txt"]
    assert files_of_outer(Registry([root], gate=locked(root))) == ["SKILL.md", "own.txt"]
    (root / "a/own.txt").write_text("changed")
    registry.refresh()
    assert not registry.snapshot.skills
    assert "lock-differs" in problem_codes(registry)


def test_commands_write_nothing_of_an_excluded_nested_skill(root: Path, tmp_path: Path) -> None:
    lock = tmp_path / "skills.lock"
    for command, output in (("publish", "site"), ("package", "plugin"), ("lock", lock.name)):
        stdout_of(command, root, "--exclude", "a/in", "--output", tmp_path / output)
    written = [path for path in tmp_path.rglob("*") if path.is_file() and root not in path.parents]
    assert len(written) > 5
    assert not [path for path in written if b"secret" in path.read_bytes()]
    first = lock.read_bytes()
    (root / "a/in/secret.txt").write_text("another secret")
    stdout_of("lock", root, "--exclude", "a/in", "--output", lock)
    assert lock.read_bytes() == first
    assert '"a/in"' not in lock.read_text()


def rename(path: str, name: str) -> Callable[[Path], object]:
    return lambda root: (root / path).rename((root / path).with_name(name))


@each_row(("files", "change", "granted"), [
    (skills("a", "a/in", "b"), rename("a/in/SKILL.md", "OTHER.md"), ("a", "b")),
    (skills("a", "a/in", "b"), rename("a/in/SKILL.md", "skill.md"), ("a", "b")),
    (skills("a", "a/sub/in"), rename("a/sub/in/SKILL.md", "OTHER.md"), ("a",)),
    (skills("a", "a/in", "a/in/core"), rename("a/in/SKILL.md", "OTHER.md"), ("a", "a/in/core")),
    (skills("a", "a/in", "a/in/core"), rename("a/in/core/SKILL.md", "OTHER.md"), ("a",)),
    (skills("a", "a/in"), rename("a/SKILL.md", "OTHER.md"), ("a/in",)),
    (skills("a", "b"), rename("b/SKILL.md", "skill.md"), ("a",)),
])  # fmt: skip
def test_renamed_skill_md_of_a_withheld_skill_changes_nothing_for_others(
    tmp_path: Path, files: dict[str, str], change: Callable[[Path], object], granted: tuple[str, ...]
) -> None:
    registry = load_registry(write_files(tmp_path / "root", files))
    views = views_of(registry, grant("token:ann", *granted))
    filtered = views.for_principal(ANN)
    before = filtered.snapshot
    change(tmp_path / "root")
    changes = registry.refresh()
    assert changes
    assert not views.visible_changes(changes, views.permissions(ANN))
    assert filtered.snapshot is before
    for place in before.skills:
        children = before.children(tuple(place.split("/")), Standing.VALID) or {}
        assert "sub" not in children


def test_finding_of_a_limit_does_not_count_withheld_files(tmp_path: Path) -> None:
    registry = load_registry(write_files(tmp_path, FILES), limits=Limits(files=3))
    (outer,) = views_of(registry, grant("token:ann", "a")).for_principal(ANN).snapshot.skills.values()
    (found,) = outer.findings
    assert found.code == "too-many-files"
    assert not any(character.isdigit() for character in found.message)


def test_ignored_files_of_a_withheld_nested_skill_are_not_named(root: Path) -> None:
    write_files(root, {"a/in/.secret": "x", "a/.own": "x"})
    registry = load_registry(root)

    def named() -> list[Problem]:
        skill = registry.snapshot.skills["a"]
        problems = registry.checks.problems_of(skill)
        return [each for each in problems if "secret" in each.message or "secret" in each.path]

    assert not named()
    (root / "a/in/SKILL.md").unlink()
    registry.refresh()
    assert not named()
    assert any(".own" in each.message for each in registry.checks.problems_of(registry.snapshot.skills["a"]))


def test_edited_outer_skill_is_judged_with_its_nested_skills_still_out(root: Path) -> None:
    registry = Registry([root], gate=Selection(exclude=["a/in"]))
    registry.load()
    (root / "a/SKILL.md").write_text(skill_md("a", body="Another text."))
    assert registry.refresh([str(root / "a/SKILL.md")]).after.keys() == {"a"}
    assert files_of_outer(registry) == OUTER


def test_scripts_of_a_nested_skill_are_none_of_the_outer_one(tmp_path: Path) -> None:
    """They need the nested skill's own grant."""
    files = {**skills("a", "a/scripts/in"), "a/scripts/run.py": "x", "a/scripts/in/run.py": "x"}
    outer = load_registry(write_files(tmp_path, files)).snapshot.skills["a"]
    assert "scripts/in/run.py" in outer.files
    assert list(runtime.scripts_of(outer)) == ["scripts/run.py"]
