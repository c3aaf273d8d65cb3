"""Power cuts: the order of fsync and rename, which keeps every named file whole.

A power cut keeps what was synchronized, and any part of the rest. So a file must be synchronized
before it is renamed, and its folder afterwards.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mcp_skills_server import durable
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.cli import cli
from mcp_skills_server.proposals.approval import approve
from mcp_skills_server.proposals.intake import propose
from mcp_skills_server.proposals.store import LOCAL, ProposalStore
from proposals.test_intake import DRAFT, base_of, manifest
from publish.test_static import tree_of, write
from sources.fetching import BUNDLE_FILES, fetch
from sources.publishers import Publisher, skill_md
from wire import write_skill

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be synchronized there")


FileId = tuple[int, int]
"""Device and inode."""


@dataclass
class Order:
    """A record of the synchronizations and renames below the folder `top`.

    Attributes:
        renames: each rename target in order, with its paths that were not synchronized before.
        unsynced_folders: the rename targets whose folder was not synchronized since.
    """

    top: Path
    renames: list[tuple[str, list[str]]] = field(default_factory=list[tuple[str, list[str]]])
    unsynced_folders: dict[str, FileId] = field(default_factory=dict[str, FileId])
    _synced: set[FileId] = field(default_factory=set[FileId])

    def torn(self) -> list[str]:
        """Return the names that a power cut could leave with part of their content."""
        return [name for name, unsynced in self.renames if unsynced]

    def note_fsync(self, file: os.stat_result) -> None:
        file_id = (file.st_dev, file.st_ino)
        self._synced.add(file_id)
        self.unsynced_folders = {name: folder for name, folder in self.unsynced_folders.items() if folder != file_id}

    def note_sync(self) -> None:
        self._synced |= {_file_id(path) for path in _below(self.top)}
        self.unsynced_folders.clear()

    def is_synced(self, path: Path) -> bool:
        return _file_id(path) in self._synced

    def before_rename(self, source: Path, target: Path) -> None:
        if target.is_relative_to(self.top):
            unsynced = [str(path) for path in _below(source) if not self.is_synced(path)]
            self.renames.append((target.relative_to(self.top).as_posix(), unsynced))

    def after_rename(self, target: Path) -> None:
        if target.is_relative_to(self.top):
            self.unsynced_folders[target.relative_to(self.top).as_posix()] = _file_id(target.parent)


def _file_id(path: Path) -> FileId:
    info = path.lstat()
    return info.st_dev, info.st_ino


def _below(path: Path) -> Iterator[Path]:
    mode = path.lstat().st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        yield path
    if stat.S_ISDIR(mode):
        yield from (each for each in path.rglob("*") if not each.is_symlink())


@pytest.fixture
def order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Order:
    """The synchronizations and renames of this process from now on."""
    order = Order(Path(os.path.realpath(tmp_path)))
    fsync, sync = os.fsync, durable._sync_file_system

    def synchronize(descriptor: int) -> None:
        fsync(descriptor)
        order.note_fsync(os.fstat(descriptor))

    def synchronize_all(path: str) -> None:
        sync(path)
        order.note_sync()

    def recorded(rename: Any) -> Any:
        def record(source: Any, target: Any, **options: Any) -> None:
            path = Path(os.path.realpath(os.path.dirname(target)), os.path.basename(target))
            order.before_rename(Path(source), path)
            rename(source, target, **options)
            order.after_rename(path)

        return record

    monkeypatch.setattr(os, "fsync", synchronize)
    monkeypatch.setattr(durable, "_sync_file_system", synchronize_all)
    monkeypatch.setattr(os, "rename", recorded(os.rename))
    monkeypatch.setattr(os, "replace", recorded(os.replace))
    return order


@pytest.mark.parametrize("more", [0, 30])  # many skills are synchronized together
def test_fetch_syncs_files_before_rename(tmp_path: Path, order: Order, more: int) -> None:
    output = tmp_path / "skills"
    with Publisher() as site:
        site.pack("packed", BUNDLE_FILES)
        for number in range(more):
            site.add(f"more-{number}")
        site.add("lone")
        assert fetch(site, output).ok
        site.add("lone", skill_md("lone", "Another body."))
        assert fetch(site, output).updated == ("lone",)
    names = [name for name, _ in order.renames]
    assert {"skills/packed", "skills/lone", "skills/.mcp-skills/skills/lone.json"} <= set(names)
    # The record comes first: a skill without one counts as foreign.
    assert names.index("skills/.mcp-skills/skills/packed.json") < names.index("skills/packed")
    # A replaced skill is moved to the stage to be deleted, and may be torn there.
    assert [name for name in order.torn() if "/stage/" not in name] == []
    assert [name for name in order.unsynced_folders if "/stage/" not in name] == []


@pytest.mark.parametrize("more", [0, 64])  # many files are synchronized together
def test_publish_syncs_artifacts_before_index(
    tmp_path: Path, order: Order, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    root, output = tmp_path / "root", tmp_path / "output"
    for name in ("one", "two", *(f"more-{number}" for number in range(more))):
        write_skill(root / name, notes_md="notes")
    unsynced: list[Path] = []
    before_rename = order.before_rename

    def check_artifacts(source: Path, target: Path) -> None:
        before_rename(source, target)
        if target.name == "index.json" and target.is_relative_to(output):
            for path in (output / ".well-known").rglob("*"):
                if path.name != "index.json" and path.is_file() and not order.is_synced(path):
                    unsynced.append(path)

    monkeypatch.setattr(order, "before_rename", check_artifacts)
    for turn in range(2):
        write(root, output)
        assert tree_of(output) is not None
        assert [name for name, _ in order.renames if name.endswith("index.json")]
        assert unsynced == []
        # Artifacts are synchronized together, before the index; other files before their rename.
        for name in order.torn():
            assert os.path.dirname(name) != "output" and not name.endswith("index.json")
        assert not order.unsynced_folders, turn
        order.renames.clear()
        write_skill(root / "two", body="Another body.")


def test_publish_deletes_artifact_only_after_new_index_is_synced(
    tmp_path: Path, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, output = tmp_path / "root", tmp_path / "output"
    write_skill(root / "one")
    write_skill(root / "two")
    write(root, output)
    (root / "two" / "SKILL.md").unlink()
    unlink, deleted = os.unlink, list[str]()

    def check_index(path: str, **options: object) -> None:
        if "/.well-known/" in str(path) and "/two/" in str(path):
            assert not [name for name in order.unsynced_folders if name.endswith("index.json")]
            deleted.append(str(path))
        unlink(path)

    monkeypatch.setattr(os, "unlink", check_index)
    write(root, output, keep_days=0)
    assert len(deleted) == 2


@pytest.mark.parametrize("command", ["install", "new"])
def test_install_and_new_sync_their_files(tmp_path: Path, order: Order, command: str) -> None:
    write_skill(tmp_path / "skills" / "one")
    config = tmp_path / "config.json"
    config.write_text('{"mcpServers": {}}')
    descriptors = len(os.listdir("/dev/fd"))
    words = ["cursor", str(tmp_path / "skills"), "--config", str(config)]
    names = ["config.json.bak", "config.json"]
    if command == "new":
        words, names = ["refunds", "--directory", str(tmp_path)], ["refunds"]
    done = CliRunner().invoke(cli, [command, *words])
    assert done.exit_code == 0, done.output
    assert [name for name, _ in order.renames] == names
    assert all(order.is_synced(tmp_path / name) for name in names)
    assert order.torn() == [] and not order.unsynced_folders
    assert len(os.listdir("/dev/fd")) == descriptors


@pytest.mark.parametrize("name", ["coffee", "tea"])  # an existing skill and a new one
def test_approved_skill_is_synced(tmp_path: Path, order: Order, name: str) -> None:
    write_skill(tmp_path / "skills" / "coffee")
    store = ProposalStore(tmp_path / "proposals")
    with Registry([tmp_path / "skills"]) as registry:
        base = ""
        if name == "coffee":
            base = base_of(registry, name)
        draft = replace(DRAFT, name=name, base=base)
        proposal = propose(registry, store, draft, {"SKILL.md": manifest(name)}, registry.snapshot)
        approve(registry, store, proposal.id, reviewer=LOCAL)
    assert all(map(order.is_synced, _below(tmp_path / "skills" / name)))
