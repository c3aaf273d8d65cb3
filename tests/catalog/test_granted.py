"""What grants leave of a registry, and that it costs what differs."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from weakref import ref

import pytest

from catalog.forest import Told, loaded, plant, skill_md, skills
from mcp_skills_server.access.grants import Grant, Grants, Pattern, Permissions
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog import views as views_module
from mcp_skills_server.catalog.gates import GateRefusal
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import LruCache, Views, weigh
from mcp_skills_server.model import Changes, Standing

ANN, BOB = Principal("token", "ann"), Principal("token", "bob")


def grant(who: str, *patterns: str, may: str = "read") -> Grant:
    return Grant((who,), tuple(map(Pattern, patterns)), frozenset({may}))


def views_of(registry: Registry, *grants: Grant) -> Views:
    return Views(registry, Grants(grants, local=False))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three skills, and one in the folder of another."""
    return plant(tmp_path, {**skills("a", "a/in", "b", "team/c"), "a/in/secret.txt": "secret", "a/own.txt": "own"})


def test_who_has_the_same_grants_shares_one_snapshot(folder: Path) -> None:
    views = views_of(loaded(folder), grant("*", "b"), grant("token:ann", "team/*"))
    ann, bob, nobody = views.of(ANN), views.of(BOB), views.of(None)
    assert bob is nobody is not ann
    assert [sorted(each.snapshot.skills) for each in (ann, bob)] == [["b", "team/c"], ["b"]]
    assert ann.snapshot is ann.snapshot


def test_without_grants_everybody_has_the_registry_itself(folder: Path) -> None:
    registry = loaded(folder)
    views = Views(registry)
    assert views.of(ANN) is views.of(None) is registry and not views.are_restricted
    with pytest.raises(ValueError, match="grants replace grants"):
        views.replace([grant("*", "**")])


def test_who_may_read_everything_has_the_snapshot_of_the_registry(folder: Path) -> None:
    registry = loaded(folder)
    assert views_of(registry, grant("*", "**")).of(None).snapshot is registry.snapshot


def test_a_skill_in_anothers_folder_is_granted_by_its_own_path(folder: Path) -> None:
    registry = loaded(folder)
    views = views_of(registry, grant("token:ann", "a"), grant("token:bob", "a/in"), grant("*", "b"))
    outer = views.of(ANN).snapshot
    assert sorted(outer.skills) == ["a", "b"] and sorted(outer.skills["a"].files) == ["SKILL.md", "own.txt"]
    assert outer.find(("a", "in", "secret.txt"), Standing.VALID) is None
    inner = views.of(BOB).snapshot
    assert inner.find(("a", "own.txt"), Standing.VALID) is None
    assert inner.skills["a/in"] is registry.snapshot.skills["a/in"]


def test_what_is_wrong_in_a_withheld_folder_is_not_said_of_the_skill_around_it(folder: Path) -> None:
    (folder / "a" / "in" / "away").symlink_to("/etc")
    registry = loaded(folder)
    assert any("in/away" in each.message for each in registry.snapshot.skills["a"].problems)
    left = views_of(registry, grant("*", "a")).of(None).snapshot.skills["a"]
    assert left.problems == () and left.standing is Standing.VALID


@pytest.mark.parametrize("link", ["notes.md", "SKILL.md", "sub/notes.md"])
@pytest.mark.parametrize("target", ["secret.txt", "SKILL.md", "chained"])
def test_no_link_of_a_skill_leads_to_a_nested_one_that_is_withheld(folder: Path, link: str, target: str) -> None:
    place = folder / "a" / link
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    (folder / "a/in/chained").symlink_to("secret.txt")
    place.symlink_to(folder / "a/in" / target)
    registry = loaded(folder)
    found = views_of(registry, grant("*", "a")).of(None).snapshot.skills["a"]
    assert not [path for path, file in found.files.items() if file.location.startswith("a/in")]
    assert link not in registry.snapshot.skills["a"].files
    inner = registry.snapshot.skills["a/in"].files
    assert inner["chained"] is inner["secret.txt"]


def by_a_folder(place: Path) -> None:
    place.mkdir()


def by_a_link_out(place: Path) -> None:
    place.symlink_to("/etc/hostname")


@pytest.mark.parametrize("replaced", [None, by_a_folder, os.mkfifo, by_a_link_out])
def test_files_of_a_nested_skill_that_a_gate_refuses_stay_withheld(
    folder: Path, replaced: Callable[[Path], None] | None
) -> None:
    if replaced is not None:
        (folder / "a/in/SKILL.md").unlink()
        replaced(folder / "a/in/SKILL.md")
    registry = Registry([folder], quiet_s=0, gate=lambda _, skill: GateRefusal(None) if skill.path == "a/in" else None)
    registry.load()
    found = views_of(registry, grant("*", "a")).of(None).snapshot.skills["a"]
    assert sorted(found.files) == ["SKILL.md", "own.txt"]


def test_files_of_a_nested_skill_stay_withheld_while_its_skill_md_is_away(folder: Path) -> None:
    registry = loaded(folder, quiet_s=0.05)
    seen = Told(registry)
    (folder / "a/link.txt").symlink_to("in/secret.txt")
    ann = views_of(registry, grant("*", "a")).of(None)
    (folder / "a/in/SKILL.md").unlink()
    registry.refresh([str(folder / "a/in/SKILL.md")])
    seen.until(lambda found: "a/in" not in found.snapshot.skills)
    for paths in ([str(folder / "a/in/secret.txt")], None):
        registry.refresh(paths)
        left = ann.snapshot.skills["a"]
        assert sorted(left.files) == ["SKILL.md", "own.txt"] and not left.empty
        assert "link.txt" not in registry.snapshot.skills["a"].files
    assert [each.code for each in registry.snapshot.problems] == ["skill-md-irregular"]
    assert ann.snapshot.problems == ()
    plant(folder, skills("a/in"))
    registry.refresh()
    assert "in/secret.txt" in registry.snapshot.skills["a"].files
    assert sorted(ann.snapshot.skills["a"].files) == ["SKILL.md", "own.txt"]


def test_an_edit_makes_the_snapshots_anew_that_have_the_skill_and_no_others(folder: Path) -> None:
    registry = loaded(folder)
    views = views_of(registry, grant("token:ann", "b"), grant("token:bob", "team/**"))
    ann, bob = views.of(ANN), views.of(BOB)
    before = ann.snapshot, bob.snapshot
    heard: list[tuple[str, Changes]] = []
    for name, each in (("ann", ann), ("bob", bob)):
        each.subscribe(lambda changes, name=name: heard.append((name, changes)))
    plant(folder, {"b/SKILL.md": skill_md("b", body="Another, longer.")})
    registry.refresh()
    assert [(name, [*changes.after]) for name, changes in heard] == [("ann", ["b"])]
    assert ann.snapshot is not before[0] and bob.snapshot is before[1]
    assert ann.snapshot.skills["b"] is registry.snapshot.skills["b"]


def test_many_edits_that_nobody_asked_after_are_found_all_the_same(folder: Path) -> None:
    registry = loaded(folder)
    ann = views_of(registry, grant("*", "b", "x*")).of(None)
    before = ann.snapshot
    for number in range(12):
        plant(folder, {"team/c/SKILL.md": skill_md("c", body="No." * (number + 2))})
        registry.refresh()
    assert ann.snapshot is before
    for number in range(12):
        plant(folder, {f"x{number}/SKILL.md": skill_md(f"x{number}")})
        registry.refresh()
    (folder / "b" / "SKILL.md").unlink()
    registry.refresh()
    assert sorted(ann.snapshot.skills) == sorted(f"x{number}" for number in range(12))


def test_an_edit_of_what_is_withheld_in_a_skill_is_no_difference(folder: Path) -> None:
    registry = loaded(folder)
    ann = views_of(registry, grant("*", "a")).of(None)
    before, heard = ann.snapshot, list[Changes]()
    ann.subscribe(heard.append)
    plant(folder, {"a/in/secret.txt": "another secret"})
    registry.refresh()
    assert ann.snapshot is before and not heard


def test_other_grants_are_in_force_at_once_and_what_differs_is_known(folder: Path) -> None:
    registry = loaded(folder)
    views = views_of(registry, grant("token:ann", "a", "b"))
    seen: list[Changes] = []
    views.on_replaced(lambda before, now: seen.append(views.difference(before.permissions(ANN), now.permissions(ANN))))
    assert sorted(views.of(ANN).snapshot.skills) == ["a", "b"]
    views.replace([grant("token:ann", "b", "team/*")])
    assert sorted(views.of(ANN).snapshot.skills) == ["b", "team/c"]
    assert [([*each.before], [*each.after]) for each in seen] == [(["a"], ["team/c"])]


def test_snapshots_are_bounded_by_the_skills_that_they_hold(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views_module, "_MOST_SKILLS", 152)
    views = views_of(loaded(folder), grant("token:ann", "b"), grant("token:bob", "team/*", "a"))
    first = ref(views.of(ANN).snapshot)
    assert len(views.of(BOB).snapshot.skills) == 2 and first() is not None
    assert not views.of(None).snapshot.skills
    gc.collect()
    assert first() is None
    assert sorted(views.of(ANN).snapshot.skills) == ["b"]


def test_what_is_made_of_sets_is_bounded_and_what_goes_is_closed(folder: Path) -> None:
    views, closed = views_of(loaded(folder), grant("token:ann", "b"), grant("token:bob", "a")), list[object]()
    made = LruCache(lambda _: object(), weigh, 60, closed.append)
    first = made.of(views.of(ANN))
    assert made.of(views.of(ANN)) is first and not closed
    second = made.of(views.of(BOB))
    assert closed == [first] and made.of(views.of(BOB)) is second and len(made) == 1


def test_permissions_that_are_the_same_by_another_file_keep_their_snapshot(folder: Path) -> None:
    views = views_of(loaded(folder), grant("*", "b"))
    before = views.of(None).snapshot
    views.replace([grant("token:ann", "a"), grant("*", "b")])
    assert views.of(None).snapshot is before
    assert views.permissions(ANN) != views.permissions(None) == Permissions([grant("*", "b")])
