"""Overload: more connections or sessions than the server has slots or file descriptors for."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.web import mcp, serving
from mcp_skills_server.web.serving import divide_descriptors
from tables import each_row
from web.http_wire import PROBE, HttpClient, Server, bearer_header, client, exchange, http_serving, patched, wait_until
from web.in_process import app_serving
from wire import DEADLINE, FIXTURES, write_skill

TOKEN = "made-up-token-of-alpha-000001"
TOKENS = {"MCP_SKILLS_TOKENS": f"alpha={TOKEN}"}

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and all of 127.0.0.0/8")


def with_open_files(limit: int) -> list[str]:
    return patched(f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))")


def with_stream_quota(folder: Path, count: int) -> tuple[str, Path]:
    file = folder / "config.toml"
    file.write_text(f"[quota]\nstreams = {count}\n")
    return "--config", file


def open_files(server: Server) -> set[int]:
    return {int(name) for name in os.listdir(f"/proc/{server.process.pid}/fd")}


@contextmanager
def crowd(server: Server, count: int, address: str = "127.0.0.1", data: bytes = b"") -> Iterator[list[socket.socket]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 200:
        if hard < count + 200:
            pytest.skip(f"needs {count + 200} open files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count + 200, hard))
    with ExitStack() as stack:
        out: list[socket.socket] = []
        for _ in range(count):
            opened = socket.create_connection(("127.0.0.1", server.port), DEADLINE, (address, 0))
            out.append(stack.enter_context(opened))
            opened.sendall(data)
        yield out


def test_descriptors_are_divided_into_connections_and_files() -> None:
    def divided(limit: int, used: int) -> tuple[int, int]:
        slots = divide_descriptors(1000, limit, used)
        return slots.limit, slots.most_spare

    assert [divided(20_000, 10), divided(160, 0), divided(191, 0)] == [(1000, 8), (75, 5), (91, 5)]
    for limit in range(16, 4000):
        regular, spare = divided(limit, 7)
        assert min(regular, spare) >= 1
        files = limit - 7 - regular - spare
        assert files >= 7
        assert files >= 136 or regular <= limit // 2
    with pytest.raises(UsageError, match="at least 16 "):
        divide_descriptors(1000, 10, 7)


NEEDED = 1000 + 8 + 136
"""Descriptors for 1,000 connections, beside those that are open already."""


# The soft and the hard limit, the limits that are set, and the resulting connections.
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
@each_row(
    ("limits", "raised", "slots"),
    [((NEEDED + 1, NEEDED + 2), [], 1000), ((300, NEEDED), [NEEDED], 1000), ((300, NEEDED - 1), [NEEDED - 1], 999)],
)
def test_limit_of_open_files_is_raised_up_to_hard_limit(
    limits: tuple[int, int],
    raised: list[int],
    slots: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(serving, "_open_files", lambda: 7)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limits[0] + 7, limits[1] + 7))
    monkeypatch.setattr(resource, "setrlimit", lambda _, given: calls.append(given[0] - 7))
    made = serving.connection_slots(1000)
    assert (made.limit, made.most_spare) == (slots, 8)
    assert calls == raised
    warning = "999 connections at once, not 1000 (--max-connections): this process may open 1150 files (ulimit -n)"
    assert caplog.messages == [warning] * (1000 - slots)


@linux
@each_row(("limit", "count", "options"), [(1024, 1100, ()), (1024, 1100, ("--max-connections", "50")), (20, 200, ())])
def test_silent_connections_beyond_all_limits_block_no_client(limit: int, count: int, options: tuple[str, ...]) -> None:
    with http_serving(FIXTURES, *options, command=with_open_files(limit)) as server:
        server.until_ready()
        with crowd(server, count):
            assert server.send("GET", "/healthz").status == 200
            assert server.send("GET", "/readyz").body == b"ready\n"
            with client(server, "modern") as modern, client(server, "legacy") as legacy:
                assert len(modern.every_skill()) == len(legacy.every_skill()) == 17
            most_open = limit
            if options:
                most_open = 100
            assert len(open_files(server)) <= most_open
            assert server.signal(signal.SIGTERM) == 0
        lines = [line for line in server.stderr.splitlines() if " ms (" not in line]  # no request logs
        # Each message once; a poll of the root meanwhile may log that it lacks descriptors.
        assert len(set(lines)) == len(lines) <= 6, server.stderr
        assert len("".join(lines)) < 1000, server.stderr


@linux
def test_exhausted_descriptors_fail_only_the_requests_that_need_one(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", body="# A\n")
    uri = "skill://a/SKILL.md"
    command = with_open_files(200)
    with http_serving(tmp_path, "--metrics", command=command) as server, client(server, "modern") as reader:
        reader.every_skill()
        raw = reader.read(uri)
        gauges = server.send("GET", "/metrics").body.decode()
        [connections] = re.findall(r'skills_resource_limit{resource="connections"} (\d+)', gauges)
        assert f'skills_resource_limit{{resource="streams"}} {int(connections) - int(connections) // 8}.0\n' in gauges
        request = reader.raw(reader.message("resources/read", {"uri": uri}))
        limits = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        with server.connect() as connection:
            for _ in range(3):
                exchange(connection)  # until the earlier connections are closed
            exhausted = min({*range(200)} - open_files(server))
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (exhausted, limits[1]))
            for _ in range(20):
                assert b'"error"' in exchange(connection, request)
            with server.connect() as late:
                late.sendall(PROBE)
                server.wait_for_log("a connection waits to be accepted")
                assert exchange(connection) == b"alive\n"
                resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, limits)
                assert late.recv(1000).startswith(b"HTTP/1.1 200")
        assert reader.read(uri) == raw
        assert server.stderr.count("waits to be accepted") == 1
        assert server.signal(signal.SIGTERM) == 0


@linux
@pytest.mark.requirement("MCP-49")
def test_busy_connections_stay_while_probes_use_spare_slots(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    options = ("--max-connections", "4", *with_stream_quota(tmp_path, 4))
    with http_serving(tmp_path, *options) as server, client(server, "modern") as listener:
        listener.every_skill()
        streams = [listener.listen(number, skillsListChanged=True) for number in range(4)]
        with crowd(server, 100):
            for path in ("/healthz", "/readyz") * 20:
                reply = server.send("GET", path)
                assert (reply.status, reply.headers["Connection"]) == (200, "close")
            reply = listener.post(listener.message("skills/list"))
            assert reply.error == (503, -32603, None)
            assert (reply.headers["Retry-After"], reply.headers["Connection"]) == ("1", "close")
            write_skill(tmp_path / "b")
            for stream in streams:
                assert stream.until("notifications/skills/list_changed")
        server.wait_for_log("all 4 connections are in use")
        assert server.stderr.count("all 4 connections") == 1
        streams[0].close()
        wait_until(lambda: listener.post(listener.message("skills/list")).status != 503)
        assert server.signal(signal.SIGTERM) == 0


def test_handshake_is_refused_while_requests_wait_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A herd that reconnects is admitted at the rate at which it can be answered."""
    monkeypatch.setattr(mcp, "_MAX_WAIT_S", -1)
    with app_serving(FIXTURES) as server, client(server, "modern") as modern:
        for _ in range(3):
            late = HttpClient(server, "legacy")
            refusal = late.post(late.message("initialize", {}))
            assert refusal.error == (503, -32603, None)
            assert refusal.headers["Retry-After"] in ("1", "2", "3")
        assert modern.every_skill()
        server.wait_for_log("WARNING: refused a handshake: requests wait 0.0 s to be answered")


@linux
def test_unauthenticated_crowd_evicts_no_authenticated_client(tmp_path: Path) -> None:
    options = ("--max-connections", "4", *with_stream_quota(tmp_path, 3))
    wrong = bearer_header("wrong-token-0123456789")
    with (
        http_serving(FIXTURES, *options, environment=TOKENS) as server,
        client(server, "modern", token=TOKEN) as listener,
    ):
        listener.every_skill()
        streams = [listener.listen(number, skillsListChanged=True) for number in range(3)]
        with crowd(server, 50, "127.0.0.2"), crowd(server, 50, "127.0.0.3", data=PROBE):
            for _ in range(10):
                assert server.send("GET", headers=wrong, source="127.0.0.2").status == 401
            assert listener.request("skills/list")["skills"]  # takes the fourth slot
        assert all(stream.messages.empty() and stream.whole is None for stream in streams)


@linux
def test_session_with_open_stream_is_not_evicted(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    with app_serving(FIXTURES, "--max-sessions", "6", "--audit-log", log) as server, ExitStack() as stack:

        def opened(source: str) -> HttpClient:
            return stack.enter_context(client(server, "legacy", source=source))

        streams = [opened("127.0.0.1").follow() for _ in range(3)]
        first, second, third = (opened("127.0.0.2") for _ in range(3))
        fourth = opened("127.0.0.3")
        assert first.post(first.message("skills/list")).error == (404, -32001, None)
        assert second.request("skills/list")["skills"]
        streams += [each.follow() for each in (second, third, fourth)]
        late = HttpClient(server, "legacy")
        refusal = late.post(late.message("initialize", {}))
        assert refusal.error == (503, -32603, None)
        assert refusal.headers["Retry-After"] == "1"
        server.wait_for_log(r"refused a session: all 6 are in use \(--max-sessions\)")
        assert all(stream.whole is None for stream in streams)
    refused = [each for each in map(json.loads, log.read_text().splitlines()) if each["event"] == "refuse"]
    assert [(each["reason"], each["address"]) for each in refused] == [("busy", "127.0.0.1")]


def test_client_with_more_than_half_of_the_sessions_loses_a_busy_one() -> None:
    with app_serving(FIXTURES, "--max-sessions", "4") as server, ExitStack() as stack:

        def opened(source: str) -> HttpClient:
            return stack.enter_context(client(server, "legacy", source=source))

        streams = [opened("127.0.0.1").follow() for _ in range(4)]
        one, other = opened("127.0.0.2"), opened("127.0.0.3")
        for each in (one, other):
            assert each.request("skills/list")["skills"]
        assert streams[0].rest() == streams[1].rest() == []
        assert all(stream.whole is None for stream in streams[2:])
