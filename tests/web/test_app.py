"""The MCP endpoint over HTTP: both eras, notifications, probes, startup, and shutdown."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from subprocess import run
from time import monotonic

import pytest

from mcp_skills_server.web import mcp
from tables import each_row
from web.http_wire import HELLO, Target, client, exchange, http_serving, patched, startup_error
from web.in_process import app_serving
from wire import DEADLINE, FIXTURES, META, SLOW_LOAD, Era, write_skill

SKILLS, RESOURCES, TOOLS, PROMPTS = (
    (f"notifications/{each}/list_changed", None) for each in ("skills", "resources", "tools", "prompts")
)
UPDATED = "notifications/resources/updated"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        write_skill(tmp_path / name, references__guide_md="guide", zz_md="last")
    return tmp_path


def test_legacy_client_reopens_its_stream(folder: Path) -> None:
    with app_serving(folder) as server, client(server, "legacy") as follower:
        follower.every_skill()
        stream = follower.follow()
        assert server.send("GET", headers=follower.headers()).status == 409  # one at a time
        stream.close()
        # The server notices the close after a moment. It stores no events to replay.
        headers = {**follower.headers(), "Last-Event-ID": "7"}
        end = monotonic() + DEADLINE
        while (again := server.open("GET", None, headers)).status == 409:
            again.close()
            assert monotonic() < end
        assert again.status == 200
        write_skill(folder / "c")
        assert again.until(*RESOURCES) == [SKILLS, RESOURCES]
        again.close()


@pytest.mark.requirement("MCP-48")
def test_streams_are_kept_alive_and_not_buffered(era: Era, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "_PING_S", 0.05)
    with app_serving(FIXTURES) as server, client(server, era) as listener:
        stream = listener.hear()
        assert stream.headers["X-Accel-Buffering"] == "no"
        assert "no-cache" in stream.headers["Cache-Control"]
        assert stream.headers.get_content_type() == "text/event-stream"
        for _ in range(3):
            assert stream.comments.get(timeout=DEADLINE).startswith(":")


def test_probes_answer_any_host_and_origin(server: Target) -> None:
    server.wait_for_log("serving 17 skills")
    for path, body in (("/healthz", b"alive\n"), ("/readyz", b"ready\n")):
        for headers in ({}, {"Host": "10.1.2.3:8000"}, {"Origin": "https://evil.example"}):
            reply = server.send("GET", path, headers=headers)
            assert (reply.status, reply.body, reply.headers["Server"]) == (200, body, None)
        reply = server.send("HEAD", path)
        assert (reply.status, reply.body) == (200, b"")
        for method in ("POST", "PUT", "DELETE"):
            reply = server.send(method, path, body=b"x")
            assert reply.status == 405 and "GET" in reply.headers["Allow"]


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A FIFO: with `SLOW_LOAD` the first scan waits until it is written to."""
    os.mkfifo(tmp_path / "gate")
    return tmp_path / "gate"


def test_server_is_not_ready_before_first_scan(era: Era) -> None:
    gate = threading.Event()
    with (
        app_serving(FIXTURES, "--ui", gate=gate) as server,
        client(server, era, opened=False) as reader,
        ThreadPoolExecutor(1) as pool,
    ):
        assert server.send("GET", "/healthz").status == 200
        assert reader.open()["capabilities"]  # the handshake does not wait for the scan
        result = pool.submit(reader.request, "skills/list")
        assert server.send("GET", "/readyz").status == 503
        page = server.send("GET", "/ui/")
        assert (page.status, page.headers["Refresh"]) == (503, "1")
        events = server.send("GET", "/ui/live/events")  # after a 503 a browser would not ask again
        assert (events.status, events.body) == (200, b"retry: 3000\n\n")
        assert not result.done()
        gate.set()
        assert result.result(DEADLINE)["skills"]
        assert server.send("GET", "/readyz").status == 200


def test_request_that_the_end_cuts_off_gets_503_and_no_error_is_logged(gate: Path) -> None:
    command = [sys.executable, "-c", SLOW_LOAD, str(gate)]
    with (
        http_serving(FIXTURES, command=command) as server,
        client(server, "modern") as reader,
        client(server, "legacy") as legacy,
        ExitStack() as stack,
    ):
        index = b"GET /.well-known/agent-skills/index.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        requests = [reader.raw(reader.message("skills/list")), legacy.raw(legacy.message("resources/list")), index]
        waiting = [stack.enter_context(server.connect()) for _ in requests]
        for connection, request in zip(waiting, requests, strict=True):
            connection.sendall(request)
        assert server.send("GET", "/healthz").status == 200  # what was sent before has arrived
        assert server.signal(signal.SIGTERM) == 0
        for connection in waiting:
            reply = b"".join(iter(lambda connection=connection: connection.recv(4096), b""))
            assert reply.startswith(b"HTTP/1.1 503 ") and b"\r\nretry-after: 1\r\n" in reply, reply
        assert "ERROR" not in server.stderr and "WARNING" not in server.stderr, server.stderr


@pytest.mark.requirement("MCP-45")
def test_allowed_host_and_origin_are_served_with_cors_headers() -> None:
    app, foreign = "https://app.example", {"Origin": "https://evil.example"}
    allowed = {"Host": "mcp.example.com", "Origin": app}
    preflight = {"Access-Control-Request-Method": "HEAD", "Access-Control-Request-Headers": "mcp-method"}
    options = ["--allowed-host", "mcp.example.com", "--allowed-origin", app]
    with app_serving(FIXTURES, *options) as server, client(server, "legacy", opened=False) as page:
        reply = page.post(page.message("initialize", HELLO), allowed)
        assert reply.headers["Access-Control-Allow-Origin"] == app
        assert {"Mcp-Session-Id", "ETag"} <= {*reply.headers["Access-Control-Expose-Headers"].split(", ")}
        assert reply.headers["Vary"] == "Origin"
        reply = server.send("OPTIONS", headers=allowed | preflight)
        assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (200, app)
        assert reply.headers["X-Request-Id"]
        reply = server.send("OPTIONS", headers=allowed | preflight | foreign)
        assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (400, None)
        for wrong in (foreign, {"Host": "other.example.com"}):
            assert page.post(page.message("ping"), allowed | wrong).error == (403, -32600, None)
            assert server.send("GET", headers=allowed | wrong).error == (403, -32600, None)


@pytest.mark.requirement("MCP-46")
def test_unusable_address_is_refused_with_one_line() -> None:
    assert "--allowed-host" in startup_error(FIXTURES, "--host", "0.0.0.0")
    for host in ("no-such-host.invalid", "a..b", "x" * 70 + ".example", "192.0.2.1"):
        message = startup_error(FIXTURES, "--host", host, "--allowed-host", "x", "--port", "0")
        assert f"cannot listen on {host}" in message and "--host" in message
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = startup_error(FIXTURES, "--port", str(port))
    assert f"cannot listen on 127.0.0.1 port {port}" in message
    assert "in use" in message and "--port" in message


NAME_THREADS = """
import atexit, threading
from mcp_skills_server.sources import mirrors
mirrors._STOP_S = 60.0
atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))
"""


@each_row("command", ["serve --transport http", "ui --no-open"])
def test_command_that_cannot_listen_stops_its_sources_before_python_ends(command: str, tmp_path: Path) -> None:
    # Their thread starts others, and one that is started while Python ends crashed 3.11.2.
    write_skill(tmp_path / "skills" / "a")
    archive = shutil.make_archive(str(tmp_path / "skills"), "zip", tmp_path / "skills")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = [*command.split(), "--port", str(taken.getsockname()[1]), archive]
        done = run([*patched(NAME_THREADS), *words], check=False, capture_output=True, timeout=DEADLINE, text=True)
    assert done.returncode == 2 and "cannot listen" in done.stderr, done
    assert "MainThread" in done.stdout and "skills-sources" not in done.stdout


@pytest.mark.parametrize("name", ["localhost", "::1"])
def test_server_listens_on_loopback_names(name: str) -> None:
    with http_serving(FIXTURES, "--host", name) as server:
        shown = server.wait_for_log(r"listening on http://(\S+):\d+/mcp")[1]
        assert shown in {"127.0.0.1", "[::1]"}
        address = (shown.strip("[]"), server.port)
        with socket.create_connection(address, DEADLINE) as connection:
            assert exchange(connection) == b"alive\n"


@pytest.mark.requirement("MCP-37", "MCP-38")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_open_streams_without_delay(number: signal.Signals) -> None:
    with http_serving(FIXTURES) as server, ExitStack() as stack:
        modern = stack.enter_context(client(server, "modern"))
        listens = {name: modern.listen(name, skillsListChanged=True) for name in ("one", 2, "three")}
        follows = [stack.enter_context(client(server, "legacy")).follow() for _ in range(3)]
        assert server.signal(number) == 0
        for name, stream in listens.items():
            (last,) = stream.rest()
            assert stream.whole
            assert (last["id"], last["result"]["resultType"]) == (name, "complete")
            assert last["result"]["_meta"][META + "subscriptionId"] == name
        for stream in follows:
            assert stream.rest() == [] and stream.whole
        assert "ERROR" not in server.stderr
