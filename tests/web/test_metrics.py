"""Prometheus metrics over HTTP, and log lines of requests."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import urllib.request
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from ports import free_port
from web.http_wire import (
    JSON,
    HttpClient,
    bearer_header,
    client,
    http_serving,
    patched,
    startup_error,
    token_file,
    wait_until,
)
from web.in_process import app_serving
from wire import DEADLINE, write_skill

SECRET = "0123456789abcdef-secret"


@pytest.fixture
def text(tmp_path: Path) -> str:
    write_skill(tmp_path / "a", notes_md="other")
    write_skill(tmp_path / "b", name="torn", description='"')
    tokens = {"MCP_SKILLS_TOKENS": f"ops={SECRET}"}
    with (
        app_serving(tmp_path, "--metrics", environment=tokens) as server,
        client(server, "modern", token=SECRET) as reader,
    ):
        reader.request("skills/list")
        reader.read("skill://a/SKILL.md")
        reader.read("skill://a/notes.md")
        reader.call("skills_list", limit=1)
        reader.post(reader.message("no/such/method"))
        assert server.send("GET", "/metrics").status == 401
        reply = server.send("GET", "/metrics", headers=bearer_header(SECRET))
    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith("text/plain")
    return reply.body.decode()


def test_operations_and_uses_are_counted(text: str) -> None:
    def value(line: str) -> float:
        found = re.search(rf"^{re.escape(line)} (\S+)$", text, re.MULTILINE)
        assert found, (line, text)
        return float(found[1])

    count = "mcp_server_operation_duration_seconds_count"
    assert value(f'{count}{{error_type="",mcp_method_name="resources/read"}}') == 2
    assert value(f'{count}{{error_type="",mcp_method_name="tools/call"}}') == 1
    assert value(f'{count}{{error_type="refused",mcp_method_name="_OTHER"}}') == 1
    assert 'mcp_method_name="tools/list"' not in text, "only requests of clients count"
    assert value('skills_uses_total{action="load",skill="a"}') == 1
    assert value('skills_uses_total{action="read",skill="a"}') == 1
    assert value("skills_served") + value("skills_left_out") == 2
    assert value("skills_problems") >= 1
    assert "no/such/method" not in text


@pytest.mark.needs_program("promtool")
def test_promtool_accepts_metrics(text: str) -> None:
    lines = text.splitlines(keepends=True)
    ours = "".join(line for line in lines if re.match(r"(# (HELP|TYPE) )?(mcp_|skills_)", line))
    done = subprocess.run(["promtool", "check", "metrics"], input=ours, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_metrics_have_own_address_and_host_check(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    port = free_port()
    options = ("--metrics", "--probe-address", f"127.0.0.1:{port}", "--allowed-host", "metrics.example")
    with http_serving(tmp_path, *options) as server:
        assert server.send("GET", "/metrics").status == 404
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE) as answer:
            assert b"skills_served" in answer.read()
        for host, status in (("evil.example", 403), (f"localhost:{port}", 200), ("metrics.example:80", 200)):
            with closing(HTTPConnection("127.0.0.1", port, timeout=DEADLINE)) as connection:
                connection.request("GET", "/metrics", headers={"Host": host})
                response = connection.getresponse()
                assert response.status == status
                assert (b"skills_served" in response.read()) == (status == 200)
    for malformed in ("9464", "127.0.0.1:99999", "127.0.0.1:\u00b2"):
        assert "write HOST:PORT" in startup_error(tmp_path, "--probe-address", malformed)
    assert "cannot" in startup_error(tmp_path, "--probe-address", "192.0.2.1:1")


def at(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, bytes]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=DEADLINE)) as connection:
        connection.request("GET", path, headers={"Host": host})
        response = connection.getresponse()
        return response.status, response.read()


STUCK = """
import signal, time
from mcp_skills_server.web import probes
probes._STUCK_S = 0.2
signal.signal(signal.SIGUSR1, lambda *_: time.sleep(30))
"""


def test_probes_at_own_address_do_not_wait_behind_requests(tmp_path: Path) -> None:
    """They tell a server that is busy from one whose event loop hangs."""
    (tmp_path / "skills").mkdir()
    port = free_port()
    with http_serving(tmp_path / "skills", "--probe-address", f"127.0.0.1:{port}", command=patched(STUCK)) as server:
        server.wait_for_log("serving")
        wait_until(lambda: b"first scan" not in at(port, "/readyz")[1])
        assert at(port, "/readyz")[0] == 503
        write_skill(tmp_path / "skills" / "a")
        wait_until(lambda: at(port, "/readyz") == (200, b"ready\n"))
        assert at(port, "/readyz", "evil.example") == (200, b"ready\n")
        assert at(port, "/readyz?verbose", "evil.example")[0] == 403
        assert at(port, "/readyz?verbose")[1].decode() == f"ready\n{tmp_path}/skills: read\n"
        assert (at(port, "/metrics")[0], at(port, "/mcp")[0]) == (404, 404)
        wait_until(lambda: at(port, "/healthz") == (200, b"alive\n"))
        server.process.send_signal(signal.SIGUSR1)  # the event loop hangs
        wait_until(lambda: at(port, "/healthz")[0] == 503)
        assert b"the event loop has not run for" in at(port, "/healthz")[1]
        assert at(port, "/readyz") == (200, b"ready\n")


def test_use_of_limited_resources_is_shown(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    with (
        http_serving(tmp_path, "--metrics", "--max-sessions", "1", "--max-connections", "16") as server,
        client(server, "modern") as modern,
    ):
        modern.listen(skillsListChanged=True)
        modern.call("skills_load", names=["a"])
        for _ in range(3):
            HttpClient(server, "legacy").open()
        lines = server.send("GET", "/metrics").body.decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if line.startswith(("skills_resource", "skills_event")))
    assert float(values.pop("skills_event_loop_lag_seconds")) < DEADLINE
    used, limit, evicted = (f"skills_resource_{each}{{resource=" for each in ("used", "limit", "evicted"))
    wanted = {
        "sessions": (1, 1, 2), "streams": (1, 14, 0), "tool_sessions": (1, 4096, 0), "cache_bytes": (0, 16 << 20, 0),
    }  # fmt: skip
    for name, numbers in wanted.items():
        found = tuple(float(values[f'{prefix}"{name}"}}']) for prefix in (used, limit, evicted))
        assert found == numbers, name
    assert 2 <= float(values[used + '"connections"}']) <= 16


def test_idle_connections_at_probe_address_are_closed(tmp_path: Path) -> None:
    port = free_port()
    impatient = patched("from mcp_skills_server.web import serving\nserving._PROBE_TIMEOUT_S /= 20")
    options = ("--metrics", "--probe-address", f"127.0.0.1:{port}", "--allow-empty")
    with http_serving(tmp_path, *options, command=impatient) as server, ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", port), DEADLINE)) for _ in range(20)]
        idle[-1].sendall(b"GET /metrics HTTP/1.0")
        idle[-2].sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n")
        assert [each.recv(1) for each in idle] == [b""] * 20
        slow = stack.enter_context(socket.create_connection(("127.0.0.1", port), DEADLINE))

        def is_closed_after_another_byte() -> bool:
            with suppress(ConnectionError):
                slow.send(b"x")
                return False
            return True

        wait_until(is_closed_after_another_byte)  # a byte now and then does not keep it open
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE) as reply:
            assert b"skills_served" in reply.read()
        server.signal(signal.SIGTERM)
        assert "WARNING: all 16 connections are in use (--probe-address)" in server.stderr
        assert "ERROR" not in server.stderr


def test_request_is_one_log_line_with_id_of_response(tmp_path: Path) -> None:
    content = "Only a client of this skill reads this."
    write_skill(tmp_path / "skills" / "a", body=content)
    options = ("--token-file", token_file(tmp_path, f"ops={SECRET}"), "--log-format", "json", "--log-level", "info")
    with http_serving(tmp_path / "skills", *options) as server:
        params = {"name": "a", "path": "SKILL.md"}
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "read_skill_file", "params": params}
        answered = server.send("POST", "/rpc", json.dumps(rpc).encode(), JSON | bearer_header(SECRET))
        rejected = server.send("POST", "/rpc", b"{}", bearer_header("wrong") | {"X-Request-Id": "mine"})
        with client(server, "modern", token=SECRET) as reader:
            reader.request("skills/list")
            server.wait_for_log('"method": "skills/list"')
    lines: list[dict[str, Any]] = [json.loads(line) for line in server.stderr.splitlines()]
    (line,) = [each for each in lines if each.get("method") == "read_skill_file"]
    assert line["request"] == answered.headers["X-Request-Id"]
    assert re.fullmatch("[0-9a-f]{16}", line["request"])
    assert (line["level"], line["principal"]) == ("info", "token:ops")
    assert (line["address"], line["outcome"]) == ("127.0.0.1", "ok")
    assert line["skills"] == ["a"]
    assert line["milliseconds"] > 0 and line["time"].endswith("Z")
    assert rejected.status == 401
    assert re.fullmatch("[0-9a-f]{16}", rejected.headers["X-Request-Id"] or "")
    assert [each["method"] for each in lines if each.get("protocol") == "mcp"][-1] == "skills/list"
    for secret in (SECRET, content, "mine", "Bearer wrong"):
        assert secret not in server.stderr


def test_page_view_is_log_line_with_skill_but_without_query(tmp_path: Path) -> None:
    write_skill(tmp_path / "acme" / "refunds", notes_md="Notes.\n")
    write_skill(tmp_path / "acme" / "large", big_txt="x" * ((1 << 20) + 1))
    (tmp_path / "acme" / "broken" / "SKILL.md").mkdir(parents=True)
    views = [
        ("skills/acme/refunds?token=secret", "GET /ui/skills of acme/refunds: ok in "),
        ("skills/acme/refunds?there=secret", "GET /ui/skills of acme/refunds: ok in "),
        ("skills/acme/broken", "GET /ui/skills of acme/broken: ok in "),
        ("skills/acme/secret", "GET /ui/skills: refused in "),
        ("files/acme/refunds?file=notes.md", "GET /ui/files of acme/refunds: ok in "),
        ("files/acme/large?file=big.txt", "GET /ui/files of acme/large: ok in "),
        ("raw/acme/refunds?file=notes.md", "GET /ui/raw of acme/refunds: ok in "),
        ("history/acme/refunds?secret", "GET /ui/history of acme/refunds: ok in "),
        ("sources?secret", "GET /ui/sources: ok in "),
    ]
    with app_serving(tmp_path, "--ui") as server:
        for path, _ in views:
            server.send("GET", f"/ui/{path}")
        server.wait_for_log("GET /ui/sources")
    logged: list[str] = []
    for line in server.stderr.splitlines():
        if "GET /ui/" in line and "/ui/problems" not in line:
            logged.append(line.partition("INFO: ")[2])
    for line, (_, expected) in zip(logged, views, strict=True):
        assert line.startswith(expected)
    assert "secret" not in server.stderr
