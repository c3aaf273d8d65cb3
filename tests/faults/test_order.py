"""A power cut at any moment: whatever has a name is whole, since its bytes were on the disk before."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from faults.order import Order, recorded
from mcp_skills_server.cli import cli
from publish.test_static import whole, write
from sources.fetching import FILES, fetch
from sources.publishers import Publisher, skill_md
from wire import write_skill

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be synchronized there")


@pytest.fixture
def order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Order:
    return recorded(tmp_path, monkeypatch)


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


def test_install_replaces_a_configuration_by_one_that_is_on_the_disk(tmp_path: Path, order: Order) -> None:
    write_skill(tmp_path / "skills" / "one")
    config = tmp_path / "config.json"
    config.write_text('{"mcpServers": {}}')
    opened = len(os.listdir("/dev/fd"))
    done = CliRunner().invoke(cli, ["install", "cursor", str(tmp_path / "skills"), "--config", str(config)])
    assert done.exit_code == 0, done.output
    assert [name for name, _ in order.names] == ["config.json.bak", "config.json"]
    assert order.torn() == [] and not order.open
    assert order.is_safe(tmp_path / "config.json.bak")
    assert len(os.listdir("/dev/fd")) == opened


def test_new_makes_a_skill_that_is_on_the_disk(tmp_path: Path, order: Order) -> None:
    done = CliRunner().invoke(cli, ["new", "refunds", "--directory", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert [name for name, _ in order.names] == ["refunds"]
    assert order.torn() == [] and not order.open
