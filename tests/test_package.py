"""What is in the distributions: the wheel has what users need, the source distribution what its own tests need."""

from __future__ import annotations

import email
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from wire import ROOT, SCHEMAS

DEADLINE = 120.0
BUILD = "import sys; from hatchling.build import {0}; print({0}(sys.argv[1]))"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution, built as a front end builds them."""
    place = tmp_path_factory.mktemp("built")
    for hook in ("build_wheel", "build_sdist"):
        command = [sys.executable, "-c", BUILD.format(hook), str(place)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=DEADLINE)
    return place


@pytest.fixture(scope="module")
def wheel(built: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as opened:
        yield opened


def targets(tokens: list[Token]) -> Iterator[str]:
    """Where the links and images of a text lead."""
    for token in tokens:
        yield from (str(token.attrs[key]) for key in ("href", "src") if key in token.attrs)
        yield from targets(token.children or [])


def test_an_index_page_has_no_link_that_leads_nowhere(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    seen = email.message_from_bytes(wheel.read(name))
    assert seen["Description-Content-Type"] == "text/markdown"
    text = str(seen.get_payload())
    found = list(targets(MarkdownIt("commonmark").enable("table").parse(text)))
    assert found and [each for each in found if not each.startswith("https://")] == []
    assert "`docs/hosts.md`" in text and "[The details](references/details.md)" in text  # an example stays as it is


def test_the_schemas_are_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    names = [name for name in wheel.namelist() if "/schemas/" in name]
    assert names == [f"mcp_skills_server/schemas/{path.name}" for path in sorted(SCHEMAS.iterdir())] and len(names) == 3
    assert all("$schema" in json.loads(wheel.read(name)) for name in names)
    assert "mcp_skills_server/py.typed" in wheel.namelist()
    assert not [name for name in wheel.namelist() if name.startswith(("tests/", "bench/", "tools/"))]


def test_the_source_distribution_has_all_that_its_tests_and_its_makefile_use(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as opened:
        packed = {name.partition("/")[2] for name in opened.getnames()}
    folders = (".ci", "bench", "deploy", "docs", "examples", "fixtures", "src", "tests", "tools")
    there = {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if (path.is_symlink() or path.is_file()) and "__pycache__" not in path.parts
    }
    ignored = {"deploy/tokens"}  # what people make by the documentation
    assert {each for each in there - ignored - packed if not each.startswith("deploy/skills/")} == set()
    assert {"Makefile", "Dockerfile", "constraints.txt", "pyproject.toml", "CONTRIBUTING.md", "README.md"} <= packed
