"""Access-filtered views, and retries of requests that met a stale file."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from weakref import ref

import anyio
import pytest

from catalog.forest import FakeClock, Log, Patch, load_registry, skill_md, skills, write_files
from mcp_skills_server.access.grants import Grant, Grants, Pattern, Permissions
from mcp_skills_server.access.principal import Principal
from mcp_skills_server.caches import LruCache
from mcp_skills_server.catalog import views as views_module
from mcp_skills_server.catalog.gates import GateRefusal
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.scan import QUIET_S
from mcp_skills_server.catalog.views import View, Views, retry_when_stale
from mcp_skills_server.errors import StaleFileError, UnreadableError
from mcp_skills_server.model import Changes, Standing
from tables import each_row

ANN, BOB = Principal("token", "ann"), Principal("token", "bob")


def grant(principal: str, *patterns: str) -> Grant:
    return Grant((principal,), tuple(map(Pattern, patterns)), frozenset({"read"}))


def views_of(registry: Registry, *grants: Grant) -> Views:
    return Views(registry, Grants(grants, local=False))


FILES = {**skills("a", "a/in", "b", "team/c"), "a/in/secret.txt": "secret", "a/own.txt": "own"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path, FILES)


def test_principals_with_equal_permissions_share_one_snapshot(folder: Path) -> None:
    views = views_of(load_registry(folder), grant("*", "b"), grant("token:ann", "team/*"))
    ann, bob = views.for_principal(ANN), views.for_principal(BOB)
    assert bob is views.for_principal(None)
    assert sorted(ann.snapshot.skills) == ["b", "team/c"]
    assert sorted(bob.snapshot.skills) == ["b"]
    assert ann.snapshot is ann.snapshot


def test_unrestricted_view_has_the_snapshot_of_the_registry(folder: Path) -> None:
    registry = load_registry(folder)
    views = Views(registry)
    assert views.for_principal(ANN) is views.for_principal(None) is registry
    assert views.grants is None
    with pytest.raises(ValueError, match="grants replace grants"):
        views.replace([grant("*", "**")])
    assert views_of(registry, grant("*", "**")).for_principal(None).snapshot is registry.snapshot


def test_nested_skill_needs_a_grant_of_its_own(folder: Path) -> None:
    registry = load_registry(folder)
    views = views_of(registry, grant("token:ann", "a"), grant("token:bob", "a/in"), grant("*", "b"))
    outer = views.for_principal(ANN).snapshot
    assert sorted(outer.skills) == ["a", "b"]
    assert sorted(outer.skills["a"].files) == ["SKILL.md", "own.txt"]
    assert outer.find(("a", "in", "secret.txt"), Standing.VALID) is None
    inner = views.for_principal(BOB).snapshot
    assert inner.find(("a", "own.txt"), Standing.VALID) is None
    assert inner.skills["a/in"] is registry.snapshot.skills["a/in"]


@each_row(("link", "target"), [
    (link, each)
    for link in ("notes.md", "SKILL.md", "sub/notes.md")
    for each in ("secret.txt", "SKILL.md", "chained")
])  # fmt: skip
def test_link_into_a_withheld_nested_skill_is_not_served(tmp_path: Path, link: str, target: str) -> None:
    path = write_files(tmp_path, FILES) / "a" / link
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    (tmp_path / "a/in/chained").symlink_to("secret.txt")
    path.symlink_to(tmp_path / "a/in" / target)
    registry = load_registry(tmp_path)
    found = views_of(registry, grant("*", "a")).for_principal(None).snapshot.skills["a"]
    assert not [file for file in found.files.values() if file.location.startswith("a/in")]
    assert link not in registry.snapshot.skills["a"].files
    inner = registry.snapshot.skills["a/in"].files
    assert inner["chained"] is inner["secret.txt"]


# `replace` puts something unreadable in place of SKILL.md.
@each_row("replace", [None, Path.mkdir, os.mkfifo, lambda file: file.symlink_to("/etc/hostname")])
def test_files_of_a_refused_or_unreadable_nested_skill_stay_withheld(
    tmp_path: Path, replace: Callable[[Path], object] | None
) -> None:
    registry = load_registry(write_files(tmp_path, FILES))
    views = [views_of(registry, grant("*", "a"))]
    if replace is not None:
        (tmp_path / "a/in/SKILL.md").unlink()
        replace(tmp_path / "a/in/SKILL.md")
        registry.refresh()
        views.append(views_of(load_registry(tmp_path), grant("*", "a")))
    gated = Registry([tmp_path], gate=lambda _, skill: GateRefusal(None) if skill.path == "a/in" else None)
    with gated:
        for each in (*views, views_of(gated, grant("*", "a"))):
            assert sorted(each.for_principal(None).snapshot.skills["a"].files) == ["SKILL.md", "own.txt"]


def test_files_of_a_nested_skill_without_skill_md_stay_withheld(folder: Path, monkeypatch: Patch) -> None:
    clock, registry = FakeClock(monkeypatch), load_registry(folder)
    registry.follow()
    (folder / "a/link.txt").symlink_to("in/secret.txt")
    ann = views_of(registry, grant("*", "a")).for_principal(None)
    (folder / "a/in/SKILL.md").unlink()
    registry.refresh([str(folder / "a/in/SKILL.md")])
    # a new view: `ann` must not build its snapshot during the grace period
    now = views_of(registry, grant("*", "a")).for_principal(None).snapshot
    assert "a/in" in registry.snapshot.skills
    assert sorted(now.skills["a"].files) == ["SKILL.md", "own.txt"]
    clock.now += QUIET_S
    registry.settle()
    assert "a/in" not in registry.snapshot.skills
    for paths in ([str(folder / "a/in/secret.txt")], None):
        registry.refresh(paths)
        outer = ann.snapshot.skills["a"]
        assert sorted(outer.files) == ["SKILL.md", "own.txt"]
        assert not outer.empty
        assert "link.txt" not in registry.snapshot.skills["a"].files
    assert [each.code for each in registry.snapshot.problems] == ["skill-md-irregular"]
    assert ann.snapshot.problems == ()
    write_files(folder, skills("a/in"))
    registry.refresh()
    assert "in/secret.txt" in registry.snapshot.skills["a"].files
    assert sorted(ann.snapshot.skills["a"].files) == ["SKILL.md", "own.txt"]


def test_edit_rebuilds_only_the_filtered_snapshots_with_the_skill(folder: Path) -> None:
    registry = load_registry(folder)
    views = views_of(registry, grant("token:ann", "b"), grant("token:bob", "team/**"), grant("*", "a"))
    ann, bob, outer = views.for_principal(ANN), views.for_principal(BOB), views.for_principal(None)
    before = ann.snapshot, bob.snapshot, outer.snapshot
    write_files(folder, {"b/SKILL.md": skill_md("b", body="Another, longer."), "a/in/secret.txt": "another secret"})
    changes = registry.refresh()
    assert outer.snapshot is before[2], "the changed file is withheld from it"
    seen = [views.visible_changes(changes, views.permissions(who)) for who in (ANN, BOB, None)]
    assert [[*each.after] for each in seen] == [["b"], [], []]
    assert ann.snapshot is not before[0]
    assert bob.snapshot is before[1]
    assert ann.snapshot.skills["b"] is registry.snapshot.skills["b"]
    assert outer.snapshot is before[2], "it stays, though the registry has the skill anew"


def test_principals_share_what_the_same_skills_give(folder: Path) -> None:
    """Test permissions that differ in what is permitted beside reading, or in patterns below `**`."""
    registry = load_registry(folder)
    scripts = Grant(("token:bob",), (Pattern("a"),), frozenset({"scripts"}))
    views = views_of(registry, grant("*", "a"), scripts, grant("group:all", "**"), grant("group:also", "team/*"))
    assert views.for_principal(ANN) is not views.for_principal(BOB)
    assert views.for_principal(ANN).snapshot is views.for_principal(BOB).snapshot
    everything = [Principal("token", "cat", groups=frozenset({"all", other})) for other in ("also", "none")]
    assert views.for_principal(everything[0]) is not views.for_principal(everything[1])
    assert {views.for_principal(each).snapshot for each in everything} == {registry.snapshot}


def test_replaced_grants_apply_at_once_and_report_their_difference(folder: Path) -> None:
    registry = load_registry(folder)
    views = views_of(registry, grant("token:ann", "a"), grant("*", "b"))
    anonymous = views.for_principal(None).snapshot
    differences: list[Changes] = []

    def on_replaced(before: Grants, now: Grants) -> None:
        differences.append(views.difference(before.permissions(ANN), now.permissions(ANN)))

    views.on_replaced(on_replaced)
    assert sorted(views.for_principal(ANN).snapshot.skills) == ["a", "b"]
    views.replace([grant("token:ann", "team/*"), grant("*", "b")])
    assert sorted(views.for_principal(ANN).snapshot.skills) == ["b", "team/c"]
    assert [([*each.before], [*each.after]) for each in differences] == [(["a"], ["team/c"])]
    assert views.for_principal(None).snapshot is anonymous
    assert views.permissions(ANN) != views.permissions(None) == Permissions([grant("*", "b")])


def test_cached_snapshots_and_values_are_evicted_by_weight(folder: Path, monkeypatch: Patch) -> None:
    size = views_module._SET_BYTES
    monkeypatch.setattr(views_module, "_MAX_BYTES", 3 * size + 2 * views_module._SKILL_BYTES)
    views = views_of(load_registry(folder), grant("token:ann", "b"), grant("token:bob", "team/*", "a"))
    first = ref(views.for_principal(ANN).snapshot)
    assert len(views.for_principal(BOB).snapshot.skills) == 2
    assert first() is not None
    assert not views.for_principal(None).snapshot.skills
    gc.collect()
    assert first() is None
    assert sorted(views.for_principal(ANN).snapshot.skills) == ["b"]
    closed = list[str]()
    cache = LruCache(str, 1, close=closed.append)
    one = cache.get(1)
    assert cache.get(1) is one
    assert not closed
    assert cache.get(2) is cache.get(2)
    assert (closed, cache.weight()) == ([one], 1)


def test_stale_file_fails_the_request_after_one_retry_and_is_logged(tmp_path: Path, caplog: Log) -> None:
    registry = load_registry(write_files(tmp_path, skills("a")))
    views: list[View] = []

    async def handler(view: View) -> None:
        views.append(view)
        raise StaleFileError(str(tmp_path / "a/SKILL.md"), "Permission denied")

    with pytest.raises(UnreadableError, match="cannot be read; try again"):
        anyio.run(retry_when_stale, registry, handler)
    assert len(views) == 2
    assert caplog.messages == [f"cannot be read: Permission denied: {tmp_path / 'a/SKILL.md'}"]


def test_stale_file_retries_the_handler_with_the_new_snapshot(tmp_path: Path) -> None:
    write_files(tmp_path, {"a/SKILL.md": skill_md("a", body="Old.")})
    registry = load_registry(tmp_path)
    before = registry.snapshot
    write_files(tmp_path, {"a/SKILL.md": skill_md("a", body="New and longer.")})
    views: list[View] = []

    async def handler(view: View) -> str:
        views.append(view)
        return (await view.body(view.snapshot.skills["a"])).text

    assert anyio.run(retry_when_stale, registry, handler) == "New and longer."
    assert [view.snapshot is before for view in views] == [True, False]
