"""The Skills Protocol over HTTP at `/rpc`."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rpc.build import ACTIONS, toml, write
from web.http_wire import JSON, Reply, Target, client, http_serving, token_file, wait_until
from web.in_process import app_serving
from wire import ROOT, write_skill

GOLDEN = ROOT / "tests" / "golden"
SHELL = 'entrypoint = "code/main.sh"'


def post(server: Target, message: Any, headers: dict[str, str | None] | None = None) -> Reply:
    body = message
    if not isinstance(message, bytes):
        body = json.dumps(message).encode()
    return server.send(path="/rpc", body=body, headers={**JSON, **(headers or {})})


@pytest.fixture(scope="module")
def server() -> Iterator[Target]:
    """A server of skills with actions, for tests that change nothing."""
    with app_serving(ACTIONS) as started:
        yield started


def test_responses_equal_those_over_stdio(server: Target) -> None:
    text = (GOLDEN / "skills_protocol.session.jsonl").read_text(encoding="utf-8").splitlines()
    for request, expected in zip(text[::2], text[1::2], strict=True):
        reply = post(server, request.encode())
        assert (reply.status, reply.body.decode()) == (200, expected)


def test_notifications_get_204_without_body(server: Target) -> None:
    notification = {"jsonrpc": "2.0", "method": "list_skills"}
    for message in (notification, [notification, notification]):
        reply = post(server, message)
        assert (reply.status, reply.body) == (204, b"")


@pytest.mark.requirement("SP-16")
def test_only_post_of_json_is_accepted(server: Target) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "list_skills"}
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", None):
        assert post(server, message, {"Content-Type": kind}).status == 415
    assert post(server, message, {"Content-Type": "Application/JSON; charset=utf-8"}).status == 200
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        assert server.send(method, "/rpc").status == 405
    assert server.send("POST", "/rpc/more", body=b"{}", headers=JSON).status == 404


@pytest.mark.requirement("X-24")
def test_rpc_and_mcp_do_not_share_methods(server: Target) -> None:
    assert server.rpc("skills/list")["error"]["code"] == -32601
    with client(server, "legacy") as mcp:
        reply = mcp.post(mcp.message("list_skills"))
        assert reply.messages[0]["error"]["code"] == -32601
        tools = {each["name"] for each in mcp.request("tools/list")["tools"]}
    assert not {"list_skills", "describe_skill", "salesforce.leads.sync"} & tools


def test_body_over_limit_is_too_large(tmp_path: Path) -> None:
    write_skill(tmp_path / "thing")
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "list_skills"}).encode()
    with http_serving(tmp_path, "--max-body", "100") as started:
        assert post(started, message.ljust(100)).status == 200
        reply = post(started, message.ljust(101))
        assert reply.status == 413 and json.loads(reply.body)["error"]["code"] == -32600
        with started.connect() as connection:
            connection.sendall(
                b"POST /rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n" + b"100\r\n" + b" " * 256 + b"\r\n"
            )
            assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_disconnect_ends_run_and_leaves_no_files(tmp_path: Path, sandbox_mode: str) -> None:
    folder, temporary = tmp_path / "shared", tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o777)  # scripts of a root server run as user nobody
    temporary.mkdir()
    write(tmp_path / "root" / "thing", toml("thing", runtime=SHELL), code__main_sh=f"touch {folder}/begun; sleep 600")
    params = {"name": "thing"}
    message = {"jsonrpc": "2.0", "id": 1, "method": "execute_skill", "params": params}
    body = json.dumps(message).encode()
    head = "POST /rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    options = ("--allow-scripts", "--sandbox", sandbox_mode, "--script-folder", folder)
    options += ("--script-concurrency", "1")
    environment = {"TMPDIR": str(temporary)}
    with http_serving(tmp_path / "root", *options, environment=environment) as started:
        with started.connect() as connection:
            connection.sendall(head.encode() + body)
            wait_until((folder / "begun").exists)
            assert [*temporary.glob("*/session-*")]
        wait_until(lambda: not [*temporary.glob("*/session-*")])
        assert started.signal(signal.SIGTERM) == 0
    assert not [*temporary.iterdir()]


def test_files_mounted_for_inline_code_are_audited(tmp_path: Path, sandbox_mode: str) -> None:
    write_skill(tmp_path / "skills" / "tax", rates_md="19 percent\n")
    audit, token = tmp_path / "audit", "anns-made-up-token-0123456789"
    options = ("--rpc", "--allow-scripts", "--allow-code", "--sandbox", sandbox_mode, "--audit-log", audit)
    with app_serving(tmp_path / "skills", "--token-file", token_file(tmp_path, f"ann={token}"), *options) as server:
        listed = server.rpc("list_skills", token=token)["result"]["skills"]
        code = "import os, pathlib\nfor f in pathlib.Path(os.environ['SKILL_DIR']).rglob('*.md'): print(f.read_text())"
        arguments = {
            "language": "python",
            "code": code,
            "mount_skills": [each["name"] for each in listed if "tax" in each["name"]],
        }
        done = server.rpc("run_code", token=token, **arguments)
    assert "19 percent" in json.dumps(done), done
    events = [json.loads(line) for line in audit.read_text().splitlines()]
    assert {"tax"} <= {each.get("skill") for each in events}, events
