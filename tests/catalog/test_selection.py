"""Selection of skills by patterns, and switched-off skills of a folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from commands.calls import names_served, run
from mcp_skills_server.catalog.gates import Selection
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.switches import switch
from mcp_skills_server.errors import RequestError
from tables import each_row
from wire import Wire, write_skill


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_skill(tmp_path / "s" / "acme" / "refunds", description="x\ntags: [billing, draft]")
    write_skill(tmp_path / "s" / "acme" / "invoices", description="x\ntags: [billing]")
    write_skill(tmp_path / "s" / "tea")
    return tmp_path / "s"


def loaded_skills(registry: Registry) -> set[str]:
    registry.load()
    return set(registry.snapshot.skills)


def listed_names(wire: Wire) -> set[str]:
    return {each["frontmatter"]["name"] for each in wire.request("skills/list")["skills"]}


def stdout_of(*arguments: object, status: int = 0) -> str:
    """Run a command, and return its standard output."""
    done = run(*arguments)
    assert done.returncode == status, done.stderr
    return done.stdout


@each_row(("include", "exclude", "left"), [
    ((), (), {"acme/refunds", "acme/invoices", "tea"}),
    (("acme/*",), (), {"acme/refunds", "acme/invoices"}),
    (("tea", "invoices"), (), {"acme/invoices", "tea"}),
    (("billing",), ("draft",), {"acme/invoices"}),  # tags
    ((), ("*",), set()),
    (("no-such",), (), set()),
])  # fmt: skip
def test_selection_patterns_match_path_name_or_tag(
    root: Path, include: tuple[str, ...], exclude: tuple[str, ...], left: set[str]
) -> None:
    registry = Registry([root], gate=Selection(include, exclude))
    assert loaded_skills(registry) == left
    off = {each.skill for each in registry.snapshot.problems if each.code == "switched-off"}
    assert off == {"acme/refunds", "acme/invoices", "tea"} - left


def test_skills_off_file_switches_skills_off_and_on(root: Path) -> None:
    (root / "skills-off.txt").write_text("# not now\n\nacme/refunds/\n ./tea\n", encoding="utf-8")
    registry = Registry([root])
    assert loaded_skills(registry) == {"acme/invoices", "tea"}
    (root / "skills-off.txt").write_text("acme\n", encoding="utf-8")
    registry.refresh([str(root / "skills-off.txt")])
    assert set(registry.snapshot.skills) == {"tea"}
    off = [each for each in registry.snapshot.problems if each.code == "switched-off"]
    assert {each.skill for each in off} == {"acme/refunds", "acme/invoices"}
    assert "'acme'" in off[0].message
    write_skill(root / "acme" / "refunds", description="edited")
    registry.refresh([str(root / "acme" / "refunds" / "SKILL.md")])
    assert set(registry.snapshot.skills) == {"tea"}
    (root / "skills-off.txt").unlink()
    registry.refresh([str(root / "skills-off.txt")])
    assert set(registry.snapshot.skills) == {"acme/refunds", "acme/invoices", "tea"}
    assert not [each for each in registry.snapshot.problems if each.code == "switched-off"]


def test_skills_off_file_may_begin_with_a_byte_order_mark(root: Path) -> None:
    """Some editors of Windows write one."""
    (root / "skills-off.txt").write_text("tea\r\nacme/refunds\r\n", encoding="utf-8-sig", newline="")
    assert loaded_skills(Registry([root])) == {"acme/invoices"}


def test_skills_off_file_in_utf_16_is_reported(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An older PowerShell redirects output so."""
    (root / "skills-off.txt").write_text("tea\n", encoding="utf-16")
    Registry([root])
    assert "skills-off.txt: cannot be read (not UTF-8)" in caplog.text
    with pytest.raises(RequestError, match="not UTF-8"):
        switch(str(root), "tea", on=False)


def test_unreadable_switches_are_not_overwritten(root: Path) -> None:
    os.mkfifo(root / "skills-off.txt")
    for on in (False, True):
        with pytest.raises(RequestError, match="cannot be changed"):
            switch(str(root), "tea", on=on)
    assert (root / "skills-off.txt").is_fifo()


def test_excluded_broken_skill_is_no_error(tmp_path: Path) -> None:
    write_skill(tmp_path / "good")
    (write_skill(tmp_path / "bad") / "SKILL.md").write_bytes(b"no frontmatter")
    assert "1 skill, 0 errors" in stdout_of("validate", tmp_path, "--exclude", "bad")


def test_list_and_serve_apply_include_and_exclude(root: Path) -> None:
    shown = stdout_of("list", root, "--include", "acme/*", "--exclude", "draft")
    assert "invoices" in shown
    assert "refunds" not in shown
    assert "tea" not in shown
    assert names_served(root, "--exclude", "billing") == ["tea"]


def test_config_source_has_its_own_selection(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "more"
    write_skill(folder / "coffee")
    write_skill(folder / "water")
    config = tmp_path / "c.toml"
    config.write_text(
        f'exclude = ["draft"]\n[[source]]\nfrom = "{root}"\n[[source]]\nfrom = "{folder}"\ninclude = ["coffee"]\n',
        encoding="utf-8",
    )
    assert names_served("--config", config) == ["coffee", "invoices", "tea"]
    assert f"{folder} include=coffee" in stdout_of("config", "show", "--config", config)


def test_install_writes_the_selection_of_one_host(root: Path) -> None:
    arguments = ("install", "cursor", "--print", "--include", "acme/*", "--exclude", "draft")
    entry = json.loads(stdout_of(*arguments, root))["mcpServers"]["skills"]
    assert entry["args"][-3:] == [str(root), "--include=acme/*", "--exclude=draft"]
    stdout_of(*arguments, "--url", "https://a.example/mcp", status=2)
