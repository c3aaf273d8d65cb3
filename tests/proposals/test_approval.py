"""Approval: a skill is replaced whole or not at all, whatever happens in between."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from mcp_skills_server import durable
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.errors import RequestError
from mcp_skills_server.format.ignored import STATE_DIR
from mcp_skills_server.model import SKILL_MD
from mcp_skills_server.proposals import approval
from mcp_skills_server.proposals.intake import propose
from mcp_skills_server.proposals.review import review, root_of
from mcp_skills_server.proposals.store import LOCAL, Proposal, ProposalStore
from proposals.test_intake import DRAFT, base_of, manifest
from wire import write_skill


@dataclass
class Desk:
    """A reviewer's: the folder of the skill `coffee` among others, and the proposals for them."""

    coffee: Path
    registry: Registry
    store: ProposalStore

    @property
    def skills(self) -> Path:
        return self.coffee.parent

    def proposed(self, name: str, files: dict[str, str | None]) -> Proposal:
        """A new skill, or a change of coffee, with a manifest and these files."""
        base = base_of(self.registry, name) if name == "coffee" else ""
        given = {SKILL_MD: manifest(name.rpartition("/")[2]), **files}
        return propose(self.registry, self.store, replace(DRAFT, name=name, base=base), given)

    def approve(self, made: Proposal, reviewer: str = LOCAL, **more: Any) -> Proposal:
        return approval.approve(self.registry, self.store, made.id, reviewer=reviewer, **more)

    def refuses(self, made: Proposal, words: str, reviewer: str = LOCAL, **more: Any) -> None:
        """The proposal cannot be approved, and nothing is left of the attempt."""
        before = tree(self.skills)
        with pytest.raises(RequestError, match=words):
            self.approve(made, reviewer, **more)
        assert tree(self.skills) == before


@pytest.fixture
def desk(tmp_path: Path, store: ProposalStore) -> Iterator[Desk]:
    made = write_skill(tmp_path / "skills" / "coffee", references__guide_md="one\n", scripts__old_sh="#!/bin/sh\n")
    (made / "references" / "old.md").write_text("old\n")
    (made / "scripts" / "old.sh").chmod(0o755)
    (made / ".notes").write_text("the author's own\n")
    (made / "references" / "to").symlink_to("guide.md")
    with Registry([made.parent], Limits(hidden=True)) as registry:  # where what a killed process leaves is no skill
        yield Desk(made, registry, store)


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """A folder outside the skills, where nothing is to be written."""
    (tmp_path / "out").mkdir()
    yield tmp_path / "out"
    assert [*(tmp_path / "out").iterdir()] == []


def tree(place: Path) -> dict[str, tuple[bytes, bool]]:
    found = (each for each in place.rglob("*") if each.is_file() and not each.is_symlink())
    return {each.relative_to(place).as_posix(): (each.read_bytes(), os.access(each, os.X_OK)) for each in found}


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_a_change_is_written_whole_and_what_it_leaves_alone_stays(desk: Desk) -> None:
    changes = {"references/guide.md": "two\n", "references/new.md": "new\n", "references/old.md": None}
    made = desk.proposed("coffee", changes)
    before = tree(desk.coffee)
    found = review(desk.registry, desk.store, made)
    assert not found.is_outdated and found.problems == found.alike == [] and found.difference is not None
    decided = desk.approve(made, "token:bob", message="thanks")
    assert (decided.state, decided.reviewer, decided.message) == ("approved", "token:bob", "thanks")
    assert desk.store.get(made.id) == decided
    del before["references/old.md"]
    assert tree(desk.coffee) == before | {
        SKILL_MD: (manifest("coffee").encode(), False),
        "references/guide.md": (b"two\n", False),
        "references/new.md": (b"new\n", False),
    }
    assert (desk.coffee / "references" / "to").is_symlink() and names(desk.skills) == ["coffee"]
    assert desk.registry.read(desk.registry.snapshot.skills["coffee"].files["references/new.md"]) == b"new\n"
    assert set(desk.store.files(decided, "before")) == {SKILL_MD, "references/guide.md", "references/old.md"}, (
        "the history"
    )
    assert not any(executable for _, executable in tree(desk.store.folder).values())
    places = (desk.store.folder, desk.store.folder / ".lock", desk.store.folder / made.id / "proposal.toml")
    assert [place.stat().st_mode & 0o777 for place in places] == [0o700, 0o600, 0o600]
    assert review(desk.registry, desk.store, decided).difference is not None
    desk.refuses(made, "approved already, by token:bob")
    with pytest.raises(RequestError, match="approved already"):
        approval.reject(desk.store, made.id, reviewer=LOCAL)


def test_a_review_is_of_the_root_that_the_proposal_is_for(desk: Desk, tmp_path: Path) -> None:
    made = desk.proposed("coffee", {})
    write_skill(tmp_path / "first" / "tea")
    with Registry([tmp_path / "first", desk.skills]) as registry:
        assert not review(registry, desk.store, made).is_outdated
        assert root_of(registry, replace(made, root="/gone")) == registry.roots[0]


def test_a_new_skill_is_made_with_the_folders_above_it(desk: Desk) -> None:
    desk.approve(desk.proposed("tea/green", {}))
    assert tree(desk.skills / "tea") == {"green/SKILL.md": (manifest("green").encode(), False)}
    assert sorted(desk.registry.snapshot.skills) == ["coffee", "tea/green"]
    again = desk.proposed("tea/black", {})
    write_skill(desk.skills / "tea" / "black", body="another's")
    desk.refuses(again, "the skill tea/black exists by now")
    change = desk.proposed("coffee", {})
    shutil.rmtree(desk.coffee)
    desk.refuses(change, "coffee no longer exists")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_what_root_approves_belongs_to_the_owner_of_the_folder(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    (desk.coffee / "out").symlink_to(tmp_path / "mine")
    for place in (desk.skills, *desk.skills.rglob("*")):
        os.chown(place, 1000, 1000, follow_symlinks=False)
    (desk.coffee / "references" / "guide.md").chmod(0o600)
    os.chown(desk.coffee / "references" / "guide.md", 1001, 1001)
    desk.registry.refresh()
    desk.approve(desk.proposed("coffee", {"more/new.md": "new\n"}))
    desk.approve(desk.proposed("tea/green", {}))
    others = {place.name for place in desk.skills.rglob("*") if place.lstat().st_uid != 1000}
    assert others == {"guide.md"}, "what it leaves alone stays"
    assert (tmp_path / "mine").stat().st_uid == 0


def test_a_new_skill_does_not_leave_by_a_link(desk: Desk, out: Path) -> None:
    made, tea = desk.proposed("tea/green", {}), desk.skills / "tea"
    tea.symlink_to(out)
    desk.refuses(made, "is not a folder")
    tea.unlink()
    tea.mkdir()
    (tea / "green").symlink_to(out)
    desk.refuses(made, "already exists")
    (tea / "green").rename(tea / f"{STATE_DIR}-{made.id}")
    desk.refuses(made, "File exists")


def test_a_change_does_not_leave_by_a_link_in_the_skill(desk: Desk, out: Path) -> None:
    (desk.coffee / "more").symlink_to(out)
    desk.registry.refresh()
    desk.refuses(desk.proposed("coffee", {"more/new.md": "new\n"}), "behind a link")


def test_nobody_approves_what_is_his_own_and_scripts_are_wanted_by_name(desk: Desk) -> None:
    made = desk.proposed("coffee", {"scripts/run.py": "print(1)\n", "tool": "#!/bin/sh\n"})
    desk.refuses(made, "your own", made.principal, scripts=True)
    desk.refuses(made, r"scripts/run.py, tool", "token:bob")
    desk.approve(made, "token:bob", scripts=True)
    executable = {path for path, (_, is_executable) in tree(desk.coffee).items() if is_executable}
    assert executable == {"scripts/old.sh"}, "what it leaves alone stays as it was"


def edit(place: Path) -> None:
    (place / "references" / "guide.md").write_text("edited meanwhile\n")


def add(place: Path) -> None:
    (place / "references" / "late.md").write_text("late\n")


def replace_link(place: Path) -> None:
    fresh = place / "references" / "fresh"
    fresh.write_text("saved by an editor\n")
    os.replace(fresh, place / "references" / "guide.md")


@pytest.mark.parametrize("work", [edit, add, replace_link])
def test_an_edit_before_the_approval_refuses_it(desk: Desk, work: Callable[[Path], None]) -> None:
    made = desk.proposed("coffee", {})
    work(desk.coffee)
    desk.registry.refresh()
    assert review(desk.registry, desk.store, made).is_outdated
    desk.refuses(made, "changed since this was proposed")
    assert desk.store.get(made.id).state == "pending"


@pytest.mark.parametrize("work", [edit, add, replace_link])
def test_an_edit_while_it_is_approved_wins(
    desk: Desk, work: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, edited = desk.proposed("coffee", {}), list[Any]()

    def exchange(one: Path, other: Path) -> None:
        if not edited:
            work(desk.coffee)  # after all was read, before the names are exchanged
            edited.append(tree(desk.coffee))
        durable.exchange(one, other)

    monkeypatch.setattr(approval, "exchange", exchange)
    with pytest.raises(RequestError, match="changed since this was proposed"):
        desk.approve(made)
    assert [tree(desk.coffee)] == edited and names(desk.skills) == ["coffee"]
    assert desk.store.get(made.id).state == "pending"


def test_where_folders_cannot_be_exchanged_nothing_is_lost(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(one: Path, other: Path) -> None:
        raise OSError(22, "Invalid argument", str(other))

    def once(one: Path, other: Path) -> None:
        if (one / SKILL_MD).read_text() != manifest("coffee"):
            refuse(one, other)
        edit(desk.coffee)
        durable.exchange(one, other)

    made = desk.proposed("coffee", {})
    monkeypatch.setattr(approval, "exchange", refuse)
    desk.refuses(made, "apply it by hand")
    monkeypatch.setattr(approval, "exchange", once)
    with pytest.raises(RequestError, match="the former content is in"):
        desk.approve(made)
    (kept,) = (each for each in desk.skills.iterdir() if each.name.startswith("."))
    assert (kept / "references" / "guide.md").read_text() == "edited meanwhile\n"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # a fork beside threads, which only approves
@pytest.mark.parametrize("new", [False, True])
def test_a_process_that_is_killed_leaves_the_skill_before_or_after(desk: Desk, new: bool) -> None:
    """kill -9 before each call that touches the disk: whatever is left, approving again ends it."""
    for step in range(1, 60):
        name = f"tea/green{step}" if new else "coffee"
        folder = desk.skills / name
        before, made = tree(folder), desk.proposed(name, {"references/new.md": f"{step}\n"})
        after = before | {path: (raw, False) for path, raw in desk.store.files(made).items()}
        child = os.fork()
        if child == 0:
            _die_at(step, desk, made)
        _, status = os.waitpid(child, 0)
        assert tree(folder) in (before, after)
        desk.registry.refresh()
        assert not any("mcp-skills-" in path for path in desk.registry.snapshot.skills)
        if desk.store.get(made.id).state == "pending":
            desk.approve(made)
        assert tree(folder) == after
        assert [each for each in names(folder.parent) if each.startswith(".")] == []
        if os.WIFEXITED(status):
            assert step > 5, "it was never killed"
            return
    raise AssertionError("it was killed at every step")


def _die_at(step: int, desk: Desk, made: Proposal) -> None:
    """Approve in this process, and end it at the given system call."""
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
        desk.approve(made)
    finally:
        os._exit(0)


def test_a_full_disk_is_one_line(desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    made = desk.proposed("coffee", {})
    monkeypatch.setattr("mcp_skills_server.proposals.store.replace_file", full)
    with pytest.raises(RequestError, match="cannot be recorded"):
        desk.approve(made)
    assert desk.store.get(made.id).state == "pending"
    monkeypatch.undo()
    assert desk.approve(made).state == "approved"
    monkeypatch.setattr("mcp_skills_server.proposals.store.write_folder", full)
    with pytest.raises(RequestError, match="cannot be stored"):
        desk.proposed("coffee", {"more.md": "more\n"})
    assert "a proposal cannot be written (No space left on device)" in caplog.text
    assert [each.state for each in desk.store.list()] == ["approved"]
