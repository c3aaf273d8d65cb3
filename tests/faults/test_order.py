"""A power cut at any moment: whatever has a name is whole, since its bytes were on the disk before.

A power cut keeps what was synchronized, and of all else any part. So bytes must be synchronized before the rename that
gives them their name, and the folder after it.
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

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.cli import cli
from mcp_skills_server.proposals.approval import approve
from mcp_skills_server.proposals.intake import propose
from mcp_skills_server.proposals.store import LOCAL, ProposalStore
from proposals.test_intake import DRAFT, base_of, manifest
from publish.test_static import whole, write
from sources.fetching import FILES, fetch
from sources.publishers import Publisher, skill_md
from wire import write_skill

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be synchronized there")


Mark = tuple[int, int]


@dataclass
class Order:
    """What was seen.

    Attributes:
        names: each new name below the watched folder, in order, with what of it was not synchronized at that moment.
        open: the new names whose folder was not synchronized since.
    """

    top: Path
    names: list[tuple[str, list[str]]] = field(default_factory=list[tuple[str, list[str]]])
    open: dict[str, Mark] = field(default_factory=dict[str, Mark])
    _synced: set[Mark] = field(default_factory=set[Mark])

    def torn(self) -> list[str]:
        """The names that a power cut could leave with half of their content."""
        return [name for name, missing in self.names if missing]

    def synchronized(self, found: os.stat_result) -> None:
        """A file or folder is on the disk."""
        mark = (found.st_dev, found.st_ino)
        self._synced.add(mark)
        self.open = {name: folder for name, folder in self.open.items() if folder != mark}

    def everything(self) -> None:
        """The whole disk is."""
        self._synced |= {_mark(path) for path in _below(self.top)}
        self.open.clear()

    def is_safe(self, path: Path) -> bool:
        """Whether a file or folder was synchronized."""
        return _mark(path) in self._synced

    def named(self, source: Path, target: Path) -> None:
        """Something is about to be given this name."""
        if target.is_relative_to(self.top):
            missing = [str(path) for path in _below(source) if not self.is_safe(path)]
            self.names.append((target.relative_to(self.top).as_posix(), missing))

    def done(self, target: Path) -> None:
        """It has the name."""
        if target.is_relative_to(self.top):
            self.open[target.relative_to(self.top).as_posix()] = _mark(target.parent)


def _mark(path: Path) -> Mark:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _below(path: Path) -> Iterator[Path]:
    mode = path.lstat().st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        yield path
    if stat.S_ISDIR(mode):
        yield from (each for each in path.rglob("*") if not each.is_symlink())


@pytest.fixture
def order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Order:
    """Every synchronization and every rename of this process from now on."""
    order = Order(Path(os.path.realpath(tmp_path)))
    fsync, sync = os.fsync, os.sync

    def synchronize(descriptor: int) -> None:
        fsync(descriptor)
        order.synchronized(os.fstat(descriptor))

    def synchronize_all() -> None:
        sync()
        order.everything()

    def renaming(rename: Any) -> Any:
        def noted(source: Any, target: Any, **options: Any) -> None:
            place = Path(os.path.realpath(os.path.dirname(target)), os.path.basename(target))
            order.named(Path(source), place)
            rename(source, target, **options)
            order.done(place)

        return noted

    monkeypatch.setattr(os, "fsync", synchronize)
    monkeypatch.setattr(os, "sync", synchronize_all)
    monkeypatch.setattr(os, "rename", renaming(os.rename))
    monkeypatch.setattr(os, "replace", renaming(os.replace))
    return order


@pytest.mark.parametrize("more", [0, 30])
def test_fetch_puts_no_skill_and_no_record_that_is_not_on_the_disk(tmp_path: Path, order: Order, more: int) -> None:
    """Many skills are synchronized together."""
    place = tmp_path / "skills"
    with Publisher() as site:
        site.pack("packed", FILES)
        for number in range(more):
            site.add(f"more-{number}")
        site.add("lone")
        assert fetch(site, place).ok
        site.add("lone", skill_md("lone", "Another body."))
        assert fetch(site, place).updated == ("lone",)
    names = [name for name, _ in order.names]
    assert {"skills/packed", "skills/lone", "skills/.mcp-skills/skills/lone.json"} <= set(names)
    # The record comes first: a skill without one would count as somebody else's.
    assert names.index("skills/.mcp-skills/skills/packed.json") < names.index("skills/packed")
    # What an update replaces goes aside, and may be torn there: it is ours to delete.
    assert [name for name in order.torn() if "/stage/" not in name] == []
    assert [name for name in order.open if "/stage/" not in name] == []


@pytest.mark.parametrize("more", [0, 64])
def test_publish_names_nothing_in_an_index_that_is_not_on_the_disk(
    tmp_path: Path, order: Order, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    """Many files are synchronized in another way than few."""
    root, output = tmp_path / "root", tmp_path / "output"
    for name in ("one", "two", *(f"more-{number}" for number in range(more))):
        write_skill(root / name, notes_md="notes")
    unsafe: list[tuple[str, str]] = []
    named = order.named

    def noted(source: Path, target: Path) -> None:
        named(source, target)
        if target.name == "index.json" and target.is_relative_to(output):
            artifacts = [path for path in (output / ".well-known").rglob("*") if path.name != "index.json"]
            unsafe.extend((str(target), str(path)) for path in artifacts if path.is_file() and not order.is_safe(path))

    monkeypatch.setattr(order, "named", noted)
    for turn in range(2):
        write(root, output)
        assert whole(output) is not None
        names = [name for name, _ in order.names]
        assert [name for name in names if name.endswith("index.json")] and unsafe == []
        # Artifacts are synchronized together, before the index that names them. All else is when it gets its name.
        assert [name for name in order.torn() if os.path.dirname(name) == "output" or name.endswith("index.json")] == []
        assert not order.open, turn
        order.names.clear()
        write_skill(root / "two", body="Another body.")


def test_publish_deletes_nothing_before_the_index_that_does_not_name_it_is_on_the_disk(
    tmp_path: Path, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, output = tmp_path / "root", tmp_path / "output"
    write_skill(root / "one")
    write_skill(root / "two")
    write(root, output)
    (root / "two" / "SKILL.md").unlink()
    unlink, gone = os.unlink, list[str]()

    def noted(path: str, **options: object) -> None:
        if "/.well-known/" in str(path) and "/two/" in str(path):
            assert not [name for name in order.open if name.endswith("index.json")]
            gone.append(str(path))
        unlink(path)

    monkeypatch.setattr(os, "unlink", noted)
    write(root, output, keep_days=0)
    assert len(gone) == 2


@pytest.mark.parametrize("command", ["install", "new"])
def test_a_configuration_and_a_new_skill_are_on_the_disk(tmp_path: Path, order: Order, command: str) -> None:
    write_skill(tmp_path / "skills" / "one")
    config = tmp_path / "config.json"
    config.write_text('{"mcpServers": {}}')
    opened = len(os.listdir("/dev/fd"))
    words = ["cursor", str(tmp_path / "skills"), "--config", str(config)]
    if command == "new":
        words = ["refunds", "--directory", str(tmp_path)]
    done = CliRunner().invoke(cli, [command, *words])
    assert done.exit_code == 0, done.output
    made = {"install": ["config.json.bak", "config.json"], "new": ["refunds"]}[command]
    assert [name for name, _ in order.names] == made and all(order.is_safe(tmp_path / name) for name in made)
    assert order.torn() == [] and not order.open
    assert len(os.listdir("/dev/fd")) == opened


@pytest.mark.parametrize("name", ["coffee", "tea"])
def test_an_approved_skill_is_on_the_disk(tmp_path: Path, order: Order, name: str) -> None:
    write_skill(tmp_path / "skills" / "coffee")
    store = ProposalStore(tmp_path / "proposals")
    with Registry([tmp_path / "skills"]) as registry:
        draft = replace(DRAFT, name=name, base=base_of(registry, name) if name == "coffee" else "")
        approve(registry, store, propose(registry, store, draft, {"SKILL.md": manifest(name)}).id, reviewer=LOCAL)
    assert all(map(order.is_safe, _below(tmp_path / "skills" / name)))
