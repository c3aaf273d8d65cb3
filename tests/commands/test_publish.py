"""`publish`, `push`, `bundle` and `plugin`, each in a process."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tomllib
import zipfile
from operator import itemgetter
from pathlib import Path

import agent_plugins
import pytest
from tools.interop.setup import MCPB, MODULES

import mcp_skills_server
import published
from commands.calls import run
from publish.test_static import files
from tables import each_row
from web.http_wire import http_serving
from wire import FIXTURES, ROOT, Wire, write_skill


def publish(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return run("publish", *words)


def refused(*arguments: str | Path) -> str:
    """Return the one line on stderr of a `publish` that exits with 2."""
    done = publish(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    return done.stderr


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_skill(tmp_path / "skills" / "lone")
    write_skill(tmp_path / "skills" / "more", notes_md="notes")
    return tmp_path / "skills"


def test_publish_and_check_report_changes_with_their_exit_codes(root: Path, tmp_path: Path) -> None:
    output = tmp_path / "public"
    done = publish(root, "--output", output, "--check")
    assert done.returncode == 1 and not output.exists()
    assert ".well-known/agent-skills/index.json: missing" in done.stdout.splitlines()
    done = publish(root, "--output", output)
    assert (done.returncode, done.stdout) == (0, "")
    assert "published 2 skills" in done.stderr
    assert "nothing to change" in publish(root, "--output", output).stderr
    done = publish(root, "--output", output, "--check")
    assert (done.returncode, done.stdout) == (0, "")
    (output / ".well-known" / "skills" / "more" / "notes.md").write_bytes(b"tampered")
    done = publish(root, "--output", output, "--check")
    assert (done.returncode, done.stdout) == (1, ".well-known/skills/more/notes.md: different\n")
    assert "not current: 1 file to change" in done.stderr


def test_skills_left_out_are_reported_and_need_allow_partial(root: Path, tmp_path: Path) -> None:
    write_skill(root / "Bad")
    (write_skill(root / "foreign") / "Größe.md").write_bytes(b"x")
    done = publish(root, "--output", tmp_path / "public")
    assert done.returncode == 1
    assert "nothing was published" in done.stderr and "Bad: not published: " in done.stderr
    assert not files(tmp_path / "public")
    done = publish(root, "--output", tmp_path / "public", "--allow-partial")
    assert done.returncode == 0 and "published 3 skills" in done.stderr
    for options, code in ((["--check"], 1), (["--check", "--allow-partial"], 0), ([], 1), (["--allow-partial"], 0)):
        assert publish(root, "--output", tmp_path / "public", *options).returncode == code, options
    assert "Bad: not published: " in done.stderr and "foreign: published only by discovery 0.2.0: " in done.stderr


def test_push_with_an_invalid_skill_contacts_no_registry(root: Path) -> None:
    write_skill(root / "Bad")
    with socket.create_server(("127.0.0.1", 0)) as registry:
        registry.setblocking(False)
        target = f"oci+http://127.0.0.1:{registry.getsockname()[1]}/team/skills"
        done = run("push", root, target)
        assert done.returncode == 1
        assert "nothing was pushed" in done.stderr and "Bad: not pushed" in done.stderr
        with pytest.raises(BlockingIOError):
            registry.accept()
    assert run("push", root, target, "--allow-partial").returncode == 2  # no registry listens


def test_invalid_push_target_is_reported_in_one_line(root: Path) -> None:
    target = f"oci+http://127.0.0.1:1/team/skills@sha256:{'0' * 64}"
    for wrong, message in (("https://r.example/a", "push takes roots"), (target, "give a tag")):
        done = run("push", root, wrong)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert message in done.stderr


def test_publish_takes_several_roots_and_a_base_url(root: Path, tmp_path: Path) -> None:
    write_skill(tmp_path / "others" / "third")
    base = "https://cdn.example.com/v1"
    done = publish(root, tmp_path / "others", "--output", tmp_path / "public", "--base-url", base, "--headers")
    assert done.returncode == 0 and (tmp_path / "public" / "_headers").is_file()
    index = json.loads((tmp_path / "public/.well-known/agent-skills/index.json").read_bytes())
    assert [entry["name"] for entry in index["skills"]] == ["lone", "more", "third"]
    assert all(entry["url"].startswith(base + "/.well-known/") for entry in index["skills"])
    for other in ("/skills", "http://cdn.example.com"):
        assert publish(root, "--output", tmp_path / "other", "--base-url", other).returncode == 0


@pytest.mark.requirement("WK-14", "WK-18", "WK-48")
def test_published_and_fetched_skills_are_published_with_the_same_index(tmp_path: Path) -> None:
    first, copies, second = tmp_path / "first", tmp_path / "copies", tmp_path / "second"
    assert publish(FIXTURES, "--output", first).returncode == 0
    with http_serving(FIXTURES) as live:
        url = f"http://127.0.0.1:{live.port}"
        assert run("fetch", url, "--output", copies, "--allow-private").returncode == 0
    assert publish(copies, "--output", second).returncode == 0
    entries, other_entries = (
        json.loads((site / ".well-known/agent-skills/index.json").read_bytes())["skills"] for site in (first, second)
    )
    # Entries are in the order of skill paths, which a fetch flattens.
    assert sorted(entries, key=itemgetter("name")) == sorted(other_entries, key=itemgetter("name"))
    skills = [path.parent for path in FIXTURES.rglob("SKILL.md")]
    assert len(entries) == len(skills)
    for skill in skills:
        published = {path: raw for path, raw in files(skill).items() if not path.startswith("evals/")}
        for path, raw in published.items():
            assert (copies / skill.name / path).read_bytes() == raw


@each_row("base", [
    "cdn.example.com", "ftp://x", "https://", "https://x/?a", "https://x#a", "https://u:p@x", "//x", "/a b", "[",
])  # fmt: skip
def test_invalid_base_url_is_refused(root: Path, tmp_path: Path, base: str) -> None:
    assert "--base-url" in refused(root, "--output", tmp_path / "public", "--base-url", base)
    assert not (tmp_path / "public").exists()


def test_unsuitable_output_is_refused_in_one_line(root: Path, tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    page = tmp_path / "foreign" / "index.html"
    page.write_bytes(b"mine")
    assert "not written by this program" in refused(root, "--output", tmp_path / "foreign")
    assert files(tmp_path / "foreign") == {"index.html": b"mine"}
    assert "lies in" in refused(root, "--output", root / "public")
    assert "lies in" in refused(root, "--output", root)
    assert "not a folder; give" in refused(root, "--output", page)
    assert re.search(f"cannot be written .*: {page}/below", refused(root, "--output", page / "below"))
    assert "no such file or folder" in refused(tmp_path / "nowhere", "--output", tmp_path / "public")


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root writes everywhere")
def test_unwritable_output_is_reported_in_one_line(root: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    for command, output in (("publish", "closed"), ("publish", "closed/below"), ("package", "closed/below")):
        done = run(command, root, "--output", tmp_path / output)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "cannot be written" in done.stderr


VALIDATOR = MODULES / MCPB / "dist" / "cli" / "cli.js"


def test_bundle_has_required_fields_and_starts_with_its_skills(tmp_path: Path) -> None:
    done = run("package", FIXTURES, "--output", tmp_path / "s.mcpb", "--name", "acme", "--package-version", "1.2.3")
    assert done.returncode == 0 and "wrote the bundle acme with 17 skills" in done.stderr, done.stderr
    with zipfile.ZipFile(tmp_path / "s.mcpb") as archive:
        archive.extractall(tmp_path / "unpacked")
    manifest = json.loads((tmp_path / "unpacked/manifest.json").read_bytes())
    assert manifest.keys() >= {"manifest_version", "author", "server"}
    assert (manifest["manifest_version"], manifest["name"]) == ("0.4", "acme")
    assert (manifest["version"], manifest["description"]) == ("1.2.3", "17 Agent Skills")
    # Tools and prompts depend on the skills.
    assert manifest["tools_generated"] is manifest["prompts_generated"] is True
    assert manifest["server"]["type"] == "uv"
    assert (tmp_path / "unpacked" / manifest["server"]["entry_point"]).is_file()
    project = tomllib.loads((tmp_path / "unpacked/pyproject.toml").read_text(encoding="utf-8"))["project"]
    # The server is in the bundle: its name on an index could be anyone's.
    needs = " ".join(project["dependencies"])
    assert "uvicorn>=" in needs and "mcp-skills-server" not in needs and "pytest" not in needs
    assert (tmp_path / "unpacked/src/mcp_skills_server/schemas").is_dir()
    wire = Wire([sys.executable, str(tmp_path / "unpacked/src/server.py")])
    try:
        wire.open()
        names = [each["name"] for each in wire.every_skill()]
        assert len(names) == len({*names}) == 17
    finally:
        wire.kill()


@pytest.mark.skipif(not VALIDATOR.exists(), reason="make interop installs the validator of bundles")
@pytest.mark.needs_program("node")
def test_bundle_passes_the_validator_of_its_format(tmp_path: Path) -> None:
    assert run("package", FIXTURES, "--output", tmp_path / "s.mcpb").returncode == 0

    def validator(*words: str | Path) -> str:
        return subprocess.check_output(["node", VALIDATOR, *words], text=True, cwd=tmp_path)

    def names_in(bundle: str) -> set[str]:
        with zipfile.ZipFile(tmp_path / bundle) as archive:
            return {each for each in archive.namelist() if not each.endswith("/")}

    validator("unpack", "s.mcpb", "unpacked")
    assert "passes" in validator("validate", "unpacked/manifest.json")
    validator("pack", "unpacked", "again.mcpb")
    assert names_in("s.mcpb") == names_in("again.mcpb")


def test_bundle_is_reproducible_and_keeps_file_modes(tmp_path: Path) -> None:
    for folder, name in (("one", "one.mcpb"), ("two", "two.MCPB")):
        skill = write_skill(tmp_path / folder / "skills" / "a", scripts__run_sh="#!/bin/sh\n")
        (skill / "scripts/run.sh").chmod(0o755)
        assert run("package", skill.parent, "--output", tmp_path / name).returncode == 0
    assert (tmp_path / "one.mcpb").read_bytes() == (tmp_path / "two.MCPB").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.mcpb") as archive:
        members = archive.infolist()
        manifest = archive.read("manifest.json")
    assert {each.date_time for each in members} == {(1980, 1, 1, 0, 0, 0)}
    modes = {each.filename: each.external_attr >> 16 for each in members}
    assert {name: mode for name, mode in modes.items() if not name.startswith("src/mcp_skills_server/")} == {
        "manifest.json": 0o100644,
        "pyproject.toml": 0o100644,
        "skills/a/SKILL.md": 0o100644,
        "skills/a/scripts/run.sh": 0o100755,
        "src/server.py": 0o100644,
    }
    assert manifest.startswith(b'{\n  "manifest_version": "0.4",\n  "name": "skills",\n')
    assert manifest.endswith(b"}\n")
    assert json.loads(manifest)["description"] == "1 Agent Skill"


def test_bundle_without_a_root_has_its_user_choose_folders(tmp_path: Path) -> None:
    done = run("package", "--output", tmp_path / "s.mcpb")
    assert done.returncode == 0 and "wrote the bundle agent-skills with a choice of folders" in done.stderr, done.stderr
    with zipfile.ZipFile(tmp_path / "s.mcpb") as archive:
        archive.extractall(tmp_path / "unpacked")
    manifest = json.loads((tmp_path / "unpacked/manifest.json").read_bytes())
    folders = manifest["user_config"]["folders"]
    assert (folders["type"], folders["multiple"], folders["required"]) == ("directory", True, True)
    assert manifest["server"]["mcp_config"]["args"][-1] == "${user_config.folders}"
    write_skill(tmp_path / "two" / "other")
    wire = Wire([sys.executable, str(tmp_path / "unpacked/src/server.py"), str(FIXTURES), str(tmp_path / "two")])
    try:
        wire.open()
        assert len(wire.every_skill()) == 18
    finally:
        wire.kill()
    assert run("package", "--output", tmp_path / "folder").returncode == 2


def test_plugin_matches_its_schemas_with_and_without_a_server(tmp_path: Path) -> None:
    assert run("package", FIXTURES, "--output", tmp_path / "p", "--name", "acme").returncode == 0
    assert {each.name for each in (tmp_path / "p").iterdir()} == {"plugin.json", "skills"}
    assert not os.access(tmp_path / "p/plugin.json", os.X_OK)
    about = json.loads((tmp_path / "p/plugin.json").read_bytes())
    assert published.faults(published.AGENT_PLUGIN, about) == []
    assert (about["name"], about["description"]) == ("acme", "17 Agent Skills")
    assert all((each / "SKILL.md").is_file() for each in (tmp_path / "p/skills").iterdir())
    assert run("validate", tmp_path / "p/skills").returncode == 0
    assert run("package", FIXTURES, "--output", tmp_path / "q", "--server").returncode == 0
    assert not os.access(tmp_path / "q/mcp.json", os.X_OK)
    servers = json.loads((tmp_path / "q/mcp.json").read_bytes())
    assert published.faults(published.AGENT_PLUGIN_MCP, servers) == []
    assert servers["mcpServers"]["skills"]["args"] == ["mcp-skills-server", "serve", "${PLUGIN_ROOT}/skills"]
    plugin = agent_plugins.Plugin(tmp_path / "q")  # the reader of another project
    assert (plugin.manifest.name, plugin.manifest.version) == ("skills", "0.1.0")
    assert len(plugin.skills) == 17
    assert plugin.mcp is not None and [*plugin.mcp.servers] == ["skills"]


def test_invalid_package_is_reported_and_not_written(tmp_path: Path) -> None:
    write_skill(tmp_path / "Skills of Mine" / "good")
    write_skill(tmp_path / "Skills of Mine" / "bad", name="other")
    root, output = tmp_path / "Skills of Mine", tmp_path / "out"
    for made in (output, tmp_path / "out.mcpb"):
        done = run("package", root, "--output", made)
        assert done.returncode == 1 and "bad: not packaged" in done.stderr
        for wrong in (("--name", "Not A Name"), ("--name", "a--b"), ("--package-version", "one")):
            done = run("package", root, "--output", made, "--allow-partial", *wrong)
            assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert not made.exists()
    done = run("package", root, "--output", tmp_path / "out.mcpb", "--allow-partial", "--server")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "leave it out" in done.stderr
    (tmp_path / "empty").mkdir()
    assert run("package", tmp_path / "empty", "--output", output).returncode == 2
    output.mkdir()
    assert "already exists" in run("package", root, "--output", output, "--allow-partial").stderr
    assert [*output.iterdir()] == []
    long = write_skill(tmp_path / ("A" * 70) / "good").parent
    assert run("package", long, "--output", tmp_path / "long").returncode == 0
    assert json.loads((tmp_path / "long/plugin.json").read_bytes())["name"] == "a" * 64
    assert run("package", root, "--output", tmp_path / "made", "--allow-partial").returncode == 0
    assert json.loads((tmp_path / "made/plugin.json").read_bytes())["name"] == "skills-of-mine"


def test_server_json_matches_the_registry_schema() -> None:
    entry = json.loads((ROOT / "server.json").read_bytes())
    assert published.faults(published.SERVER_JSON, entry) == []
    versions = {entry["version"], *(each["version"] for each in entry["packages"])}
    assert versions == {mcp_skills_server.__version__}
    assert f"<!-- mcp-name: {entry['name']} -->" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f'io.modelcontextprotocol.server.name="{entry["name"]}"' in (ROOT / "Dockerfile").read_text(encoding="utf-8")
