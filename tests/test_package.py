"""Wheel and source distribution: their content, and installation on a bare machine."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from wheelhouse import fill, needed, size
from wire import COMMAND, FIXTURES, ROOT, SCHEMAS

DEADLINE = 120.0
BUILD = "import sys; from hatchling.build import {0}; print({0}(sys.argv[1]))"
PROGRAMS = Path(sys.executable).parent
"""The programs of the development environment."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and the source distribution as a front end does; return their folder."""
    place = tmp_path_factory.mktemp("built")
    for hook in ("build_wheel", "build_sdist"):
        command = [sys.executable, "-c", BUILD.format(hook), str(place)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=DEADLINE)
    return place


@pytest.fixture(scope="module")
def wheel(built: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as opened:
        yield opened


def test_index_page_has_no_relative_link(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    seen = email.message_from_bytes(wheel.read(name))
    assert seen["Description-Content-Type"] == "text/markdown"
    text = str(seen.get_payload())
    page = MarkdownIt("commonmark").enable("table").render(text)
    found = re.findall(r'<(?:a href|img src)="([^"]*)"', page)
    assert found and [each for each in found if not each.startswith("https://")] == []
    assert "`docs/hosts.md`" in text and "[The details](references/details.md)" in text  # an example is unchanged


def test_readme_clones_and_installs_from_the_repository_of_the_package(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    urls = dict(each.split(", ") for each in email.message_from_bytes(wheel.read(name)).get_all("Project-URL", []))
    assert urls.keys() == {"Repository", "Documentation", "Changelog", "Issues"}
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    for start in ("git clone ", "uv tool install git+", "pipx install git+"):
        assert any(f"{line} ".startswith(f"{start}{urls['Repository']} ") for line in lines), start
    for page in ("README.md", "docs/index.md", "docs/tutorial.md"):  # anyone can register a name that is not taken
        assert not re.search(r"(?:install|uvx|run) mcp-skills-server\b", (ROOT / page).read_text(encoding="utf-8")), (
            page
        )


def test_wheel_contains_schemas(wheel: zipfile.ZipFile) -> None:
    names = [name for name in wheel.namelist() if "/schemas/" in name]
    assert names == [f"mcp_skills_server/schemas/{path.name}" for path in sorted(SCHEMAS.iterdir())] and len(names) == 3
    assert all("$schema" in json.loads(wheel.read(name)) for name in names)
    assert "mcp_skills_server/py.typed" in wheel.namelist()
    assert not [name for name in wheel.namelist() if name.startswith(("tests/", "bench/", "tools/"))]


def test_source_distribution_has_everything_its_tests_use(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as opened:
        packed = {name.partition("/")[2] for name in opened.getnames()}
    folders = (".ci", "bench", "deploy", "docs", "examples", "fixtures", "src", "tests", "tools")
    existing = {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if (path.is_symlink() or path.is_file()) and "__pycache__" not in path.parts
    }
    ignored = {"deploy/tokens"}  # users create it by the documentation
    assert {each for each in existing - ignored - packed if not each.startswith("deploy/skills/")} == set()
    assert {"Makefile", "Dockerfile", "constraints.txt", "pyproject.toml", "CONTRIBUTING.md", "README.md"} <= packed


def test_both_distributions_pass_twine(built: Path) -> None:
    command = [PROGRAMS / "twine", "check", "--strict", *built.iterdir()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0 and done.stdout.count("PASSED") == 2, done.stdout + done.stderr


def test_wheel_installs_manual_page(wheel: zipfile.ZipFile) -> None:
    (page,) = [name for name in wheel.namelist() if name.endswith("share/man/man1/mcp-skills-server.1")]
    assert ".data/data/" in page
    assert wheel.read(page) == (ROOT / "docs" / "mcp-skills-server.1").read_bytes()
    if program := shutil.which("man"):
        shown = subprocess.run([program, "-l", "-"], input=wheel.read(page), capture_output=True, check=True)
        assert b"validate" in shown.stdout and not shown.stderr


@pytest.fixture(scope="module")
def index(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local index: a folder with our wheel and those of all its dependencies."""
    folder = tmp_path_factory.mktemp("index")
    packages = needed("mcp-skills-server")
    del packages["mcp-skills-server"]
    fill(folder, packages.values())
    shutil.copy(next(built.glob("*.whl")), folder)
    return folder


HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "host", "version": "1"}}
CALLS = (("initialize", HELLO), ("tools/call", {"name": "skills_load", "arguments": {"names": ["csv-profiling"]}}))
LOAD = "".join(
    json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n"
    for number, (method, params) in enumerate(CALLS)
)
"""The requests of a host that loads one skill."""


def loaded_names(output: str) -> list[str]:
    """Return the names of the skills that the answer to `LOAD` has."""
    (answer,) = [each for each in map(json.loads, output.splitlines()) if each.get("id") == 1]
    return [each["name"] for each in answer["result"]["structuredContent"]["active_skills"]]


def run_bare(place: Path, index: Path, command: list[str], text: str = "") -> str:
    environment = {
        "HOME": str(place), "PATH": os.pathsep.join(map(str, (place / ".local" / "bin", PROGRAMS, "/usr/bin", "/bin"))),
        "UV_OFFLINE": "1", "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(index), "UV_PYTHON": sys.executable,
    }  # fmt: skip
    done = subprocess.run(
        command, env=environment, cwd=place, input=text, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("command", ["uvx", "pipx run"])
def test_one_command_runs_program_from_an_index_on_bare_machine(command: str, index: Path, tmp_path: Path) -> None:
    program, *words = command.split()
    listed = subprocess.run([*COMMAND, "list", str(FIXTURES)], capture_output=True, text=True, check=True)
    output = run_bare(tmp_path, index, [str(PROGRAMS / program), *words, "mcp-skills-server", "list", str(FIXTURES)])
    assert output == listed.stdout


def test_bundle_starts_by_uv_alone_on_bare_machine(index: Path, tmp_path: Path) -> None:
    """As Claude Desktop does: uv installs what the bundle names, and this package is on no index."""
    others = shutil.copytree(index, tmp_path / "index", ignore=shutil.ignore_patterns("mcp_skills_server*"))
    subprocess.run([*COMMAND, "package", "--output", str(tmp_path / "skills.mcpb")], check=True, capture_output=True)
    with zipfile.ZipFile(tmp_path / "skills.mcpb") as archive:
        archive.extractall(tmp_path / "extension")
    with (tmp_path / "extension" / "pyproject.toml").open("a") as project:  # the index is for this Python alone
        here = f"sys_platform == '{sys.platform}' and python_version == '{sys.version_info[0]}.{sys.version_info[1]}'"
        project.write(f'[tool.uv]\nenvironments = ["{here}"]\n')
    server = json.loads((tmp_path / "extension" / "manifest.json").read_bytes())["server"]
    start = server["mcp_config"]
    words = [each.replace("${__dirname}", str(tmp_path / "extension")) for each in start["args"]]
    words[words.index("${user_config.folders}")] = str(FIXTURES)
    assert loaded_names(run_bare(tmp_path, others, [start["command"], *words], LOAD)) == ["csv-profiling"]


def test_default_install_is_small() -> None:
    packages = needed("mcp-skills-server")
    del packages["mcp-skills-server"]
    # 33 of them are the SDK's dependencies.
    assert len(packages) <= 40 and size(packages.values()) < 70e6
    page = {"jinja2", "markupsafe", "markdown-it-py", "mdurl"}
    assert page <= packages.keys() and len(packages.keys() - page - needed("mcp").keys()) <= 6


def test_bare_machine_uses_skill_in_host_within_a_minute(index: Path, tmp_path: Path) -> None:
    """Install the program, add it to a host, start it as the host would, and load a skill."""
    program = tmp_path / ".local" / "bin" / "mcp-skills-server"
    run_bare(tmp_path, index, ["uv", "tool", "install", "--quiet", "mcp-skills-server"])
    run_bare(tmp_path, index, [str(program), "install", "cursor", str(FIXTURES)])
    assert "works: 17 skills" in run_bare(tmp_path, index, [str(program), "doctor", "cursor"])
    entry = json.loads((tmp_path / ".cursor" / "mcp.json").read_text(encoding="utf-8"))["mcpServers"]["skills"]
    assert entry["command"].startswith(str(tmp_path))
    command, environment = [entry["command"], *entry["args"]], {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    output = subprocess.check_output(command, input=LOAD, env=environment, cwd="/", text=True, timeout=DEADLINE)
    assert loaded_names(output) == ["csv-profiling"]
