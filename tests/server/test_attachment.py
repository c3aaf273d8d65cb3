"""What a handshake declares, asked over real stdio in both eras."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from programs import LOOSE, loose
from tables import each_row
from wire import EXTENSION, FIXTURES, Era, serving, write_skill


@pytest.mark.requirement(
    "S76-1", "S76-3", "S40-1", "S40-2", "S40-4", "S40C-1", "MCP-5", "MCP-12", "MCP-29", "MCP-30", "X-9"
)
def test_both_handshakes_declare_skills_the_extension_and_resources(era: Era) -> None:
    with serving(FIXTURES, era=era, opened=False) as wire:
        seen = wire.open()
        capabilities = seen["capabilities"]
        assert capabilities["skills"] == {"listChanged": True}
        assert capabilities["extensions"] == {EXTENSION: {"directoryRead": True}}
        assert capabilities["resources"] == {"subscribe": True, "listChanged": True}
        if era == "modern":
            assert seen["supportedVersions"] == ["2026-07-28"]
            assert seen["ttlMs"] >= 0 and seen["cacheScope"] in {"public", "private"}


@pytest.mark.requirement("X-9")
@each_row(("dialect", "skills", "extension"), [("sep-2076", True, False), ("sep-2640", False, True)])
def test_a_pinned_dialect_declares_itself_alone(era: Era, dialect: str, skills: bool, extension: bool) -> None:
    with serving(FIXTURES, "--dialect", dialect, era=era, opened=False) as wire:
        capabilities = wire.open()["capabilities"]
        assert ("skills" in capabilities) is skills
        assert (EXTENSION in capabilities.get("extensions", {})) is extension


def test_a_host_that_shows_skills_by_itself_gets_each_in_one_form(era: Era, tmp_path: Path) -> None:
    """23.40: it gets no second list of them. What breaks the specification is in no list of its own, and stays."""
    write_skill(tmp_path / "valid")
    claude = partial(serving, tmp_path, era=era, host="claude-code")
    with claude(extension=True, opened=False) as wire:
        assert "instructions" not in wire.open()
        assert [each["frontmatter"]["name"] for each in wire.every_skill()] == ["valid"]
        assert wire.request("tools/list")["tools"] == wire.request("prompts/list")["prompts"] == []
    every = claude("--dialect", "sep-2076", extension=True), claude(), claude(extension=True, host="inspector-cli")
    for serves in every:
        with serves as wire:
            assert wire.request("tools/list")["tools"] and wire.request("prompts/list")["prompts"]
    write_skill(tmp_path / "lenient", name="Not_The_Folder")
    with claude(extension=True) as wire:
        (load,) = (each for each in wire.request("tools/list")["tools"] if each["name"] == "skills_load")
        assert load["description"].endswith("\n\n1 skill:\n- Not_The_Folder: Does a thing when it is asked to.")
        assert [each["name"] for each in wire.request("prompts/list")["prompts"]] == ["Not_The_Folder"]


@loose
def test_a_host_that_shows_skills_by_itself_runs_scripts_by_tools_that_name_no_skill(era: Era, tmp_path: Path) -> None:
    write_skill(tmp_path / "valid")
    with serving(tmp_path, "--allow-scripts", *LOOSE, era=era, host="claude-code", extension=True) as wire:
        tools = wire.request("tools/list")["tools"]
        assert "skills_run_script" in [each["name"] for each in tools] and "valid" not in json.dumps(tools)
