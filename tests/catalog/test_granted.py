"""Views: what grants leave of a registry, and the one snapshot that answers a request."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from weakref import ref

import anyio
import pytest

from catalog.forest import Clock, Log, Patch, loaded, plant, skill_md, skills
from mcp_skills_server.access.grants import Grant, Grants, Pattern, Permissions
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.catalog import views as views_module
from mcp_skills_server.catalog.gates import GateRefusal
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.scan import QUIET_S
from mcp_skills_server.catalog.views import LruCache, View, Views, retry_when_stale, weigh
from mcp_skills_server.errors import StaleFileError, UnreadableError
from mcp_skills_server.model import Changes, Standing
from tables import each_row

ANN, BOB = Principal("token", "ann"), Principal("token", "bob")


def grant(who: str, *patterns: str, may: str = "read") -> Grant:
    return Grant((who,), tuple(map(Pattern, patterns)), frozenset({may}))


def views_of(registry: Registry, *grants: Grant) -> Views:
    return Views(registry, Grants(grants, local=False))


FILES = {**skills("a", "a/in", "b", "team/c"), "a/in/secret.txt": "secret", "a/own.txt": "own"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return plant(tmp_path, FILES)


def test_who_has_the_same_grants_shares_one_snapshot(folder: Path) -> None:
    views = views_of(loaded(folder), grant("*", "b"), grant("token:ann", "team/*"))
    ann, bob, nobody = views.of(ANN), views.of(BOB), views.of(None)
    assert bob is nobody is not ann
    assert [sorted(each.snapshot.skills) for each in (ann, bob)] == [["b", "team/c"], ["b"]]
    assert ann.snapshot is ann.snapshot


def test_without_grants_and_with_a_grant_of_everything_the_snapshot_is_that_of_the_registry(folder: Path) -> None:
    registry = loaded(folder)
    views = Views(registry)
    assert views.of(ANN) is views.of(None) is registry and not views.are_restricted
    with pytest.raises(ValueError, match="grants replace grants"):
        views.replace([grant("*", "**")])
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


@each_row(("link", "target"), [
    (link, each)
    for link in ("notes.md", "SKILL.md", "sub/notes.md")
    for each in ("secret.txt", "SKILL.md", "chained")
])  # fmt: skip
def test_no_link_of_a_skill_leads_to_a_nested_one_that_is_withheld(tmp_path: Path, link: str, target: str) -> None:
    place = plant(tmp_path, FILES) / "a" / link
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    (tmp_path / "a/in/chained").symlink_to("secret.txt")
    place.symlink_to(tmp_path / "a/in" / target)
    registry = loaded(tmp_path)
    found = views_of(registry, grant("*", "a")).of(None).snapshot.skills["a"]
    assert not [path for path, file in found.files.items() if file.location.startswith("a/in")]
    assert link not in registry.snapshot.skills["a"].files
    inner = registry.snapshot.skills["a/in"].files
    assert inner["chained"] is inner["secret.txt"]


@each_row("replace", [None, Path.mkdir, os.mkfifo, lambda file: file.symlink_to("/etc/hostname")])
def test_files_of_a_nested_skill_stay_withheld_that_a_gate_refuses_or_whose_skill_md_cannot_be_read(
    tmp_path: Path, replace: Callable[[Path], object] | None
) -> None:
    registry = loaded(plant(tmp_path, FILES))
    views = [views_of(registry, grant("*", "a"))]
    if replace is not None:
        (tmp_path / "a/in/SKILL.md").unlink()
        replace(tmp_path / "a/in/SKILL.md")
        registry.refresh()
        views.append(views_of(loaded(tmp_path), grant("*", "a")))
    gated = Registry([tmp_path], gate=lambda _, skill: GateRefusal(None) if skill.path == "a/in" else None)
    with gated:
        for each in (*views, views_of(gated, grant("*", "a"))):
            assert sorted(each.of(None).snapshot.skills["a"].files) == ["SKILL.md", "own.txt"]


def test_files_of_a_nested_skill_stay_withheld_while_its_skill_md_is_away(folder: Path, monkeypatch: Patch) -> None:
    clock, registry = Clock(monkeypatch), loaded(folder)
    registry.followed = True
    (folder / "a/link.txt").symlink_to("in/secret.txt")
    ann = views_of(registry, grant("*", "a")).of(None)
    (folder / "a/in/SKILL.md").unlink()
    registry.refresh([str(folder / "a/in/SKILL.md")])
    now = views_of(registry, grant("*", "a")).of(None).snapshot  # and `ann` must not know it
    assert "a/in" in registry.snapshot.skills and sorted(now.skills["a"].files) == ["SKILL.md", "own.txt"]
    clock.now += QUIET_S
    registry.settle()
    assert "a/in" not in registry.snapshot.skills
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
    views = views_of(registry, grant("token:ann", "b"), grant("token:bob", "team/**"), grant("*", "a"))
    ann, bob, outer = views.of(ANN), views.of(BOB), views.of(None)
    before = ann.snapshot, bob.snapshot, outer.snapshot
    heard: list[tuple[str, Changes]] = []
    for name, each in (("ann", ann), ("bob", bob), ("outer", outer)):
        each.subscribe(lambda changes, name=name: heard.append((name, changes)))
    plant(folder, {"b/SKILL.md": skill_md("b", body="Another, longer."), "a/in/secret.txt": "another secret"})
    registry.refresh()
    assert outer.snapshot is before[2], "what differs is withheld from it"
    assert [(name, [*changes.after]) for name, changes in heard] == [("ann", ["b"])]
    assert ann.snapshot is not before[0] and bob.snapshot is before[1]
    assert ann.snapshot.skills["b"] is registry.snapshot.skills["b"]


def test_many_edits_that_nobody_asked_after_are_found_all_the_same(folder: Path) -> None:
    registry = loaded(folder)
    ann = views_of(registry, grant("*", "b", "x*")).of(None)
    before = ann.snapshot
    plant(folder, {"team/c/SKILL.md": skill_md("c", body="No.")})
    registry.refresh()
    assert ann.snapshot is before
    for path in ("x0", "x1"):
        registry.refresh([str(plant(folder, skills(path)) / path)])
    (folder / "b" / "SKILL.md").unlink()
    registry.refresh()
    assert sorted(ann.snapshot.skills) == ["x0", "x1"]


def test_other_grants_are_in_force_at_once_and_what_differs_is_known(folder: Path) -> None:
    registry = loaded(folder)
    views = views_of(registry, grant("token:ann", "a", "b"))
    seen: list[Changes] = []
    views.on_replaced(lambda before, now: seen.append(views.difference(before.permissions(ANN), now.permissions(ANN))))
    assert sorted(views.of(ANN).snapshot.skills) == ["a", "b"]
    views.replace([grant("token:ann", "b", "team/*")])
    assert sorted(views.of(ANN).snapshot.skills) == ["b", "team/c"]
    assert [([*each.before], [*each.after]) for each in seen] == [(["a"], ["team/c"])]


def test_snapshots_and_what_is_made_of_them_are_bounded_by_their_skills(folder: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(views_module, "_MOST_SKILLS", 152)
    views = views_of(loaded(folder), grant("token:ann", "b"), grant("token:bob", "team/*", "a"))
    first = ref(views.of(ANN).snapshot)
    assert len(views.of(BOB).snapshot.skills) == 2 and first() is not None
    assert not views.of(None).snapshot.skills
    gc.collect()
    assert first() is None
    assert sorted(views.of(ANN).snapshot.skills) == ["b"]
    closed = list[object]()
    made = LruCache(lambda _: object(), weigh, 60, closed.append)
    one = made.of(views.of(ANN))
    assert made.of(views.of(ANN)) is one and not closed
    two = made.of(views.of(BOB))
    assert closed == [one] and made.of(views.of(BOB)) is two and len(made) == 1


def test_permissions_that_are_the_same_by_another_file_keep_their_snapshot(folder: Path) -> None:
    views = views_of(loaded(folder), grant("*", "b"))
    before = views.of(None).snapshot
    views.replace([grant("token:ann", "a"), grant("*", "b")])
    assert views.of(None).snapshot is before
    assert views.permissions(ANN) != views.permissions(None) == Permissions([grant("*", "b")])


# One request


def test_a_file_that_stays_unreadable_refuses_the_request_with_a_line_in_the_log(tmp_path: Path, caplog: Log) -> None:
    registry = loaded(plant(tmp_path, skills("a")))
    tries: list[View] = []

    async def handler(view: View) -> None:
        tries.append(view)
        raise StaleFileError(str(tmp_path / "a/SKILL.md"), "Permission denied")

    with pytest.raises(UnreadableError, match="cannot be read; try again"):
        anyio.run(retry_when_stale, registry, handler)
    assert len(tries) == 2
    assert caplog.messages == [f"cannot be read: Permission denied: {tmp_path / 'a/SKILL.md'}"]


def test_a_handler_is_called_again_with_the_new_snapshot(tmp_path: Path) -> None:
    plant(tmp_path, {"a/SKILL.md": skill_md("a", body="Old.")})
    registry = loaded(tmp_path)
    before = registry.snapshot
    plant(tmp_path, {"a/SKILL.md": skill_md("a", body="New and longer.")})
    seen: list[View] = []

    async def handler(view: View) -> str:
        seen.append(view)
        return (await view.body(view.snapshot.skills["a"])).text

    assert anyio.run(retry_when_stale, registry, handler) == "New and longer."
    assert [view.snapshot is before for view in seen] == [True, False]
