"""Approval of proposals: atomic replacement of a skill, races, crashes and symlinks."""

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
from mcp_skills_server.catalog.switches import switch
from mcp_skills_server.errors import RequestError
from mcp_skills_server.format.ignored import STATE_DIR
from mcp_skills_server.model import SKILL_MD, Snapshot
from mcp_skills_server.proposals import approval
from mcp_skills_server.proposals.intake import propose
from mcp_skills_server.proposals.review import review, root_of
from mcp_skills_server.proposals.store import LOCAL, Proposal, ProposalStore
from proposals.test_intake import DRAFT, base_of, manifest
from tables import each_row
from wire import write_skill


@dataclass
class Workspace:
    """The folder of the skill `coffee` in a root, and the proposals for this root."""

    coffee: Path
    registry: Registry
    store: ProposalStore

    @property
    def skills(self) -> Path:
        return self.coffee.parent

    def propose(self, name: str, files: dict[str, str | None]) -> Proposal:
        """Propose a new skill, or a change of `coffee`, with a manifest and these files."""
        base = base_of(self.registry, name) if name == "coffee" else ""
        files = {SKILL_MD: manifest(name.rpartition("/")[2]), **files}
        return propose(self.registry, self.store, replace(DRAFT, name=name, base=base), files, self.registry.snapshot)

    def approve(self, proposal: Proposal, reviewer: str = LOCAL, **more: Any) -> Proposal:
        return approval.approve(self.registry, self.store, proposal.id, reviewer=reviewer, **more)

    def assert_refused(self, proposal: Proposal, message: str, reviewer: str = LOCAL, **more: Any) -> None:
        """Assert that the proposal cannot be approved, and that no file changes."""
        before = tree(self.skills)
        with pytest.raises(RequestError, match=message):
            self.approve(proposal, reviewer, **more)
        assert tree(self.skills) == before


@pytest.fixture
def workspace(tmp_path: Path, store: ProposalStore) -> Iterator[Workspace]:
    coffee = write_skill(tmp_path / "skills" / "coffee", references__guide_md="one\n", scripts__old_sh="#!/bin/sh\n")
    (coffee / "references" / "old.md").write_text("old\n")
    (coffee / "scripts" / "old.sh").chmod(0o755)
    (coffee / ".notes").write_text("the author's own\n")
    (coffee / "references" / "to").symlink_to("guide.md")
    with Registry([coffee.parent], Limits(hidden=True)) as registry:  # temporary folders must be no skills even so
        yield Workspace(coffee, registry, store)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder outside the root, which must stay empty."""
    (tmp_path / "outside").mkdir()
    yield tmp_path / "outside"
    assert [*(tmp_path / "outside").iterdir()] == []


def tree(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """Return the content of each file, and whether it is executable, by path."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): (path.read_bytes(), os.access(path, os.X_OK)) for path in files}


def entry_names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_approved_change_is_written_and_other_files_stay(workspace: Workspace) -> None:
    changes = {"references/guide.md": "two\n", "references/new.md": "new\n", "references/old.md": None}
    proposal = workspace.propose("coffee", changes)
    before = tree(workspace.coffee)
    reviewed = review(workspace.registry, workspace.store, proposal, workspace.registry.snapshot)
    assert not reviewed.is_outdated
    assert reviewed.problems == reviewed.alike == []
    assert reviewed.difference is not None
    decided = workspace.approve(proposal, "token:bob", message="thanks")
    assert (decided.state, decided.reviewer, decided.message) == ("approved", "token:bob", "thanks")
    assert workspace.store.get(proposal.id) == decided
    del before["references/old.md"]
    assert tree(workspace.coffee) == before | {
        SKILL_MD: (manifest("coffee").encode(), False),
        "references/guide.md": (b"two\n", False),
        "references/new.md": (b"new\n", False),
    }
    assert (workspace.coffee / "references" / "to").is_symlink()
    assert entry_names(workspace.skills) == ["coffee"]
    assert workspace.registry.read(workspace.registry.snapshot.skills["coffee"].files["references/new.md"]) == b"new\n"
    replaced = workspace.store.files(decided, "before")
    assert replaced.keys() == {SKILL_MD, "references/guide.md", "references/old.md"}
    assert not any(executable for _, executable in tree(workspace.store.folder).values())
    stored = workspace.store.folder
    for path, mode in ((stored, 0o700), (stored / ".lock", 0o600), (stored / proposal.id / "proposal.toml", 0o600)):
        assert path.stat().st_mode & 0o777 == mode
    assert review(workspace.registry, workspace.store, decided, Snapshot({})).difference is not None
    workspace.assert_refused(proposal, "approved already, by token:bob")
    with pytest.raises(RequestError, match="approved already"):
        approval.reject(workspace.store, proposal.id, reviewer=LOCAL)


def test_review_uses_the_root_of_the_proposal(workspace: Workspace, tmp_path: Path) -> None:
    proposal = workspace.propose("coffee", {})
    write_skill(tmp_path / "first" / "tea")
    with Registry([tmp_path / "first", workspace.skills]) as registry:
        assert not review(registry, workspace.store, proposal, registry.snapshot).is_outdated
        assert root_of(registry, replace(proposal, root="/gone")) == registry.roots[0]


def test_approved_new_skill_is_created_with_parent_folders(workspace: Workspace) -> None:
    workspace.approve(workspace.propose("tea/green", {}))
    assert tree(workspace.skills / "tea") == {"green/SKILL.md": (manifest("green").encode(), False)}
    assert sorted(workspace.registry.snapshot.skills) == ["coffee", "tea/green"]
    second = workspace.propose("tea/black", {})
    write_skill(workspace.skills / "tea" / "black", body="another's")
    workspace.assert_refused(second, "the skill tea/black exists by now")
    change = workspace.propose("coffee", {})
    shutil.rmtree(workspace.coffee)
    workspace.assert_refused(change, "coffee no longer exists")


def test_new_skill_in_or_around_a_skill_that_was_approved_first_is_refused(workspace: Workspace) -> None:
    outer, inner = workspace.propose("tea", {}), workspace.propose("tea/green", {})
    workspace.approve(outer)
    workspace.assert_refused(inner, "'tea/green' would lie in or around another skill")
    around, inside = workspace.propose("cocoa", {}), workspace.propose("cocoa/dark", {})
    workspace.approve(inside)
    workspace.assert_refused(around, "'cocoa' would lie in or around another skill")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_files_approved_by_root_belong_to_owner_of_the_folder(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (workspace.coffee / "outside").symlink_to(tmp_path / "target")
    for path in (workspace.skills, *workspace.skills.rglob("*")):
        os.chown(path, 1000, 1000, follow_symlinks=False)
    (workspace.coffee / "references" / "guide.md").chmod(0o600)
    os.chown(workspace.coffee / "references" / "guide.md", 1001, 1001)
    workspace.registry.refresh()
    workspace.approve(workspace.propose("coffee", {"more/new.md": "new\n"}), scripts=True)
    workspace.approve(workspace.propose("tea/green", {}))
    others = {path.name for path in workspace.skills.rglob("*") if path.lstat().st_uid != 1000}
    assert others == {"guide.md"}, "an unchanged file keeps its owner"
    assert (tmp_path / "target").stat().st_uid == 0


def test_proposal_is_not_written_through_a_symlink(workspace: Workspace, outside: Path) -> None:
    (workspace.coffee / "more").symlink_to(outside)
    workspace.registry.refresh()
    for path in ("more/new.md", "more/sub/new.md"):
        workspace.assert_refused(workspace.propose("coffee", {path: "new\n"}), "behind a link", scripts=True)
    proposal, tea = workspace.propose("tea/green", {}), workspace.skills / "tea"
    tea.symlink_to(outside)
    workspace.assert_refused(proposal, "is not a folder")
    tea.unlink()
    tea.mkdir()
    (tea / "green").symlink_to(outside)
    workspace.assert_refused(proposal, "already exists")
    (tea / "green").rename(tea / f"{STATE_DIR}-{proposal.id}")
    workspace.assert_refused(proposal, "File exists")


def test_own_proposal_and_unconfirmed_scripts_are_refused(workspace: Workspace) -> None:
    proposal = workspace.propose("coffee", {"scripts/run.py": "print(1)\n", "tool": "#!/bin/sh\n"})
    workspace.assert_refused(proposal, "your own", proposal.principal, scripts=True)
    workspace.assert_refused(proposal, r"scripts/run.py, tool", "token:bob")
    workspace.approve(proposal, "token:bob", scripts=True)
    executable = {path for path, (_, is_executable) in tree(workspace.coffee).items() if is_executable}
    assert executable == {"scripts/old.sh"}, "an unchanged file keeps its mode"


@each_row(("before", "files", "brought"), [
    ({}, {"notes.md": "x", "lib/net.py": "x"}, []),  # without a script nothing can load them
    ({"scripts/a.py": "x"}, {"references/a.md": "x", "assets/a.json": "{}", "assets/a.txt": "x"}, []),
    ({"scripts/a.py": "x"}, {"lib/net.py": "x", "notes.md": "x"}, ["lib/net.py", "notes.md"]),
    ({"scripts/a.py": "x"}, {"references/b.py": "x", "assets/b.sh": "x"}, ["assets/b.sh", "references/b.py"]),
    ({"scripts/a.py": "x"}, {"assets/b.ksh": "x", "assets/b.BAT": "x"}, ["assets/b.BAT", "assets/b.ksh"]),
    ({"scripts/a.py": "x"}, {"assets/b.pkl": "x", "assets/b": "x"}, ["assets/b", "assets/b.pkl"]),
    ({"scripts/a.py": "x"}, {"references/b.md": "#!/bin/sh\n"}, ["references/b.md"]),
    ({"lib/net.py": "x"}, {"scripts/a.py": "x"}, ["lib/net.py", "scripts/a.py"]),  # the first script
    ({"lib/net.py": "x", "scripts/a.py": "x"}, {"scripts/b.py": "x"}, ["scripts/b.py"]),
    ({}, {"Scripts/a.py": "x"}, ["Scripts/a.py"]),
    ({}, {"Skill.toml": "x"}, ["Skill.toml"]),
    ({}, {"tool": "#!/bin/sh\n", "assets/a.md": "x"}, ["tool"]),
])  # fmt: skip
def test_everything_that_a_script_may_load_counts_as_a_script(
    before: dict[str, str], files: dict[str, str], brought: list[str]
) -> None:
    was = {SKILL_MD: (b"", False), **{path: (text.encode(), False) for path, text in before.items()}}
    now = was | {SKILL_MD: (b"new", False)} | {path: (text.encode(), False) for path, text in files.items()}
    assert approval.scripts_in(was, now) == brought


def test_file_that_a_script_may_load_needs_the_separate_yes(workspace: Workspace) -> None:
    proposal = workspace.propose("coffee", {"references/guide.md": "two\n", "lib/net.py": "x = 1\n"})
    assert review(workspace.registry, workspace.store, proposal, Snapshot({})).scripts == ["lib/net.py"]
    workspace.assert_refused(proposal, r"scripts, or what they load \(lib/net.py\)", "token:bob")
    workspace.approve(proposal, "token:bob", scripts=True)
    plain = workspace.propose("coffee", {"references/guide.md": "three\n"})
    workspace.approve(plain, "token:bob")


def test_refused_new_skill_leaves_no_folder(workspace: Workspace, tmp_path: Path) -> None:
    def folders() -> set[Path]:
        return {path for path in workspace.skills.rglob("*") if path.is_dir()}

    proposal = workspace.propose("tea/leaf/green", {})
    deeper = workspace.propose("tea/leaf/green/first/flush", {})
    workspace.approve(proposal)
    before = folders()
    workspace.assert_refused(deeper, "in or around")
    switch(str(workspace.skills), "tea/leaf/green", on=False)
    workspace.assert_refused(deeper, "is not a folder, or is a skill")
    other = workspace.propose("milk/cold/oat/new", {})
    (workspace.skills / "milk").mkdir()
    (workspace.skills / "milk" / "cold").symlink_to(tmp_path)
    before |= folders()
    workspace.assert_refused(other, "is not a folder")
    again = workspace.propose("soda/a/b", {})
    (workspace.skills / "soda").write_text("a file\n")
    workspace.assert_refused(again, "is not a folder")
    assert folders() == before


def test_file_that_is_not_served_is_not_overwritten(workspace: Workspace) -> None:
    write_skill(workspace.coffee / "in", notes_md="secret\n")
    workspace.registry.refresh()
    (workspace.coffee / "in" / SKILL_MD).unlink()
    workspace.registry.refresh()
    proposal = workspace.propose("coffee", {"in/notes.md": "x\n"})
    workspace.assert_refused(proposal, "in/notes.md is no file of coffee", scripts=True)


def edit_file(skill: Path) -> None:
    (skill / "references" / "guide.md").write_text("edited meanwhile\n")


def add_file(skill: Path) -> None:
    (skill / "references" / "late.md").write_text("late\n")


def replace_file(skill: Path) -> None:
    """Replace a file atomically, as editors do."""
    fresh = skill / "references" / "fresh"
    fresh.write_text("saved by an editor\n")
    os.replace(fresh, skill / "references" / "guide.md")


@pytest.mark.parametrize("change", [edit_file, add_file, replace_file])
def test_edit_during_or_before_approval_is_kept(
    workspace: Workspace, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    proposal, edited = workspace.propose("coffee", {}), list[Any]()

    def exchange(one: Path, other: Path) -> None:
        if not edited:
            change(workspace.coffee)  # after the files were read, before the folders are exchanged
            edited.append(tree(workspace.coffee))
        durable.exchange(one, other)

    monkeypatch.setattr(approval, "exchange", exchange)
    with pytest.raises(RequestError, match="changed since this was proposed"):
        workspace.approve(proposal)
    assert [tree(workspace.coffee)] == edited and entry_names(workspace.skills) == ["coffee"]
    workspace.registry.refresh()
    assert review(workspace.registry, workspace.store, proposal, workspace.registry.snapshot).is_outdated
    workspace.assert_refused(proposal, "changed since this was proposed")
    assert workspace.store.get(proposal.id).state == "pending"


def test_failed_folder_exchange_loses_nothing(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(one: Path, other: Path) -> None:
        raise OSError(22, "Invalid argument", str(other))

    def exchange_once(one: Path, other: Path) -> None:
        """Exchange the folders after an edit, but fail to exchange them back."""
        if (one / SKILL_MD).read_text() != manifest("coffee"):
            refuse(one, other)
        edit_file(workspace.coffee)
        durable.exchange(one, other)

    proposal = workspace.propose("coffee", {})
    monkeypatch.setattr(approval, "exchange", refuse)
    workspace.assert_refused(proposal, "apply it by hand")
    monkeypatch.setattr(approval, "exchange", exchange_once)
    with pytest.raises(RequestError, match="the former content is in"):
        workspace.approve(proposal)
    (former,) = workspace.skills.glob(".*")
    assert (former / "references" / "guide.md").read_text() == "edited meanwhile\n"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # the forked child uses no threads
@pytest.mark.parametrize("new", [False, True])
def test_killed_approval_leaves_old_or_new_skill(workspace: Workspace, new: bool) -> None:
    """SIGKILL before every second system call that writes. Approving again completes the approval."""
    for step in range(1 + new, 60, 2):
        name = f"tea/green{step}" if new else "coffee"
        folder = workspace.skills / name
        before, proposal = tree(folder), workspace.propose(name, {"references/new.md": f"{step}\n"})
        after = before | {path: (raw, False) for path, raw in workspace.store.files(proposal).items()}
        child = os.fork()
        if child == 0:
            approve_and_kill(step, workspace, proposal)
        _, status = os.waitpid(child, 0)
        assert tree(folder) in (before, after)
        workspace.registry.refresh()
        assert not any("mcp-skills-" in path for path in workspace.registry.snapshot.skills)
        if workspace.store.get(proposal.id).state == "pending":
            workspace.approve(proposal)
        assert tree(folder) == after
        assert [*folder.parent.glob(".*")] == []
        if os.WIFEXITED(status):
            assert step > 5, "the child was never killed"
            return
    raise AssertionError("the child was killed at every step")


def approve_and_kill(step: int, workspace: Workspace, proposal: Proposal) -> None:
    """Approve in this process, and kill it at the given system call."""
    remaining = step
    watched = {"os.mkdir", "os.link", "os.rename", "os.rmdir", "os.remove", "ctypes.dlsym", "fcntl.flock"}

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal remaining
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event in watched or writes:
            remaining -= 1
            if not remaining:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    try:
        workspace.approve(proposal)
    finally:
        os._exit(0)


def test_full_disk_is_reported_and_leaves_proposal_pending(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    proposal = workspace.propose("coffee", {})
    monkeypatch.setattr("mcp_skills_server.proposals.store.replace_file", full)
    with pytest.raises(RequestError, match="cannot be recorded"):
        workspace.approve(proposal)
    assert workspace.store.get(proposal.id).state == "pending"
    monkeypatch.undo()
    assert workspace.approve(proposal).state == "approved"
    monkeypatch.setattr("mcp_skills_server.proposals.store.write_folder", full)
    with pytest.raises(RequestError, match="cannot be stored"):
        workspace.propose("coffee", {"more.md": "more\n"})
    assert "a proposal cannot be written (No space left on device)" in caplog.text
    assert [stored.state for stored in workspace.store.list()] == ["approved"]
