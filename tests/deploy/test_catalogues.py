"""Listings in other catalogues: Docker's MCP catalog and a Homebrew formula."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from tools import formula

import published
from wheelhouse import needed
from wire import ROOT, serving, write_skill

DOCKER = ROOT / "deploy" / "docker-catalogue"
PINNED = formula.constraints((ROOT / "constraints.txt").read_text(encoding="utf-8"))
SHA256 = 64 * "0"


def test_docker_catalog_entry_is_valid_and_its_command_starts(tmp_path: Path) -> None:
    entry = yaml.safe_load((DOCKER / "server.yaml").read_text(encoding="utf-8"))
    assert published.faults(published.DOCKER_CATALOGUE, entry) == []
    templates = [each for each in (*entry["run"]["command"], *entry["run"]["volumes"]) if "{{" in each]
    assert all(re.fullmatch(rf"{{{{{entry['name']}\.folders\|[a-z|-]+}}}}", each) for each in templates)
    assert entry["config"]["parameters"]["properties"].keys() == {"folders"}
    # The command of the container, with a folder in place of the template.
    write_skill(tmp_path / "tea")
    words = [each if "{{" not in each else str(tmp_path) for each in entry["run"]["command"]]
    assert words[0] == "serve"
    with serving(*words[1:]) as wire:
        tools = wire.request("tools/list")["tools"]
    listed = json.loads((DOCKER / "tools.json").read_text(encoding="utf-8"))
    assert [each["name"] for each in listed] == [each["name"] for each in tools]
    for each, tool in zip(listed, tools, strict=True):
        arguments = [argument["name"] for argument in each["arguments"]]
        assert arguments == [*tool["inputSchema"].get("properties", {})]


def lock_file(versions: dict[str, str]) -> dict[str, list[dict[str, object]]]:
    """Return a lock of these packages, and of one for Windows only."""

    def package(name: str, version: str) -> dict[str, object]:
        source = {"url": f"https://index.example/{name}-{version}.tar.gz", "hashes": {"sha256": SHA256}}
        return {"name": name, "version": version, "sdist": source}

    windows = {**package("colorama", "9"), "marker": "sys_platform == 'win32'"}
    return {"packages": [*(package(*each) for each in versions.items()), windows]}


def test_formula_has_all_pinned_dependencies() -> None:
    packages = needed("mcp-skills-server")
    del packages["mcp-skills-server"]
    lock = lock_file({name: PINNED[name] for name in packages})
    text = formula.formula(lock, PINNED, "https://index.example/x", SHA256)
    resources = set(re.findall(r'resource "([^"]+)"', text))
    assert resources | formula.BREWED.keys() == packages.keys()
    assert not resources & formula.BREWED.keys()
    for name in resources:
        assert f"{name}-{PINNED[name]}.tar.gz" in text
    assert set(formula.BREWED.values()) < set(re.findall(r'depends_on "([^"]+)"', text))
    assert "colorama" not in text
    if ruby := shutil.which("ruby"):
        subprocess.run([ruby, "-c"], input=text, text=True, check=True, capture_output=True)


def test_lock_that_differs_from_constraints_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = tmp_path / "pylock.toml"
    lock.write_text('[[packages]]\nname = "anyio"\nversion = "0.1"\n', encoding="utf-8")
    options = ["--lock", str(lock), "--url", "https://index.example/x", "--sha256", SHA256]
    assert formula.main(options) == 1
    output = capsys.readouterr()
    fault = f"tools.formula: anyio 0.1 is locked, and constraints.txt has {PINNED['anyio']}\n"
    assert (output.out, output.err) == ("", fault)
