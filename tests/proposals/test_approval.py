"""Approval: a skill is replaced whole or not at all, whatever happens in between."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_skills_server import durable
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.errors import RequestError
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.proposals import approval
from mcp_skills_server.proposals.intake import propose
from mcp_skills_server.proposals.review import review
from mcp_skills_server.proposals.store import LOCAL, Proposal, ProposalStore
from proposals.test_intake import DRAFT, base_of, manifest
from wire import write_skill


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = write_skill(tmp_path / "skills" / "coffee", references__guide_md="one\n", scripts__old_sh="#!/bin/sh\n")
    (made / "scripts" / "old.sh").chmod(0o755)
    (made / ".notes").write_text("the author's own\n")
    (made / "references" / "to").symlink_to("guide.md")
    return made


@pytest.fixture
def registry(place: Path) -> Iterator[Registry]:
    with Registry([place.parent], Limits(hidden=True)) as made:  # what is left of a killed process is no skill there
        yield made


@pytest.fixture
def store(tmp_path: Path) -> ProposalStore:
    return ProposalStore(tmp_path / "proposals")


def change(registry: Registry, store: ProposalStore, **files: str | None) -> Proposal:
    """A change of coffee: its SKILL.md and these files."""
    named = {key.replace("__", "/").replace("_", "."): text for key, text in files.items()}
    draft = replace(DRAFT, name="coffee", base=base_of(registry, "coffee"))
    return propose(registry, store, draft, {SKILL_MD: manifest("coffee"), **named})


def tree(place: Path) -> dict[str, tuple[bytes, bool]]:
    found = (each for each in place.rglob("*") if each.is_file() and not each.is_symlink())
    return {each.relative_to(place).as_posix(): (each.read_bytes(), os.access(each, os.X_OK)) for each in found}


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_a_change_is_written_whole_and_what_it_leaves_alone_stays(
    registry: Registry, store: ProposalStore, place: Path
) -> None:
    made = change(registry, store, references__guide_md="two\n", references__new_md="new\n")
    before = tree(place)
    found = review(registry, store, made)
    assert not found.is_outdated and found.problems == [] and found.difference is not None
    decided = approval.approve(registry, store, made.id, reviewer="token:bob", message="thanks")
    assert (decided.state, decided.reviewer, decided.message) == ("approved", "token:bob", "thanks")
    assert store.get(made.id) == decided
    assert tree(place) == before | {
        SKILL_MD: (manifest("coffee").encode(), False),
        "references/guide.md": (b"two\n", False),
        "references/new.md": (b"new\n", False),
    }
    assert (place / "references" / "to").is_symlink() and names(place.parent) == ["coffee"]
    assert registry.read(registry.snapshot.skills["coffee"].files["references/new.md"]) == b"new\n"
    assert set(store.files(decided, "before")) == {SKILL_MD, "references/guide.md"}, "the history"
    assert review(registry, store, decided).difference is not None
    with pytest.raises(RequestError, match="approved already, by token:bob"):
        approval.approve(registry, store, made.id, reviewer=LOCAL)
    with pytest.raises(RequestError, match="approved already"):
        approval.reject(store, made.id, reviewer=LOCAL)


def test_a_new_skill_is_made_with_the_folders_above_it(registry: Registry, store: ProposalStore, place: Path) -> None:
    made = propose(registry, store, DRAFT, {SKILL_MD: manifest("green")})
    approval.approve(registry, store, made.id, reviewer=LOCAL)
    assert tree(place.parent / "tea") == {"green/SKILL.md": (manifest("green").encode(), False)}
    assert sorted(registry.snapshot.skills) == ["coffee", "tea/green"]
    again = propose(registry, store, replace(DRAFT, name="tea/black"), {SKILL_MD: manifest("black")})
    write_skill(place.parent / "tea" / "black", body="another's")
    with pytest.raises(RequestError, match="the skill tea/black exists by now"):
        approval.approve(registry, store, again.id, reviewer=LOCAL)
    assert "another's" in (place.parent / "tea" / "black" / SKILL_MD).read_text()


def test_a_new_skill_does_not_leave_by_a_link(registry: Registry, store: ProposalStore, place: Path) -> None:
    made = propose(registry, store, DRAFT, {SKILL_MD: manifest("green")})
    (place.parent.parent / "out").mkdir()
    (place.parent / "tea").symlink_to(place.parent.parent / "out")
    with pytest.raises(RequestError, match="is not a folder"):
        approval.approve(registry, store, made.id, reviewer=LOCAL)
    assert names(place.parent.parent / "out") == []
    (place.parent / "tea").unlink()
    (place.parent / "tea").mkdir()
    (place.parent / "tea" / "green").symlink_to(place.parent.parent / "out")
    with pytest.raises(RequestError, match="already exists"):
        approval.approve(registry, store, made.id, reviewer=LOCAL)
    assert names(place.parent.parent / "out") == []


def test_a_change_does_not_leave_by_a_link_in_the_skill(registry: Registry, store: ProposalStore, place: Path) -> None:
    (place.parent.parent / "out").mkdir()
    (place / "more").symlink_to(place.parent.parent / "out")
    registry.refresh()
    made = change(registry, store, more__new_md="new\n")
    before = tree(place)
    with pytest.raises(RequestError, match="behind a link"):
        approval.approve(registry, store, made.id, reviewer=LOCAL)
    assert tree(place) == before and names(place.parent.parent / "out") == [] and names(place.parent) == ["coffee"]


def test_nobody_approves_what_is_his_own_and_scripts_are_wanted_by_name(
    registry: Registry, store: ProposalStore, place: Path
) -> None:
    made = change(registry, store, scripts__run_py="print(1)\n", tool="#!/bin/sh\n")
    with pytest.raises(RequestError, match="your own"):
        approval.approve(registry, store, made.id, reviewer=made.principal, scripts=True)
    with pytest.raises(RequestError, match=r"scripts/run.py, tool"):
        approval.approve(registry, store, made.id, reviewer="token:bob")
    approval.approve(registry, store, made.id, reviewer="token:bob", scripts=True)
    assert not os.access(place / "scripts" / "run.py", os.X_OK) and not os.access(place / "tool", os.X_OK)
    assert os.access(place / "scripts" / "old.sh", os.X_OK), "what it leaves alone stays as it was"


def edit(place: Path) -> None:
    (place / "references" / "guide.md").write_text("edited meanwhile\n")


def add(place: Path) -> None:
    (place / "references" / "late.md").write_text("late\n")


def replace_link(place: Path) -> None:
    fresh = place / "references" / "fresh"
    fresh.write_text("saved by an editor\n")
    os.replace(fresh, place / "references" / "guide.md")


@pytest.mark.parametrize("work", [edit, add, replace_link])
def test_an_edit_before_the_approval_refuses_it(
    work: Callable[[Path], None], registry: Registry, store: ProposalStore, place: Path
) -> None:
    made = change(registry, store)
    work(place)
    edited = tree(place)
    registry.refresh()
    assert review(registry, store, made).is_outdated
    with pytest.raises(RequestError, match="changed since this was proposed"):
        approval.approve(registry, store, made.id, reviewer=LOCAL)
    assert tree(place) == edited and store.get(made.id).state == "pending" and names(place.parent) == ["coffee"]


@pytest.mark.parametrize("work", [edit, add, replace_link])
def test_an_edit_while_it_is_approved_wins(
    work: Callable[[Path], None], registry: Registry, store: ProposalStore, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = change(registry, store)
    exchanged: list[dict[str, tuple[bytes, bool]]] = []

    def exchange(one: Path, other: Path) -> None:
        if not exchanged:
            work(place)  # after all was read, before the names are exchanged
            exchanged.append(tree(place))
        durable.exchange(one, other)

    monkeypatch.setattr(approval, "exchange", exchange)
    with pytest.raises(RequestError, match="changed since this was proposed"):
        approval.approve(registry, store, made.id, reviewer=LOCAL)
    assert tree(place) == exchanged[0] and names(place.parent) == ["coffee"]
    assert store.get(made.id).state == "pending"


def test_where_folders_cannot_be_exchanged_nothing_is_lost(
    registry: Registry, store: ProposalStore, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, before = change(registry, store), tree(place)

    def refuse(one: Path, other: Path) -> None:
        raise OSError(22, "Invalid argument", str(other))

    monkeypatch.setattr(approval, "exchange", refuse)
    with pytest.raises(RequestError, match="apply it by hand"):
        approval.approve(registry, store, made.id, reviewer=LOCAL)
    assert tree(place) == before and names(place.parent) == ["coffee"]

    def once(one: Path, other: Path) -> None:
        if (one / SKILL_MD).read_text() == manifest("coffee"):
            edit(place)
            durable.exchange(one, other)
        else:
            refuse(one, other)

    monkeypatch.setattr(approval, "exchange", once)
    with pytest.raises(RequestError, match="the former content is in"):
        approval.approve(registry, store, made.id, reviewer=LOCAL)
    (kept,) = (each for each in place.parent.iterdir() if each.name.startswith("."))
    assert (kept / "references" / "guide.md").read_text() == "edited meanwhile\n"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # a fork beside threads, which only approves
@pytest.mark.parametrize("new", [False, True])
def test_a_process_that_is_killed_leaves_the_skill_before_or_after(
    new: bool, registry: Registry, store: ProposalStore, place: Path
) -> None:
    """kill -9 before each call that touches the disk: whatever is left, approving again ends it."""
    for step in range(1, 60):
        before = tree(place)
        text = f"{manifest('coffee')}\nstep {step}\n"
        name = "coffee"
        if new:
            name, text = f"tea/green{step}", manifest(f"green{step}")
            made = propose(registry, store, replace(DRAFT, name=name), {SKILL_MD: text})
        else:
            draft = replace(DRAFT, name=name, base=base_of(registry, name))
            made = propose(registry, store, draft, {SKILL_MD: text, "references/new.md": f"{step}\n"})
        child = os.fork()
        if child == 0:
            _die_at(step, registry, store, made)
        _, status = os.waitpid(child, 0)
        folder = place.parent / name
        if new:
            assert not folder.exists() or tree(folder) == {SKILL_MD: (text.encode(), False)}
        else:
            after = before | {SKILL_MD: (text.encode(), False), "references/new.md": (f"{step}\n".encode(), False)}
            assert tree(folder) in (before, after)
        registry.refresh()
        assert not any("mcp-skills-" in path for path in registry.snapshot.skills)
        if store.get(made.id).state == "pending":
            approval.approve(registry, store, made.id, reviewer=LOCAL)
        assert (folder / SKILL_MD).read_text() == text
        assert [each for each in names(folder.parent) if each.startswith(".")] == []
        if os.WIFEXITED(status):
            assert step > 5, "it was never killed"
            return
    raise AssertionError("it was killed at every step")


def _die_at(step: int, registry: Registry, store: ProposalStore, made: Proposal) -> None:
    """Approve in this process, and end it at the given system call."""
    import sys

    left = [step]
    watched = {"os.mkdir", "os.link", "os.rename", "os.rmdir", "os.remove", "ctypes.dlsym", "fcntl.flock"}

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event in watched or writes:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    try:
        approval.approve(registry, store, made.id, reviewer=LOCAL)
    finally:
        os._exit(0)


def test_a_full_disk_is_one_line(registry: Registry, store: ProposalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    made = change(registry, store)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mcp_skills_server.proposals.store.replace_file", full)
    with pytest.raises(RequestError, match="cannot be recorded"):
        approval.approve(registry, store, made.id, reviewer=LOCAL)
    monkeypatch.undo()
    assert approval.approve(registry, store, made.id, reviewer=LOCAL).state == "approved"
    monkeypatch.setattr("mcp_skills_server.proposals.store.write_folder", full)
    with pytest.raises(RequestError, match="cannot be stored"):
        change(registry, store, more_md="more\n")
    again = [each for each in store.list() if each.state == "pending"]
    assert again == []
