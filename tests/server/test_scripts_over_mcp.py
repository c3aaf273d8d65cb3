"""Scripts of skills over real stdio and HTTP: what comes back, progress, and an end for every script."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import sys
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcp_skills_server.runtime.scripts.processes import query
from programs import LOOSE, loose
from web.http_wire import Stream, client, http_serving
from wire import DEADLINE, Era, serving, write_skill

HELLO = "import sys, os\nprint('hello', *sys.argv[1:], os.environ.get('TONE', ''))\nsys.exit(3)\n"
HOLD = """\
import socket, sys
held = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
held.sendall(b"running")
held.recv(1)  # for ever
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A skill with two scripts and another without."""
    place = tmp_path_factory.mktemp("skills")
    files = {"hello_py": HELLO, "hold_py": HOLD, "notes_txt": "no program"}
    files = {f"scripts__{name}": text for name, text in files.items()}
    about = "Greets in a tone.\nmetadata:\n  env: TONE"
    write_skill(place / "alpha", description=about, references__a_py=HELLO, **files)
    write_skill(place / "beta")
    return place


@pytest.fixture
def door() -> Iterator[socket.socket]:
    """Where a script that holds on reports."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        opened.settimeout(DEADLINE)
        yield opened


def running(door: socket.socket) -> socket.socket:
    """The connection of a script that runs; it closes when the script ends."""
    held, _ = door.accept()
    held.settimeout(DEADLINE)
    assert held.recv(7) == b"running"
    return held


def load(wire: Any) -> str:
    """Load the skill with the scripts; the handle."""
    loaded = wire.call("skills_load", names=["alpha"])
    return loaded["structuredContent"]["session"]


def call(handle: str, path: str, **more: Any) -> dict[str, Any]:
    return {"name": "skills_run_script", "arguments": {"path": path, "session": handle, **more}}


@pytest.mark.requirement("RT-18", "RT-19")
def test_a_script_runs_and_its_end_is_told_whole(folder: Path, era: Era, sandbox_mode: str) -> None:
    with serving(folder, "--allow-scripts", "--sandbox", sandbox_mode, era=era) as wire:
        assert "skills_run_script" in [tool["name"] for tool in wire.request("tools/list")["tools"]]
        given = {"args": ["a b", "$HOME"], "env": {"TONE": "warm"}}
        result = wire.request("tools/call", call(load(wire), "scripts/hello.py", **given))
        outcome = result["structuredContent"]
        assert outcome.pop("duration_ms") >= 0 and outcome.pop("user") == (os.geteuid() or 65534)
        assert outcome.pop("sandbox") == ("none" if sandbox_mode == "off" else "bubblewrap")
        assert outcome == {
            "path": "scripts/hello.py", "exit_code": 3, "stdout": "hello a b $HOME warm\n", "stderr": "",
            "timed_out": False, "stdout_truncated": False, "stderr_truncated": False, "sandbox_gaps": [],
            "files": [], "files_not_shown": 0,
        }  # fmt: skip
        assert result["isError"] is True  # 11.E: a script that fails is marked
        assert "exit code 3" in result["content"][0]["text"] and "hello a b" in result["content"][0]["text"]


MAKE = """\
import os, pathlib
pathlib.Path("out").mkdir(exist_ok=True)
pathlib.Path("out/report.txt").write_text("line one\\nline two\\n")
pathlib.Path("sheet.xlsx").write_bytes(b"PK\\x03\\x04\\x00" * 9)
pathlib.Path("plot.png").write_bytes(bytes.fromhex("89504e470d0a1a0a") + bytes(40))
os.path.lexists("passwd") or os.symlink("/etc/passwd", "passwd")
os.path.lexists("etc") or os.symlink("/etc", "etc")
"""


def test_what_a_script_makes_is_of_its_session_alone(tmp_path: Path, era: Era, sandbox_mode: str) -> None:
    """11.23: nobody could fetch it."""
    write_skill(tmp_path / "alpha", scripts__make_py=MAKE)
    with serving(tmp_path, "--allow-scripts", "--sandbox", sandbox_mode, era=era) as wire:
        handle = load(wire)

        def read(path: str, **more: Any) -> dict[str, Any]:
            given = {"path": path, "session": handle, **more}
            return wire.call("skills_read", **given)

        early = read("/workspace/out/report.txt")
        assert early["isError"] and "No script has run in this session" in early["content"][0]["text"]
        result = wire.request("tools/call", call(handle, "scripts/make.py"))
        files = result["structuredContent"]["files"]
        names = ["out/report.txt", "plot.png", "sheet.xlsx"]
        assert [each["path"] for each in files] == [f"/workspace/{name}" for name in names]
        assert files[0] == {"path": "/workspace/out/report.txt", "size": 18}
        assert "/workspace/out/report.txt" in result["content"][0]["text"]
        assert read("/workspace/out/report.txt")["content"][0]["text"] == "line one\nline two\n"
        sheet = read("/workspace/sheet.xlsx")["content"][1]["resource"]
        assert b64decode(sheet["blob"]) == b"PK\x03\x04\x00" * 9 and sheet["uri"] == "workspace:///sheet.xlsx"
        assert read("/workspace/plot.png")["content"][1]["type"] == "image"
        for path, why in (
            ("passwd", "only plain files"), ("etc/passwd", "has no file"), ("../../etc/passwd", "is not a file path"),
        ):  # fmt: skip
            refused = read(f"/workspace/{path}")
            assert refused["isError"] and why in refused["content"][0]["text"], refused
        handle = load(wire)
        if era == "modern":  # before, the connection is the session
            assert "No script has run" in read("/workspace/out/report.txt")["content"][0]["text"]


@loose
def test_no_script_of_a_source_runs_that_the_operator_excludes(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f"[[source]]\nfrom = '{folder}'\nscripts = false\n")
    with serving("--config", file, "--allow-scripts", *LOOSE) as wire:
        refused = wire.request("tools/call", call(load(wire), "scripts/hello.py"))
        assert refused["isError"] and "excluded the scripts of its source" in refused["content"][0]["text"]


@loose
@pytest.mark.requirement("X-29")
def test_progress_is_told_and_a_cancelled_script_is_ended(folder: Path, door: socket.socket, era: Era) -> None:
    with serving(folder, "--allow-scripts", *LOOSE, era=era) as wire:
        handle = load(wire)
        asked = call(handle, "scripts/hold.py", args=[str(door.getsockname()[1])])
        identifier = wire.start("tools/call", {**asked, "_meta": {"progressToken": "p"}})
        held = running(door)
        seen = wire.notification()
        assert seen["method"] == "notifications/progress"
        assert seen["params"]["progressToken"] == "p" and seen["params"]["progress"] > 0
        assert len(wire.every_skill()) == 2  # others are answered meanwhile
        wire.notify("notifications/cancelled", {"requestId": identifier})
        assert held.recv(1) == b""
        held.close()
        assert wire.request("tools/call", call(handle, "scripts/hello.py"))["structuredContent"]["exit_code"] == 3


@loose
@pytest.mark.parametrize("how", ["stdin closes", "SIGTERM"])
def test_no_script_outlives_the_server(folder: Path, door: socket.socket, how: str, era: Era) -> None:
    with serving(folder, "--allow-scripts", *LOOSE, era=era) as wire:
        wire.start("tools/call", call(load(wire), "scripts/hold.py", args=[str(door.getsockname()[1])]))
        held = running(door)
        assert (wire.close() if how == "stdin closes" else wire.signal(signal.SIGTERM)) == 0
        assert held.recv(1) == b""
        held.close()


@loose
def test_a_client_that_leaves_ends_its_script_over_http(folder: Path, door: socket.socket) -> None:
    with http_serving(folder, "--allow-scripts", *LOOSE) as server, client(server, "modern") as one:
        asked = call(load(one), "scripts/hold.py", args=[str(door.getsockname()[1])])
        message = one.message("tools/call", {**asked, "_meta": {"progressToken": "p"}})

        # The stream begins with the first progress, so it is opened beside the script.
        stream = Stream(server, "POST", json.dumps(message).encode(), one.headers(message))
        held = running(door)
        stream.close()
        assert held.recv(1) == b""
        held.close()


def refused_start(*words: str) -> str:
    """The one line that a start is refused with."""
    done = query([sys.executable, "-m", "mcp_skills_server", *words])
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.requirement("SP-30")
@pytest.mark.parametrize("command", ["serve", "rpc"])
def test_a_start_without_a_sandbox_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """11.17: it was left out without a word to the client, and scripts read what the server's user can."""
    monkeypatch.setenv("PATH", str(folder))  # no bwrap there
    line = refused_start(command, str(folder), "--allow-scripts")
    assert "need a sandbox" in line and "install a working bubblewrap" in line and "or " in line
    if os.geteuid() == 0:
        line = refused_start(command, str(folder), "--allow-scripts", "--sandbox", "off")
        assert "as root without a sandbox" in line and "run the server as another user" in line


@pytest.mark.needs_program("flock")
@pytest.mark.parametrize("works", [pytest.param(True, marks=pytest.mark.needs_program("bwrap")), False])
def test_no_start_over_stdio_waits_for_the_sandbox(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    """23.36: a host that waits for half a second had no tools in its first turn. Here bubblewrap waits for a lock."""
    programs = tmp_path_factory.mktemp("programs")
    gate, slow = programs / "gate", programs / "bwrap"
    then = f'exec {shutil.which("bwrap")} "$@"' if works else "echo no user namespaces >&2; exit 1"
    slow.write_text(f"#!/bin/sh\nflock -s {gate} true\n{then}\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with gate.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with serving(folder, "--allow-scripts") as wire:
            wire.open()
            assert "skills_run_script" in [each["name"] for each in wire.request("tools/list")["tools"]]
            asked = wire.start("tools/call", call(load(wire), "scripts/hello.py", args=["you"]))
            wire.request("ping")
            held.close()
            result = wire.finish(asked)
            text = result["content"][0]["text"]
            if works:
                assert "hello you" in text
            else:
                assert result["isError"] and "scripts need a sandbox" in text and "no user namespaces" in text
                wire.logs(b"no script will run: scripts need a sandbox")
