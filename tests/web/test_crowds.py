"""More connections than can be served: real sockets, from several addresses, under real limits of open files."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.web import serving
from mcp_skills_server.web.serving import Budget, divide_descriptors
from tables import each_row
from web.http_wire import Server, bearing, client, http_serving, until
from wire import DEADLINE, FIXTURES, SOON, write_skill

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))
from mcp_skills_server.cli import main
main(sys.argv[1:])
"""
PROBE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
TOKEN = "made-up-token-of-alpha-000001"

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and all of 127.0.0.0/8")


def limited(files: int) -> list[str]:
    """The command, in a process that may open so many files."""
    return [sys.executable, "-c", LIMITED.format(files=files)]


def open_files(server: Server) -> set[int]:
    return {int(name) for name in os.listdir(f"/proc/{server.process.pid}/fd")}


@contextmanager
def crowd(server: Server, count: int, address: str = "127.0.0.1", said: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections from an address, which say this and then nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 200:
        if hard < count + 200:
            pytest.skip(f"needs {count + 200} open files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count + 200, hard))
    with ExitStack() as stack:
        out: list[socket.socket] = []
        for _ in range(count):
            bare = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), DEADLINE, (address, 0)))
            bare.sendall(said)
            out.append(bare)
        yield out


def ask(bare: socket.socket, said: bytes = PROBE) -> bytes:
    """The body of an answer on a connection that stays."""
    bare.sendall(said)
    response = HTTPResponse(bare)
    response.begin()
    return response.read()


def test_descriptors_are_shared_out_and_the_least_that_is_told_is_enough() -> None:
    assert divide_descriptors(1000, 20_000, 10) == Budget(1000)
    assert divide_descriptors(1000, 160, 0) == Budget(70, 5, 5)
    assert divide_descriptors(1000, 191, 0) == Budget(86, 5, 5)
    for limit in range(16, 4000):
        given = divide_descriptors(1000, limit, 7)
        assert min(given.slots, given.spare, given.arriving) >= 1
        left = limit - 7 - given.slots - given.spare - given.arriving
        assert left >= 6 and (left >= 128 or given.slots <= limit // 2)
    with pytest.raises(UsageError, match="at least 16 "):
        divide_descriptors(1000, 10, 7)


def test_a_port_is_taken_again_at_once_and_little_waits_in_the_kernel() -> None:
    with serving._open_listener("127.0.0.1", 0) as made:
        options = [made.getsockopt(socket.SOL_SOCKET, each) for each in (socket.SO_REUSEADDR, socket.SO_SNDBUF)]
    assert options[0] == 1 and options[1] in (256 << 10, 512 << 10)  # Linux doubles it


NEEDED = 1000 + 8 + 8 + 128
"""Descriptors for 1,000 connections, beside those that are open already."""


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
@each_row(
    ("limits", "raised", "places"),
    [((NEEDED + 1, NEEDED + 2), [], 1000), ((300, NEEDED), [NEEDED], 1000), ((300, NEEDED - 1), [NEEDED - 1], 999)],
)
def test_the_limit_of_the_process_is_raised_as_far_as_it_may(
    limits: tuple[int, int], raised: list[int], places: int, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    now: list[int] = []
    monkeypatch.setattr(serving, "_open_files", lambda: 7)
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(each + 7 for each in limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, given: now.append(given[0] - 7))
    assert (serving.connection_budget(1000), now) == (Budget(places), raised)
    told = "999 connections at once, not 1000 (--max-connections): this process may open 1150 files (ulimit -n)"
    assert caplog.messages == [told] * (1000 - places)


@linux
@each_row(("limit", "count", "more"), [(1024, 1100, ()), (1024, 1100, ("--max-connections", "50")), (20, 200, ())])
def test_silent_connections_beyond_all_limits_keep_nobody_out(limit: int, count: int, more: tuple[str, ...]) -> None:
    with http_serving(FIXTURES, *more, command=limited(limit)) as server:
        server.until_ready()
        with crowd(server, count):
            assert server.send("GET", "/healthz").status == 200
            assert server.send("GET", "/readyz").body == b"ready\n"
            with client(server, "modern") as modern, client(server, "legacy") as legacy:
                assert len(modern.every_skill()) == len(legacy.every_skill()) == 17
            assert len(open_files(server)) <= (limit if not more else 100)
            code, took = server.signal(signal.SIGTERM)
            assert code == 0 and took < SOON
        told = [line for line in server.stderr.splitlines() if " ms (" not in line]  # beside one a request
        # Each kind of line once; a poll of the root that falls into the crowd says that it wants descriptors, too.
        assert len(set(told)) == len(told) <= 6 and len("".join(told)) < 1000, server.stderr


@linux
def test_want_of_descriptors_is_an_error_of_the_request_and_passes(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", body="# A\n")
    with http_serving(tmp_path, command=limited(200)) as server, client(server, "modern") as one:
        ((uri,),) = [[each["uri"] for each in skill["resources"]] for skill in one.every_skill()]
        raw = one.read(uri)
        before = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        with server.connect() as bare:
            for _ in range(3):
                ask(bare)  # so that the connections before it are gone
            none_left = min({*range(200)} - open_files(server))
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (none_left, before[1]))
            for _ in range(20):
                assert b'"error"' in ask(bare, one.raw(one.message("resources/read", {"uri": uri})))
            with server.connect() as late:
                late.sendall(PROBE)
                server.said("a connection waits to be accepted")
                assert ask(bare) == b"alive\n"
                resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, before)
                assert late.recv(1000).startswith(b"HTTP/1.1 200")  # and it did not have to come again
        assert one.read(uri) == raw
        assert server.stderr.count("waits to be accepted") == 1
        code, took = server.signal(signal.SIGTERM)
        assert code == 0 and took < SOON


@linux
def test_a_crowd_from_one_address_takes_no_place_of_another() -> None:
    with http_serving(FIXTURES, "--max-connections", "20") as server, crowd(server, 3, "127.0.0.2") as kept:
        assert all(ask(bare) == b"alive\n" for bare in kept)
        with crowd(server, 200), crowd(server, 60, said=PROBE[:-2]):
            assert all(ask(bare) == b"alive\n" for bare in kept)
            assert server.send("GET", "/healthz", source="127.0.0.3").status == 200
            assert server.send("GET", "/.well-known/agent-skills/index.json").status == 200
        server.said(r"all 20 connections are in use \(--max-connections\); closed one of the client with the most")


@linux
@pytest.mark.requirement("MCP-49")
def test_places_that_are_busy_are_left_alone_and_the_probes_answer_beside_them(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    with http_serving(tmp_path, "--max-connections", "4") as server, client(server, "modern") as one:
        one.every_skill()
        streams = [one.listen(number, skillsListChanged=True) for number in range(4)]
        with crowd(server, 100):
            for path in ("/healthz", "/readyz") * 20:
                reply = server.send("GET", path)
                assert (reply.status, reply.headers["Connection"]) == (200, "close")
            reply = one.post(one.message("skills/list"))
            assert reply.error == (503, -32603, None)
            assert (reply.headers["Retry-After"], reply.headers["Connection"]) == ("1", "close")
            write_skill(tmp_path / "b")
            for stream in streams:
                assert stream.until("notifications/skills/list_changed")
        server.said("all 4 connections are in use")
        assert server.stderr.count("all 4 connections") == 1
        streams[0].close()
        until(lambda: one.post(one.message("skills/list")).status != 503)
        code, took = server.signal(signal.SIGTERM)
        assert code == 0 and took < SOON


@linux
def test_strangers_cut_off_nobody_who_bears_a_token() -> None:
    lines = {"MCP_SKILLS_TOKENS": f"alpha={TOKEN}"}
    options = (FIXTURES, "--max-connections", "4")
    with http_serving(*options, environment=lines) as server, client(server, "modern", token=TOKEN) as one:
        one.every_skill()
        streams = [one.listen(number, skillsListChanged=True) for number in range(3)]
        with crowd(server, 50, "127.0.0.2"), crowd(server, 50, "127.0.0.3", said=PROBE):
            for _ in range(10):
                wrong = bearing("wrong-token-0123456789")
                assert server.send("GET", headers=wrong, source="127.0.0.2").status == 401
            assert one.request("skills/list")["skills"]  # in the place that the strangers had
        assert all(stream.messages.empty() and stream.whole is None for stream in streams)


@linux
def test_sessions_opened_without_end_by_one_address_lock_nobody_out() -> None:
    with http_serving(FIXTURES, "--max-sessions", "20") as server, ExitStack() as stack:
        other = stack.enter_context(client(server, "legacy", source="127.0.0.2"))
        hog = [stack.enter_context(client(server, "legacy")) for _ in range(100)]
        stack.enter_context(client(server, "legacy", source="127.0.0.3"))
        assert len(other.every_skill()) == 17  # which is another's, and older than all of them
        first, last = hog[0], hog[-1]
        assert first.post(first.message("skills/list")).error == (404, -32001, None)
        assert last.request("skills/list")["skills"]
        first.session = None
        first.open()  # as the protocol wants it after 404


@linux
def test_where_the_one_with_most_sessions_uses_them_all_the_next_one_gives_an_idle_one() -> None:
    with http_serving(FIXTURES, "--max-sessions", "5") as server, ExitStack() as stack:
        streams = [stack.enter_context(client(server, "legacy")).follow() for _ in range(3)]
        first, second = (stack.enter_context(client(server, "legacy", source="127.0.0.2")) for _ in range(2))
        stack.enter_context(client(server, "legacy", source="127.0.0.3"))
        assert first.post(first.message("skills/list")).error == (404, -32001, None)
        assert second.request("skills/list")["skills"] and all(each.whole is None for each in streams)


def test_a_session_with_an_open_stream_is_not_idle() -> None:
    with http_serving(FIXTURES, "--max-sessions", "2") as server, ExitStack() as stack:
        held, idle = (stack.enter_context(client(server, "legacy")) for _ in range(2))
        stream = held.follow()
        third = stack.enter_context(client(server, "legacy"))
        assert idle.post(idle.message("skills/list")).error == (404, -32001, None)
        assert held.request("skills/list")["skills"] and third.request("skills/list")["skills"]
        assert stream.whole is None
        third.follow()
        last = stack.enter_context(client(server, "legacy", opened=False))
        assert last.post(last.message("initialize", {})).error == (503, -32603, None)
        server.said(r"refused a session: all 2 are in use \(--max-sessions\)")


@each_row(
    ("said", "lines"),
    [
        (b"GET /mcp HTTP/1.1\r\nHost: evil.example\r\n\r\n", 1),
        (b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n", 1),
        (b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n", 2),  # without a token, and too often
        (b"\x16\x03\x01\x02\r\n\r\n", 1),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 2),
    ],
)
def test_no_request_of_strangers_fills_the_log(said: bytes, lines: int) -> None:
    """10.0d: each of these had a line or two for every request."""
    with http_serving(FIXTURES, environment={"MCP_SKILLS_TOKENS": f"alpha={TOKEN}"}) as server:
        server.said("serving")
        for _ in range(100):
            with server.connect() as stranger:
                stranger.sendall(said)
                assert stranger.recv(1000)
        server.said("WARNING", lines)
        assert server.stderr.count("WARNING") == lines, server.stderr
        assert server.stderr.count(" refused (") <= 2, server.stderr
