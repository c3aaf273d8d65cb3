"""Scripts of skills over stdio and HTTP: results, progress, cancellation, and shutdown."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands.calls import run_process
from dispatching import local_serving
from programs import WITH_NETWORK, needs_script_network
from server.test_tools import error_text
from web.http_wire import client, http_serving
from wire import DEADLINE, Era, serving, write_skill

HELLO = "import sys, os\nprint('hello', *sys.argv[1:], os.environ.get('TONE', ''))\nsys.exit(3)\n"
BLOCK = """\
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.sendall(b"running")
connection.recv(1)  # never returns
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    skills = tmp_path_factory.mktemp("skills")
    scripts = {"scripts__hello_py": HELLO, "scripts__block_py": BLOCK}
    write_skill(skills / "alpha", description="Greets.\nmetadata:\n  env: TONE", **scripts)
    write_skill(skills / "beta")
    return skills


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        opened.settimeout(DEADLINE)
        yield opened


def accept_script(listener: socket.socket) -> socket.socket:
    """Return the connection of the blocking script, which closes when the script ends."""
    connection, _ = listener.accept()
    connection.settimeout(DEADLINE)
    assert connection.recv(7) == b"running"
    return connection


def wait_for_end(connection: socket.socket) -> None:
    with connection:
        assert connection.recv(1) == b""


def load(wire: Any) -> str:
    loaded = wire.call("skills_load", names=["alpha"])
    return loaded["structuredContent"]["session"]


def script_call(handle: str, path: str, **arguments: Any) -> dict[str, Any]:
    return {"name": "skills_run_script", "arguments": {"path": path, "session": handle, **arguments}}


def blocking_call(handle: str, listener: socket.socket) -> dict[str, Any]:
    return script_call(handle, "scripts/block.py", args=[str(listener.getsockname()[1])])


@pytest.mark.requirement("RT-18", "RT-19")
def test_result_has_the_outcome_of_the_script(folder: Path, era: Era, sandbox_mode: str) -> None:
    with local_serving(folder, "--allow-scripts", "--sandbox", sandbox_mode, era=era) as wire:
        assert "skills_run_script" in [tool["name"] for tool in wire.request("tools/list")["tools"]]
        arguments = {"args": ["a b", "$HOME"], "env": {"TONE": "warm"}}
        result = wire.request("tools/call", script_call(load(wire), "scripts/hello.py", **arguments))
        outcome = result["structuredContent"]
        assert outcome.pop("duration_ms") >= 0
        assert outcome == {
            "user": os.geteuid() or 65534, "sandbox": {"off": "none", "required": "bubblewrap"}[sandbox_mode],
            "path": "scripts/hello.py", "exit_code": 3, "stdout": "hello a b $HOME warm\n", "stderr": "",
            "timed_out": False, "stdout_truncated": False, "stderr_truncated": False, "sandbox_gaps": [],
            "files": [], "files_not_shown": 0,
        }  # fmt: skip
        assert result["isError"] is True  # the exit code is not 0
        text = result["content"][0]["text"]
        assert "exit code 3" in text
        assert "hello a b" in text


WRITE_FILES = """\
import os, pathlib
pathlib.Path("out").mkdir(exist_ok=True)
pathlib.Path("out/report.txt").write_text("line one\\nline two\\n")
pathlib.Path("sheet.xlsx").write_bytes(b"PK\\x03\\x04\\x00" * 9)
pathlib.Path("plot.png").write_bytes(bytes.fromhex("89504e470d0a1a0a") + bytes(40))
os.symlink("/etc/passwd", "passwd")
"""


def test_output_files_are_readable_only_in_the_session_of_the_script(
    tmp_path: Path, era: Era, sandbox_mode: str
) -> None:
    write_skill(tmp_path / "alpha", scripts__write_py=WRITE_FILES)
    with local_serving(tmp_path, "--allow-scripts", "--sandbox", sandbox_mode, era=era) as wire:
        handle = load(wire)

        def read(path: str) -> dict[str, Any]:
            return wire.call("skills_read", path=f"/workspace/{path}", session=handle)

        early = read("out/report.txt")
        assert "no script of this session has run" in error_text(early)
        result = wire.request("tools/call", script_call(handle, "scripts/write.py"))
        files = result["structuredContent"]["files"]
        names = ["out/report.txt", "plot.png", "sheet.xlsx"]
        assert [each["path"] for each in files] == [f"/workspace/{name}" for name in names]
        assert files[0] == {"path": "/workspace/out/report.txt", "size": 18}
        assert "/workspace/out/report.txt" in result["content"][0]["text"]
        assert read("out/report.txt")["content"][0]["text"] == "line one\nline two\n"
        sheet = read("sheet.xlsx")["content"][1]["resource"]
        assert b64decode(sheet["blob"]) == b"PK\x03\x04\x00" * 9
        assert sheet["uri"] == "workspace:///sheet.xlsx"
        assert read("plot.png")["content"][1]["type"] == "image"
        refused = read("passwd")
        assert "only plain files" in error_text(refused)
        handle = load(wire)
        if era == "modern":  # in the legacy era the connection keeps its session
            assert "no script of this session has run" in read("out/report.txt")["content"][0]["text"]


@needs_script_network
def test_script_of_an_excluded_source_is_refused(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f"[[source]]\nfrom = '{folder}'\nscripts = false\n")
    with local_serving("--config", file, "--allow-scripts", *WITH_NETWORK) as wire:
        refused = wire.request("tools/call", script_call(load(wire), "scripts/hello.py"))
        assert "excluded the scripts of its source" in error_text(refused)


@needs_script_network
@pytest.mark.requirement("X-29")
def test_script_reports_progress_and_is_killed_when_cancelled(folder: Path, listener: socket.socket, era: Era) -> None:
    with local_serving(folder, "--allow-scripts", *WITH_NETWORK, era=era) as wire:
        handle = load(wire)
        params = {**blocking_call(handle, listener), "_meta": {"progressToken": "p"}}
        identifier = wire.start("tools/call", params)
        connection = accept_script(listener)
        notification = wire.notification()
        assert notification["method"] == "notifications/progress"
        assert notification["params"]["progressToken"] == "p"
        assert notification["params"]["progress"] > 0
        assert len(wire.every_skill()) == 2
        wire.notify("notifications/cancelled", {"requestId": identifier})
        wait_for_end(connection)
        result = wire.request("tools/call", script_call(handle, "scripts/hello.py"))
        assert result["structuredContent"]["exit_code"] == 3


@needs_script_network
@pytest.mark.parametrize("end", ["stdin", "SIGTERM"])
def test_script_ends_with_the_server(folder: Path, listener: socket.socket, end: str) -> None:
    with serving(folder, "--allow-scripts", *WITH_NETWORK) as wire:
        wire.start("tools/call", blocking_call(load(wire), listener))
        connection = accept_script(listener)
        if end == "stdin":
            assert wire.close() == 0
        else:
            assert wire.signal(signal.SIGTERM) == 0
        wait_for_end(connection)


@needs_script_network
def test_script_ends_when_its_http_client_disconnects(folder: Path, listener: socket.socket) -> None:
    with http_serving(folder, "--allow-scripts", *WITH_NETWORK) as server, client(server, "modern") as one:
        params = {**blocking_call(load(one), listener), "_meta": {"progressToken": "p"}}
        message = one.message("tools/call", params)
        stream = server.open("POST", json.dumps(message).encode(), one.headers(message))
        connection = accept_script(listener)
        stream.close()
        wait_for_end(connection)


def start_error(*arguments: str) -> str:
    done = run_process(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.requirement("SP-30")
@pytest.mark.parametrize("command", ["serve", "rpc"])
def test_start_without_a_sandbox_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("PATH", str(folder))  # without bwrap
    line = start_error(command, str(folder), "--allow-scripts")
    assert "need a sandbox" in line
    assert "install a working bubblewrap" in line
    assert "or " in line
    if os.geteuid() == 0:
        line = start_error(command, str(folder), "--allow-scripts", "--sandbox", "off")
        assert "as root without a sandbox" in line
        assert "run the server as another user" in line


@pytest.mark.needs_program("flock")
def test_stdio_start_does_not_wait_for_the_sandbox(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some hosts wait half a second for tools. Here bubblewrap waits for a lock."""
    lock, bwrap = tmp_path / "lock", tmp_path / "bwrap"
    bwrap.write_text(f"#!/bin/sh\nflock -s {lock} true\necho no user namespaces >&2; exit 1\n")
    bwrap.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with lock.open("w") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        with serving(folder, "--allow-scripts") as wire:
            wire.open()
            assert "skills_run_script" in [each["name"] for each in wire.request("tools/list")["tools"]]
            identifier = wire.start("tools/call", script_call(load(wire), "scripts/hello.py"))
            wire.request("ping")
            locked.close()
            text = error_text(wire.finish(identifier))
            assert "scripts need a sandbox" in text
            assert "no user namespaces" in text
            wire.wait_for_log(b"no script will run: scripts need a sandbox")
