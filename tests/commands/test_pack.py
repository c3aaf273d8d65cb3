"""`bundle` and `plugin`: what is in them, and that a bundle starts the server with its skills."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import agent_plugins
import pytest
from tools.interop.setup import MCPB, MODULES

import mcp_skills_server
import published
from commands.calls import run
from wire import FIXTURES, ROOT, Wire, write_skill

VALIDATOR = MODULES / MCPB / "dist" / "cli" / "cli.js"


def test_a_bundle_has_what_its_format_wants_and_starts_with_its_skills(tmp_path: Path) -> None:
    done = run("bundle", FIXTURES, "--output", tmp_path / "s.mcpb", "--name", "acme", "--package-version", "1.2.3")
    assert done.returncode == 0 and "wrote 17 skills" in done.stderr, done.stderr
    with zipfile.ZipFile(tmp_path / "s.mcpb") as archive:
        archive.extractall(tmp_path / "unpacked")
    manifest = json.loads((tmp_path / "unpacked/manifest.json").read_bytes())
    required = {"manifest_version", "name", "version", "description", "author", "server"}
    assert manifest.keys() >= required and manifest["manifest_version"] == "0.4" and manifest["version"] == "1.2.3"
    assert manifest["server"]["type"] == "uv" and (tmp_path / "unpacked" / manifest["server"]["entry_point"]).is_file()
    project = tomllib.loads((tmp_path / "unpacked/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["dependencies"] == [f"mcp-skills-server=={mcp_skills_server.__version__}"]
    wire = Wire([sys.executable, str(tmp_path / "unpacked/src/server.py")])
    try:
        wire.open()
        names = [each["name"] for each in wire.every_skill()]
        assert len(names) == len({*names}) == 17
    finally:
        wire.kill()


@pytest.mark.skipif(not VALIDATOR.exists(), reason="make interop installs the validator of bundles")
@pytest.mark.needs_program("node")
def test_the_validator_of_bundles_takes_it(tmp_path: Path) -> None:
    assert run("bundle", FIXTURES, "--output", tmp_path / "s.mcpb").returncode == 0

    def judged(*words: str | Path) -> str:
        return subprocess.check_output(["node", VALIDATOR, *words], text=True, cwd=tmp_path)

    judged("unpack", "s.mcpb", "unpacked")
    assert "passes" in judged("validate", "unpacked/manifest.json")
    judged("pack", "unpacked", "again.mcpb")
    with zipfile.ZipFile(tmp_path / "s.mcpb") as ours, zipfile.ZipFile(tmp_path / "again.mcpb") as theirs:
        names = {each for each in ours.namelist() if not each.endswith("/")}
        assert names == {each for each in theirs.namelist() if not each.endswith("/")}


def test_the_same_skills_give_the_same_bundle(tmp_path: Path) -> None:
    for place in ("one", "two"):
        skill = write_skill(tmp_path / place / "skills" / "a", scripts__run_sh="#!/bin/sh\n")
        (skill / "scripts/run.sh").chmod(0o755)
        assert run("bundle", tmp_path / place / "skills", "--output", tmp_path / f"{place}.mcpb").returncode == 0
    raw = (tmp_path / "one.mcpb").read_bytes()
    assert raw == (tmp_path / "two.mcpb").read_bytes()
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        modes = {each.filename: each.external_attr >> 16 & 0o777 for each in archive.infolist()}
    assert modes["skills/a/scripts/run.sh"] == 0o755 and modes["skills/a/SKILL.md"] == 0o644


def test_a_plugin_has_its_skills_right_below(tmp_path: Path) -> None:
    assert run("plugin", FIXTURES, "--output", tmp_path / "p", "--name", "acme").returncode == 0
    assert {each.name for each in (tmp_path / "p").iterdir()} == {"plugin.json", "skills"}
    about = json.loads((tmp_path / "p/plugin.json").read_bytes())
    assert published.faults(published.AGENT_PLUGIN, about) == [] and about["name"] == "acme"
    assert all((each / "SKILL.md").is_file() for each in (tmp_path / "p/skills").iterdir())
    assert run("validate", tmp_path / "p/skills").returncode == 0
    assert run("plugin", FIXTURES, "--output", tmp_path / "q", "--server").returncode == 0
    servers = json.loads((tmp_path / "q/mcp.json").read_bytes())
    assert published.faults(published.AGENT_PLUGIN_MCP, servers) == []
    assert servers["mcpServers"]["skills"]["args"] == ["mcp-skills-server", "serve", "${PLUGIN_ROOT}/skills"]
    read = agent_plugins.Plugin(tmp_path / "q")  # another reader
    assert read.manifest.name == "skills" and read.manifest.version == "0.1.0"
    assert len(read.skills) == 17 and read.mcp is not None and [*read.mcp.servers] == ["skills"]


def test_what_is_wrong_is_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    write_skill(tmp_path / "Skills of Mine" / "good")
    write_skill(tmp_path / "Skills of Mine" / "bad", name="other")
    root, output = tmp_path / "Skills of Mine", tmp_path / "out"
    for command in ("bundle", "plugin"):
        done = run(command, root, "--output", output)
        assert done.returncode == 1 and "bad: left out" in done.stderr and not output.exists()
        for wrong in (("--name", "Not A Name"), ("--name", "a--b"), ("--package-version", "one")):
            done = run(command, root, "--output", output, "--allow-partial", *wrong)
            assert done.returncode == 2 and done.stderr.count("\n") == 1 and not output.exists()
    (tmp_path / "empty").mkdir()
    assert run("plugin", tmp_path / "empty", "--output", output).returncode == 2
    output.mkdir()
    assert "already exists" in run("plugin", root, "--output", output, "--allow-partial").stderr
    assert [*output.iterdir()] == []
    done = run("plugin", root, "--output", tmp_path / "made", "--allow-partial")
    assert done.returncode == 0 and json.loads((tmp_path / "made/plugin.json").read_bytes())["name"] == "skills-of-mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    done = run("plugin", FIXTURES, "--output", tmp_path / "closed" / "p")
    assert done.returncode == 2 and "cannot be written" in done.stderr


def test_the_registry_of_servers_is_given_what_it_wants() -> None:
    entry = json.loads((ROOT / "server.json").read_bytes())
    assert published.faults(published.SERVER_JSON, entry) == []
    versions = {entry["version"], *(each["version"] for each in entry["packages"])}
    assert versions == {mcp_skills_server.__version__}
    assert f"<!-- mcp-name: {entry['name']} -->" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f'io.modelcontextprotocol.server.name="{entry["name"]}"' in (ROOT / "Dockerfile").read_text(encoding="utf-8")
