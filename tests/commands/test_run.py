"""`run` and `approve`: a script as a server would run it, and a site that changes its mind."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands.calls import invoke, refusal, run, seen
from programs import LOOSE, loose
from rpc.build import toml
from tables import each_row
from web.http_wire import Server, http_serving
from wire import Wire, serving, write_skill

ENTRY = 'entrypoint = "scripts/run.py"\nlanguage = "python"'


@pytest.fixture
def published(tmp_path: Path) -> Path:
    files = {"scripts__run_py": "print(1)\n", "skill_toml": toml("thing", runtime=ENTRY)}
    return write_skill(tmp_path / "published" / "thing", **files).parent


@pytest.fixture
def site(published: Path) -> Iterator[Server]:
    with http_serving(published) as server:
        yield server


def options(tmp_path: Path) -> list[str]:
    return ["--allow-private", "--allow-http", "--cache-dir", str(tmp_path / "cache")]


def approved(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run("approve", *words, "--approvals", tmp_path / "approvals.json", *options(tmp_path))


def executed(wire: Wire) -> dict[str, Any]:
    loaded = wire.request("tools/call", {"name": "skills_load", "arguments": {"names": ["thing"]}})
    session = loaded["structuredContent"].get("session")
    given = {"path": "scripts/run.py"} | ({"session": session} if session else {})
    return wire.request("tools/call", {"name": "skills_run_script", "arguments": given})


def text(result: dict[str, Any]) -> str:
    return " ".join(part.get("text", "") for part in result["content"])


@loose
def test_a_script_of_a_site_runs_only_as_it_was_approved(site: Server, published: Path, tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{site.port}"
    allowed = ["--allow-scripts", *LOOSE, "--approvals", str(tmp_path / "approvals.json")]
    run("list", address, *options(tmp_path))
    with serving(address, *options(tmp_path), *allowed) as wire:
        refused = executed(wire)
        assert refused["isError"] and "--allow-scripts-of" in text(refused)
    with serving(address, *options(tmp_path), *allowed, "--allow-scripts-of", f"{address}/") as wire:
        refused = executed(wire)
        assert refused["isError"] and "was never approved" in text(refused)
        digest = text(refused).rpartition("--digest ")[2].strip()
        assert approved(tmp_path, address, "thing", "--digest", "sha256:" + "0" * 64).returncode == 2
        assert executed(wire)["isError"]
        done = approved(tmp_path, address, "thing", "--digest", digest)
        assert done.returncode == 0 and digest in done.stdout and "scripts/run.py" in done.stdout
        assert executed(wire)["structuredContent"]["stdout"] == "1\n"
        assert approved(tmp_path, address, "thing", "--revoke").returncode == 0
        assert "was never approved" in text(executed(wire))
        assert approved(tmp_path, address, "thing").returncode == 0
        assert executed(wire)["structuredContent"]["stdout"] == "1\n"
    (published / "thing" / "scripts" / "run.py").write_text("print(2)\n")
    _fetched_anew(address, tmp_path, b"print(2)\n")
    with serving(address, *options(tmp_path), *allowed, "--allow-scripts-of", address) as wire:
        refused = executed(wire)
        assert refused["isError"] and "changed since it was approved on 2" in text(refused)


def _fetched_anew(address: str, tmp_path: Path, raw: bytes) -> None:
    digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    for _ in range(200):
        if digest in {each["digest"] for each in seen("show", address, "thing", *options(tmp_path))["files"]}:
            return
    pytest.fail("the site never published the change")


@loose
def test_what_was_fetched_into_a_folder_is_asked_about_too(site: Server, tmp_path: Path) -> None:
    address, mine = f"http://127.0.0.1:{site.port}", tmp_path / "mine"
    run("fetch", address, "--output", mine, "--allow-private")
    assert [each["origin"] for each in seen("list", mine)["skills"]] == [address]
    allowed = ["--allow-scripts", *LOOSE, "--approvals", str(tmp_path / "approvals.json")]
    with serving(mine, *allowed, "--allow-scripts-of", address) as wire:
        assert "was never approved" in text(executed(wire))
        assert approved(tmp_path, str(mine), "thing").returncode == 0
        assert executed(wire)["structuredContent"]["stdout"] == "1\n"
    shutil.copytree(mine / "thing", tmp_path / "own" / "thing")
    with serving(tmp_path / "own", *allowed) as wire:
        assert executed(wire)["structuredContent"]["stdout"] == "1\n"


def test_a_folder_of_ones_own_is_not_approved(published: Path, tmp_path: Path) -> None:
    done = approved(tmp_path, str(published), "thing")
    assert done.returncode == 2 and "need no approval" in done.stderr
    for arguments in (["thing"], [str(published), "gone"]):
        done = approved(tmp_path, *arguments)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "approvals.json").exists()


SCRIPT = """
import os, sys, time
print(sys.argv[1:], os.environ.get("HIDDEN"))
print("oops", file=sys.stderr)
with open("out.txt", "w") as file:
    file.write("abc")
time.sleep(600 * (sys.argv[1:] == ["sleep"]))
sys.exit(3)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_skill(tmp_path / "greet", scripts__hello_py=SCRIPT, skill_toml="").parent


def test_a_script_runs_with_its_arguments_and_its_exit_code(
    root: Path, sandbox_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDDEN", "a-very-secret-value")
    words = ("run", root, "greet", "scripts/hello.py", "--sandbox", sandbox_mode)
    done = invoke(*words, "--", "a", "--b")
    assert (done.stdout, done.return_value) == ("['a', '--b'] None\n", 3)
    assert done.stderr.splitlines() == [
        "oops",
        "mcp-skills-server: it made out.txt (3 bytes), which goes with its work directory",
    ]
    assert invoke(*words, "--script-timeout", "1", "--", "sleep").return_value == 1
    done = invoke(*words, "--explain")  # runs nothing
    lines = [line.split(":", 1) for line in done.stdout.splitlines() if line[0] != " "]
    said = {name: value.strip() for name, value in lines}
    assert done.return_value == 0 and said.keys() >= {"command", "limit"} and "variable:  PATH=" in done.stdout
    if sandbox_mode == "off":
        assert said["sandbox"].startswith("none: ") and said["network"] == "yes" and "writes" not in said
    else:
        assert (said["sandbox"], said["network"]) == ("bubblewrap", "no") and said["reads"].startswith("the files of")
        assert said["writes"] == "its work directory, its temporary files"
    assert "hello.py" in done.stdout and "a-very-secret-value" not in done.stdout


@each_row(
    ("skill", "script", "message"),
    [("nobody", "scripts/hello.py", "'list' shows"), ("greet", "scripts/no.py", "its scripts are scripts/hello.py")],
)
def test_what_is_not_there_is_one_line(root: Path, skill: str, script: str, message: str, sandbox_mode: str) -> None:
    assert message in refusal("run", root, skill, script, "--sandbox", sandbox_mode)
