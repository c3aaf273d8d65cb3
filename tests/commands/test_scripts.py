"""`run` and `approve`: scripts of fetched skills need approval; `run` runs one as a server would."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forkserver
from commands.calls import invoke, json_of, refusal, run, terminal
from dispatching import local_serving
from programs import WITH_NETWORK, needs_script_network
from rpc.build import toml
from sources.publishers import Publisher
from tables import each_row
from wire import COMMAND, DEADLINE, FIXTURES, Client, write_skill

ENTRY = 'entrypoint = "scripts/run.py"\nlanguage = "python"'


@pytest.fixture
def published(tmp_path: Path) -> Path:
    files = {"scripts__run_py": "print(1)\n", "skill_toml": toml("thing", runtime=ENTRY)}
    return write_skill(tmp_path / "published" / "thing", **files).parent


@pytest.fixture
def site(published: Path) -> Iterator[Publisher]:
    with Publisher() as publisher:
        pack(publisher, published)
        yield publisher


def pack(site: Publisher, published: Path) -> None:
    """Publish the skill as it is now."""
    paths = ("SKILL.md", "scripts/run.py", "skill.toml")
    site.entries = []
    site.pack("thing", {path: ((published / "thing" / path).read_bytes(), False) for path in paths})


def options(tmp_path: Path) -> list[str]:
    return ["--allow-private", "--allow-http", "--cache-dir", str(tmp_path / "cache")]


def approve(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run("scripts", "approve", *words, "--approvals", tmp_path / "approvals.json", *options(tmp_path))


def run_script(wire: Client) -> dict[str, Any]:
    """Load the skill `thing` and run its script; return the result of the tool."""
    loaded = wire.request("tools/call", {"name": "skills_load", "arguments": {"names": ["thing"]}})
    arguments = {"path": "scripts/run.py"}
    if session := loaded["structuredContent"].get("session"):
        arguments["session"] = session
    return wire.request("tools/call", {"name": "skills_run_script", "arguments": arguments})


def text_of(result: dict[str, Any]) -> str:
    return " ".join(part.get("text", "") for part in result["content"])


@needs_script_network
def test_script_of_a_site_runs_only_as_approved(site: Publisher, published: Path, tmp_path: Path) -> None:
    address = site.url
    allowed = ["--allow-scripts", *WITH_NETWORK, "--approvals", str(tmp_path / "approvals.json")]
    run("list", address, *options(tmp_path))
    with local_serving(address, *options(tmp_path), *allowed, "--allow-scripts-of", f"{address}/") as wire:
        refused = run_script(wire)
        assert refused["isError"] and "was never approved" in text_of(refused)
        digest = text_of(refused).rpartition("--digest ")[2].strip()
        assert approve(tmp_path, address, "thing", "--digest", "sha256:" + "0" * 64).returncode == 2
        assert run_script(wire)["isError"]
        done = approve(tmp_path, address, "thing", "--digest", digest)
        assert done.returncode == 0
        assert digest in done.stdout and "scripts/run.py" in done.stdout
        assert run_script(wire)["structuredContent"]["stdout"] == "1\n"
        assert approve(tmp_path, address, "thing", "--revoke").returncode == 0
        assert "was never approved" in text_of(run_script(wire))
        assert approve(tmp_path, address, "thing").returncode == 0
        assert run_script(wire)["structuredContent"]["stdout"] == "1\n"
    (published / "thing" / "scripts" / "run.py").write_text("print(2)\n")
    pack(site, published)
    with local_serving(address, *options(tmp_path), *allowed, "--allow-scripts-of", address) as wire:
        refused = run_script(wire)
        assert refused["isError"] and "changed since it was approved on 2" in text_of(refused)


@needs_script_network
def test_script_fetched_into_a_folder_needs_approval(site: Publisher, tmp_path: Path) -> None:
    address, mine = site.url, tmp_path / "mine"
    run("fetch", address, "--output", mine, "--allow-private")
    assert [each["origin"] for each in json_of("list", mine)["skills"]] == [address]
    allowed = ["--allow-scripts", *WITH_NETWORK, "--approvals", str(tmp_path / "approvals.json")]
    with local_serving(mine, *allowed, "--allow-scripts-of", address) as wire:
        assert "was never approved" in text_of(run_script(wire))
        assert approve(tmp_path, str(mine), "thing").returncode == 0
        assert run_script(wire)["structuredContent"]["stdout"] == "1\n"


def test_own_folder_needs_no_approval(published: Path, tmp_path: Path) -> None:
    done = approve(tmp_path, str(published), "thing")
    assert done.returncode == 2 and "need no approval" in done.stderr
    for words in (["thing"], [str(published), "gone"]):
        done = approve(tmp_path, *words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
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


def test_run_passes_arguments_and_exit_code_and_explains_its_sandbox(
    root: Path, sandbox_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDDEN", "a-very-secret-value")
    words = ("scripts", "run", root, "greet", "scripts/hello.py", "--sandbox", sandbox_mode)
    done = invoke(*words, "--", "a", "--b")
    assert (done.stdout, done.return_value) == ("['a', '--b'] None\n", 3)
    assert done.stderr.splitlines() == [
        "oops",
        "mcp-skills-server: it made out.txt (3 bytes), which goes with its work directory",
    ]
    assert invoke(*words, "--script-timeout", "1", "--", "sleep").return_value == 1
    done = invoke(*words, "--explain")  # runs nothing
    lines = [line.split(":", 1) for line in done.stdout.splitlines() if line[0] != " "]
    explained = {name: value.strip() for name, value in lines}
    assert done.return_value == 0
    assert explained.keys() >= {"command", "limit"}
    assert "variable:  PATH=" in done.stdout
    if sandbox_mode == "off":
        assert explained["sandbox"].startswith("none: ")
        assert explained["network"] == "yes"
        assert "writes" not in explained
    else:
        assert (explained["sandbox"], explained["network"]) == ("bubblewrap", "no")
        assert explained["reads"].startswith("the files of")
        assert explained["writes"] == "its work directory, its temporary files"
    assert "hello.py" in done.stdout
    assert "a-very-secret-value" not in done.stdout


def test_run_gives_the_script_copies_of_named_files(root: Path, tmp_path: Path, sandbox_mode: str) -> None:
    code = "import sys\nfor name in sys.argv[1:]:\n    print(open(name).read())\n    open(name, 'a').write('!')\n"
    (root / "greet/scripts/show.py").write_text(code, encoding="utf-8")
    for name in ("a.csv", "other/b.csv", "other/a.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"from {name}", encoding="utf-8")
    words = ("scripts", "run", root, "greet", "scripts/show.py", "--sandbox", sandbox_mode)
    done = invoke(*words, "--file", tmp_path / "a.csv", "--file", tmp_path / "other/b.csv", "--", "b.csv")
    assert (done.stdout, done.return_value) == ("from other/b.csv\n", 0)
    assert "it made b.csv (17 bytes)" in done.stderr and "a.csv" not in done.stderr
    assert (tmp_path / "other/b.csv").read_text(encoding="utf-8") == "from other/b.csv"
    two = ("--file", tmp_path / "a.csv", "--file", tmp_path / "other/a.csv")
    assert "same name" in refusal(*words, *two)


READER = """
import hashlib, os, sys
print(sys.argv[1:], *(open(each.rpartition("=")[2]).read() for each in sys.argv[1:]))
data = sys.stdin.buffer.read()
print(len(data), hashlib.sha256(data).hexdigest())
"""
EMPTY = f"0 {hashlib.sha256().hexdigest()}"


@pytest.fixture
def reader(root: Path) -> Path:
    """Return the root of a script that prints its arguments, the files they name, and its stdin."""
    (root / "greet/scripts/read.py").write_text(READER, encoding="utf-8")
    for name in ("a.csv", "data/b.csv"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(f"from {name}", encoding="utf-8")
    return root


@each_row(("given", "seen"), [
    (["a.csv"], ["a.csv"]), (["./data/b.csv", "a.csv"], ["data/b.csv", "a.csv"]), (["ROOT/data/b.csv"], ["b.csv"]),
    (["greet/../a.csv"], ["a.csv"]), (["--in=data/b.csv"], ["--in=data/b.csv"]),
    (["ROOT/a.csv", "a.csv"], ["a.csv"] * 2),
])  # fmt: skip
def test_run_copies_files_that_its_arguments_name(
    reader: Path, given: list[str], seen: list[str], sandbox_mode: str
) -> None:
    words = [word.replace("ROOT", str(reader)) for word in given]
    done = run("scripts", "run", ".", "greet", "scripts/read.py", "--sandbox", sandbox_mode, "--", *words, cwd=reader)
    texts = ["from data/b.csv" if "b.csv" in word else "from a.csv" for word in words]
    assert (done.stdout, done.stderr) == (f"{seen} {' '.join(texts)}\n{EMPTY}\n", "")


def test_run_refuses_two_files_of_one_name_and_explains_a_missing_script(reader: Path, sandbox_mode: str) -> None:
    (reader / "other").mkdir()
    (reader / "other/a.csv").write_text("other", encoding="utf-8")
    words = ("scripts", "run", reader, "greet", "scripts/read.py", "--sandbox", sandbox_mode)
    assert "same name a.csv" in refusal(*words, "--", reader / "a.csv", reader / "other/a.csv")
    assert "a skill and a script" in refusal("scripts", "run", reader, "greet", "--sandbox", sandbox_mode)


def test_run_of_one_skill_needs_no_name_of_it(reader: Path, sandbox_mode: str) -> None:
    done = invoke("scripts", "run", reader / "greet", "scripts/read.py", "--sandbox", sandbox_mode)
    assert (done.return_value, done.stdout) == (0, f"[]\n{EMPTY}\n")


@each_row("size", [0, 1, 5_000_000])
def test_run_passes_stdin_on_as_bytes(reader: Path, size: int, sandbox_mode: str) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    (reader / "input").write_bytes(data[:size])
    command = [*COMMAND, "scripts", "run", str(reader), "greet", "scripts/read.py", "--sandbox", sandbox_mode]
    wanted = f"[]\n{size} {hashlib.sha256(data[:size]).hexdigest()}\n".encode()
    piped = forkserver.run(command, input=data[:size], capture_output=True, timeout=DEADLINE, check=True)
    with open(reader / "input", "rb") as file:
        redirected = forkserver.run(command, stdin=file, capture_output=True, timeout=DEADLINE, check=True)
    assert (piped.stdout, redirected.stdout) == (wanted, wanted)


def test_script_ends_before_its_stdin_does(reader: Path, sandbox_mode: str) -> None:
    command = [*COMMAND, "scripts", "run", str(reader), "greet", "scripts/hello.py", "--sandbox", sandbox_mode]
    with forkserver.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.wait(DEADLINE) == 3  # its stdin is still open
        assert process.stdin is not None
        process.stdin.close()


def test_script_gets_no_terminal_as_stdin(reader: Path, sandbox_mode: str) -> None:
    with terminal("scripts", "run", reader, "greet", "scripts/read.py", "--sandbox", sandbox_mode) as screen:
        assert screen.end() == 0 and EMPTY in screen.seen


def test_script_cannot_open_the_file_behind_its_stdin(reader: Path, sandbox_mode: str) -> None:
    code = "import os\nprint(os.path.realpath('/proc/self/fd/0'), os.read(0, 4))\n"
    (reader / "greet/scripts/open.py").write_text(code, encoding="utf-8")
    command = [*COMMAND, "scripts", "run", str(reader), "greet", "scripts/open.py", "--sandbox", sandbox_mode]
    with open(reader / "a.csv", "rb") as file:
        done = forkserver.run(command, stdin=file, capture_output=True, timeout=DEADLINE, check=True)
    assert b"pipe:" in done.stdout and b"from" in done.stdout


def test_examples_of_the_help_of_run_work(tmp_path: Path, sandbox_mode: str) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    lines = run("scripts", "run", "--help").stdout.splitlines()
    examples = [line.split()[1:] for line in lines if line.startswith("    mcp-skills-server scripts run ")]
    assert len(examples) == 2
    for words in examples:
        words[2:3] = [FIXTURES, "--sandbox", sandbox_mode]
        done = run(*words, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout


@each_row(("skill", "script", "message"), [
    ("nobody", "scripts/hello.py", "'list' shows"), ("greet", "scripts/no.py", "its scripts are scripts/hello.py"),
])  # fmt: skip
def test_unknown_skill_or_script_is_reported_in_one_line(
    root: Path, skill: str, script: str, message: str, sandbox_mode: str
) -> None:
    assert message in refusal("scripts", "run", root, skill, script, "--sandbox", sandbox_mode)
