"""`publish`, `push`, `bundle` and `plugin`, as a person or a pipeline runs them."""

from __future__ import annotations

import io
import json
import os
import socket
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
from publish.test_static import files, times, whole
from tables import each_row
from wire import FIXTURES, ROOT, Wire, write_skill


def publish(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return run("publish", *words)


def refused(*arguments: str | Path) -> str:
    """The one line that is said before it exits with 2."""
    done = publish(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    return done.stderr


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_skill(tmp_path / "skills" / "lone")
    write_skill(tmp_path / "skills" / "more", notes_md="notes")
    return tmp_path / "skills"


def test_it_publishes_and_says_so_and_does_it_once(root: Path, tmp_path: Path) -> None:
    output = tmp_path / "public"
    done = publish(root, "--output", output)
    assert (done.returncode, done.stdout) == (0, "") and "published 2 skills" in done.stderr and whole(output)
    before = times(output)
    done = publish(root, "--output", output)
    assert done.returncode == 0 and "nothing to change" in done.stderr and times(output) == before


def test_a_check_exits_with_1_and_names_what_differs(root: Path, tmp_path: Path) -> None:
    output = tmp_path / "public"
    done = publish(root, "--output", output, "--check")
    assert done.returncode == 1 and not output.exists()
    assert ".well-known/agent-skills/index.json: missing" in done.stdout.splitlines()
    publish(root, "--output", output)
    done = publish(root, "--output", output, "--check")
    assert (done.returncode, done.stdout) == (0, "")
    (output / ".well-known" / "skills" / "more" / "notes.md").write_bytes(b"tampered")
    done = publish(root, "--output", output, "--check")
    assert (done.returncode, done.stdout) == (1, ".well-known/skills/more/notes.md: different\n")
    assert "not current: 1 file to change" in done.stderr


def test_what_is_left_out_is_told(root: Path, tmp_path: Path) -> None:
    write_skill(root / "Bad")
    (write_skill(root / "foreign") / "Größe.md").write_bytes(b"x")
    done = publish(root, "--output", tmp_path / "public")
    assert done.returncode == 1 and "nothing was published" in done.stderr and "Bad: not published: " in done.stderr
    assert not files(tmp_path / "public")
    done = publish(root, "--output", tmp_path / "public", "--allow-partial")
    assert done.returncode == 0 and "published 3 skills" in done.stderr
    for options, code in ((["--check"], 1), (["--check", "--allow-partial"], 0), ([], 1), (["--allow-partial"], 0)):
        assert publish(root, "--output", tmp_path / "public", *options).returncode == code, options
    assert "Bad: not published: " in done.stderr and "foreign: published only by discovery 0.2.0: " in done.stderr


def test_a_push_without_a_skill_that_is_there_reaches_no_registry(root: Path) -> None:
    write_skill(root / "Bad")
    with socket.create_server(("127.0.0.1", 0)) as registry:
        registry.setblocking(False)
        place = f"oci+http://127.0.0.1:{registry.getsockname()[1]}/team/skills"
        done = run("push", root, place)
        assert done.returncode == 1 and "nothing was pushed" in done.stderr and "Bad: not pushed" in done.stderr
        with pytest.raises(BlockingIOError):
            registry.accept()
    done = run("push", root, place, "--allow-partial")  # nothing listens there any more
    assert done.returncode == 2 and "Traceback" not in done.stderr
    for target, said in (("https://r.example/a", "push takes roots"), (f"{place}@sha256:{'0' * 64}", "give a tag")):
        done = run("push", root, target)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1) and said in done.stderr


def test_several_roots_and_a_base(root: Path, tmp_path: Path) -> None:
    write_skill(tmp_path / "others" / "third")
    base = "https://cdn.example.com/v1"
    done = publish(root, tmp_path / "others", "--output", tmp_path / "public", "--base-url", base, "--headers")
    assert done.returncode == 0 and (tmp_path / "public" / "_headers").is_file()
    index = json.loads((tmp_path / "public/.well-known/agent-skills/index.json").read_bytes())
    assert [entry["name"] for entry in index["skills"]] == ["lone", "more", "third"]
    assert all(entry["url"].startswith(base + "/.well-known/") for entry in index["skills"])
    for other in ("/skills", "http://cdn.example.com"):
        assert publish(root, "--output", tmp_path / "other", "--base-url", other).returncode == 0


@each_row(
    "base",
    ["cdn.example.com", "ftp://x", "https://", "https://x/?a", "https://x#a", "https://u:p@x", "//x", "/a b", "["],
)
def test_a_base_that_no_client_could_follow_is_refused(root: Path, tmp_path: Path, base: str) -> None:
    assert "--base-url" in refused(root, "--output", tmp_path / "public", "--base-url", base)
    assert not (tmp_path / "public").exists()


def test_folders_that_cannot_be_the_output_are_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "index.html").write_bytes(b"mine")
    assert "not written by this program" in refused(root, "--output", tmp_path / "foreign")
    assert files(tmp_path / "foreign") == {"index.html": b"mine"}
    assert "lies in" in refused(root, "--output", root / "public")
    assert "lies in" in refused(root, "--output", root)
    assert "not a folder" in refused(root, "--output", tmp_path / "foreign" / "index.html")
    assert "cannot be written" in refused(root, "--output", tmp_path / "foreign" / "index.html" / "below")
    assert "no such file or folder" in refused(tmp_path / "nowhere", "--output", tmp_path / "public")


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root writes everywhere")
def test_an_output_without_permission_is_one_line(root: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    for command, output in (("publish", "closed"), ("publish", "closed/below"), ("plugin", "closed/below")):
        done = run(command, root, "--output", tmp_path / output)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "cannot be written" in done.stderr


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
    long = write_skill(tmp_path / ("A" * 70) / "good").parent
    assert run("plugin", long, "--output", tmp_path / "long").returncode == 0
    assert json.loads((tmp_path / "long/plugin.json").read_bytes())["name"] == "a" * 64
    done = run("plugin", root, "--output", tmp_path / "made", "--allow-partial")
    assert done.returncode == 0 and json.loads((tmp_path / "made/plugin.json").read_bytes())["name"] == "skills-of-mine"


def test_the_registry_of_servers_is_given_what_it_wants() -> None:
    entry = json.loads((ROOT / "server.json").read_bytes())
    assert published.faults(published.SERVER_JSON, entry) == []
    versions = {entry["version"], *(each["version"] for each in entry["packages"])}
    assert versions == {mcp_skills_server.__version__}
    assert f"<!-- mcp-name: {entry['name']} -->" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f'io.modelcontextprotocol.server.name="{entry["name"]}"' in (ROOT / "Dockerfile").read_text(encoding="utf-8")
