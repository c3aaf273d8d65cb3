"""Single skills on and off: by every command that takes a ROOT, for one source, and for one host."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
import pytest

from catalog.forest import plant, skill_md
from forkserver import run
from mcp_skills_server.catalog.gates import Selection
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.switches import switch
from mcp_skills_server.cli import COMMANDS, cli
from mcp_skills_server.errors import RequestError
from tables import each_row
from wire import COMMAND, serving, write_skill


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_skill(tmp_path / "s" / "acme" / "refunds", description="x\ntags: [billing, draft]")
    write_skill(tmp_path / "s" / "acme" / "invoices", description="x\ntags: [billing]")
    write_skill(tmp_path / "s" / "tea")
    return tmp_path / "s"


def served(registry: Registry) -> set[str]:
    registry.load()
    return set(registry.snapshot.skills)


@each_row(
    ("include", "exclude", "left"),
    [
        ((), (), {"acme/refunds", "acme/invoices", "tea"}),
        (("acme/*",), (), {"acme/refunds", "acme/invoices"}),
        (("tea", "invoices"), (), {"acme/invoices", "tea"}),
        (("billing",), ("draft",), {"acme/invoices"}),
        ((), ("*",), set()),
        (("no-such",), (), set()),
    ],
)
def test_a_pattern_fits_path_name_or_tag(
    root: Path, include: tuple[str, ...], exclude: tuple[str, ...], left: set[str]
) -> None:
    registry = Registry([root], gate=Selection(include, exclude))
    assert served(registry) == left
    off = {each.skill for each in registry.snapshot.problems if each.code == "switched-off"}
    assert off == {"acme/refunds", "acme/invoices", "tea"} - left


def test_an_edit_switches_a_skill_off_and_on_and_it_hides_none_of_a_later_root(tmp_path: Path) -> None:
    plant(tmp_path / "one", {"tea/SKILL.md": skill_md("tea")})
    plant(tmp_path / "two", {"tea/SKILL.md": skill_md("tea")})
    registry = Registry([tmp_path / "one", tmp_path / "two"], gate=Selection(exclude=("draft",)), quiet_s=0)
    assert served(registry) == {"tea"} and registry.snapshot.skills["tea"].root == 0
    write_skill(tmp_path / "one" / "tea", description="x\ntags: [draft]")
    registry.refresh()
    assert registry.snapshot.skills["tea"].root == 1
    write_skill(tmp_path / "one" / "tea")
    registry.refresh()
    assert registry.snapshot.skills["tea"].root == 0


def test_a_folder_switches_its_own_skills_off(root: Path) -> None:
    (root / "skills-off.txt").write_text("# not now\n\nacme/refunds/\n ./tea\n", encoding="utf-8")
    registry = Registry([root], quiet_s=0)
    assert served(registry) == {"acme/invoices", "tea"}
    (root / "skills-off.txt").write_text("acme\n", encoding="utf-8")
    registry.refresh([str(root / "skills-off.txt")])
    assert set(registry.snapshot.skills) == {"tea"}
    off = [each for each in registry.snapshot.problems if each.code == "switched-off"]
    assert {each.skill for each in off} == {"acme/refunds", "acme/invoices"} and "'acme'" in off[0].message
    write_skill(root / "acme" / "refunds", description="edited")
    registry.refresh([str(root / "acme" / "refunds" / "SKILL.md")])
    assert set(registry.snapshot.skills) == {"tea"}
    (root / "skills-off.txt").unlink()
    registry.refresh([str(root / "skills-off.txt")])
    assert set(registry.snapshot.skills) == {"acme/refunds", "acme/invoices", "tea"}
    assert not [each for each in registry.snapshot.problems if each.code == "switched-off"]


def test_a_server_hears_of_a_switch_at_once(root: Path) -> None:
    with serving(root) as wire:
        assert len(wire.request("skills/list")["skills"]) == 3
        switch(str(root), "tea", on=False)
        wire.until("notifications/skills/list_changed")
        assert "tea" not in {each["frontmatter"]["name"] for each in wire.request("skills/list")["skills"]}
        switch(str(root), "tea", on=True)
        wire.until("notifications/skills/list_changed")
        assert len(wire.request("skills/list")["skills"]) == 3 and not (root / "skills-off.txt").exists()


def test_switches_that_cannot_be_read_are_not_written_over(root: Path) -> None:
    os.mkfifo(root / "skills-off.txt")
    for on in (False, True):
        with pytest.raises(RequestError, match="cannot be changed"):
            switch(str(root), "tea", on=on)
    assert (root / "skills-off.txt").is_fifo()


def test_every_command_that_takes_a_root_takes_patterns() -> None:
    """What a command takes is in its declaration; `new` and `fetch --list` have no skills yet to choose from."""
    taking = set[str]()
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        options = {word for each in getattr(command, "params", ()) for word in each.opts}
        if {"--include", "--exclude"} <= options:
            taking.add(name)
    assert taking >= {
        "list", "show", "validate", "evaluate", "try", "overlap", "context", "run", "ui", "serve", "install", "publish",
        "push", "bundle", "plugin", "lock", "diff", "rpc", "acp",
    }  # fmt: skip


def test_a_broken_skill_that_is_left_out_is_no_error(tmp_path: Path) -> None:
    write_skill(tmp_path / "good")
    (write_skill(tmp_path / "bad") / "SKILL.md").write_bytes(b"no frontmatter")
    done = run([*COMMAND, "validate", str(tmp_path), "--exclude", "bad"], capture_output=True, text=True)
    assert done.returncode == 0 and "1 skill, 0 errors" in done.stdout


def test_commands_and_servers_have_the_same_choice(root: Path) -> None:
    words = [*COMMAND, "list", str(root), "--include", "acme/*", "--exclude", "draft"]
    listed = run(words, capture_output=True, text=True).stdout
    assert "invoices" in listed and "refunds" not in listed and "tea" not in listed
    with serving(root, "--exclude", "billing") as wire:
        assert [each["frontmatter"]["name"] for each in wire.request("skills/list")["skills"]] == ["tea"]
        assert "refunds" not in str(wire.request("tools/list"))


def test_a_source_has_its_own(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "more"
    write_skill(folder / "coffee")
    write_skill(folder / "water")
    config = tmp_path / "c.toml"
    config.write_text(
        f'exclude = ["draft"]\n[[source]]\nfrom = "{root}"\n[[source]]\nfrom = "{folder}"\ninclude = ["coffee"]\n',
        encoding="utf-8",
    )
    with serving("--config", config) as wire:
        found = {each["frontmatter"]["name"] for each in wire.request("skills/list")["skills"]}
    assert found == {"invoices", "tea", "coffee"}
    shown = run([*COMMAND, "config", "show", "--config", str(config)], capture_output=True, text=True).stdout
    assert f"{folder} include=coffee" in shown


def test_one_host_has_its_own(root: Path) -> None:
    words = [*COMMAND, "install", "cursor", str(root), "--print"]
    chosen = ["--include", "acme/*", "--exclude", "draft"]
    entry = json.loads(run([*words, *chosen], capture_output=True, text=True).stdout)["mcpServers"]["skills"]
    assert entry["args"][-3:] == [str(root), "--include=acme/*", "--exclude=draft"]
    by_url = [*COMMAND, "install", "cursor", "--url", "https://a.example/mcp", "--print", *chosen]
    assert run(by_url, capture_output=True, text=True).returncode == 2
