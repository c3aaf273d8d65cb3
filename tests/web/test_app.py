"""The endpoint, by real clients over real HTTP: both eras, notifications, probes, how the server starts and ends."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

import pytest

from tables import each_row
from web.http_wire import BOTH, HELLO, HttpClient, Server, Stream, client, http_serving, pinging, refused
from wire import DEADLINE, EXTENSION, FIXTURES, META, SLOW_LOAD, SOON, VERSIONS, Era, write_skill

SKILLS, RESOURCES, TOOLS, PROMPTS = (
    (f"notifications/{each}/list_changed", None) for each in ("skills", "resources", "tools", "prompts")
)
UPDATED = "notifications/resources/updated"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two skills, settled."""
    for name in ("a", "b"):
        write_skill(tmp_path / name, references__guide_md="guide", zz_md="last")
    return tmp_path


@pytest.mark.requirement("MCP-5", "MCP-8", "MCP-30", "MCP-31", "S40-1", "S40-4", "S76-1", "X-11")
def test_both_eras_declare_the_capability_and_who_declares_it_gets_its_own_entries(server: Server, era: Era) -> None:
    with client(server, era, opened=False) as plain, client(server, era, extension=True) as declared:
        seen = plain.open()
        assert seen["capabilities"]["extensions"] == {EXTENSION: {"directoryRead": True}}
        assert seen["capabilities"]["skills"] == {"listChanged": True}
        assert seen["capabilities"]["resources"] == {"subscribe": True, "listChanged": True}
        assert seen["instructions"]
        if era == "legacy":
            assert seen["protocolVersion"] == VERSIONS["legacy"]
        else:
            assert seen["supportedVersions"] == [VERSIONS["modern"]]
            assert seen["ttlMs"] >= 0 and seen["cacheScope"]
        for pure, union in zip(declared.every_skill(), plain.every_skill(), strict=True):
            assert pure == {key: union[key] for key in ("uri", "frontmatter", "resources")}


@pytest.mark.requirement("MCP-16", "MCP-17", "MCP-18", "MCP-55", "S40-30", "X-13")
@each_row(
    "uri",
    [
        "skill://commit-messages/none.md", "skill://commit-messages/..%2F..%2F..%2Fetc%2Fpasswd", "file:///etc/passwd",
    ],
)  # fmt: skip
def test_what_is_not_served_is_not_found(asked: HttpClient, uri: str) -> None:
    message = asked.message("resources/read", {"uri": uri})
    status, code, identifier = asked.post(message).error
    assert (status, code) == {"legacy": (200, -32002), "modern": (400, -32602)}[asked.era]
    assert identifier == message["id"]


@pytest.mark.requirement("S76-13", "MCP-34", "MCP-35", "MCP-36", "MCP-39", "X-12")
def test_two_legacy_and_two_modern_clients_all_hear_of_a_change_once(folder: Path) -> None:
    """Each hears each thing once; who asked for less hears less, and who asked for nothing hears nothing."""
    with http_serving(folder) as server, ExitStack() as stack:
        follower: dict[str, Stream] = {}
        for number in (1, 2):
            for era in ("legacy", "modern"):
                one = stack.enter_context(client(server, era))
                follower[f"{era} {number}"] = one.hear("skill://a/SKILL.md", "skill://b/zz.md")
        modest = stack.enter_context(client(server, "modern")).listen(resourceSubscriptions=["skill://b/zz.md"])
        silent = stack.enter_context(client(server, "modern")).listen()
        unsubscribed = stack.enter_context(client(server, "legacy")).follow()
        deaf = stack.enter_context(client(server, "legacy"))  # no stream: its answers bring nothing else

        write_skill(folder / "a", description="Does something else when it is asked to.")
        heard = {who: stream.until(UPDATED, "skill://a/SKILL.md") for who, stream in follower.items()}
        deaf.every_skill()
        # A second change, to see that nothing else of the first one comes.
        (folder / "b" / "zz.md").write_text("other")
        for who, stream in follower.items():
            heard[who] += stream.until(UPDATED, "skill://b/zz.md")
            once = [RESOURCES, TOOLS, PROMPTS, (UPDATED, "skill://a/SKILL.md"), (UPDATED, "skill://b/zz.md")]
            assert Counter(heard[who]) == Counter([SKILLS, SKILLS, *once]), who
        assert modest.until(UPDATED, "skill://b/zz.md") == [(UPDATED, "skill://b/zz.md")]
        assert unsubscribed.until(*RESOURCES) == [SKILLS, RESOURCES]
        deaf.every_skill()

        assert server.signal(signal.SIGTERM)[0] == 0
        for who, stream in follower.items():
            assert ["result" in message for message in stream.rest()] == [True] * who.startswith("modern"), who
        assert [message["method"] for message in unsubscribed.rest()] == [TOOLS[0], PROMPTS[0], SKILLS[0]]
        (result,) = silent.rest()
        assert result["id"] == "listening" and result["result"]["resultType"] == "complete"


def test_a_legacy_client_that_comes_back_gets_its_stream_again(folder: Path) -> None:
    with http_serving(folder) as server, client(server, "legacy") as one:
        one.every_skill()
        stream = one.follow()
        assert server.send("GET", headers=one.headers()).status == 409  # one at a time
        stream.close()
        # The server notices after a moment that the first one is gone. It keeps no events, whatever the last was.
        headers = {**one.headers(), "Last-Event-ID": "7"}
        end = monotonic() + DEADLINE
        while (again := Stream(server, "GET", None, headers)).status == 409:
            again.close()
            assert monotonic() < end
        assert again.status == 200
        write_skill(folder / "c")
        assert again.until(*RESOURCES) == [SKILLS, RESOURCES]
        again.close()


@pytest.mark.requirement("MCP-48")
def test_streams_are_kept_alive_and_not_held_back(era: Era) -> None:
    with http_serving(FIXTURES, command=pinging(0.05)) as server, client(server, era) as one:
        stream = one.hear()
        assert stream.headers["X-Accel-Buffering"] == "no"
        assert "no-cache" in stream.headers["Cache-Control"]
        assert stream.headers.get_content_type() == "text/event-stream"
        for _ in range(3):
            assert stream.comments.get(timeout=DEADLINE).startswith(":")


def test_the_probes_answer_anyone(server: Server) -> None:
    for path, word in (("/healthz", b"alive\n"), ("/readyz", b"ready\n")):
        server.said("serving 17 skills")
        for headers in ({}, {"Host": "10.1.2.3:8000"}, {"Origin": "https://evil.example"}):
            reply = server.send("GET", path, headers=headers)
            assert (reply.status, reply.body, reply.headers["Server"]) == (200, word, None)
        reply = server.send("HEAD", path)
        assert (reply.status, reply.body) == (200, b"")
        for method in ("POST", "PUT", "DELETE"):
            reply = server.send(method, path, body=b"x")
            assert reply.status == 405 and "GET" in reply.headers["Allow"]


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A FIFO: the first scan of a server with `SLOW_LOAD` waits until something is written to it."""
    os.mkfifo(tmp_path / "gate")
    return tmp_path / "gate"


def test_ready_is_said_once_the_first_scan_is_done(gate: Path, era: Era) -> None:
    with (
        http_serving(FIXTURES, "--ui", command=[sys.executable, "-c", SLOW_LOAD, str(gate)]) as server,
        client(server, era, opened=False) as one,
        ThreadPoolExecutor(1) as pool,
    ):
        assert server.send("GET", "/healthz").status == 200
        assert one.open()["capabilities"]  # the handshake does not wait for the scan
        answer = pool.submit(one.request, "skills/list")
        assert server.send("GET", "/readyz").status == 503
        page = server.send("GET", "/ui/")
        assert (page.status, page.headers["Refresh"]) == (503, "1")
        assert not answer.done()
        gate.write_text("go")
        assert answer.result(DEADLINE)["skills"]
        assert server.send("GET", "/readyz").status == 200


@each_row("path", ["/", "/mcp2", "/mcp/x", "/healthz/x", "/.well-known/none", "//mcp", "/%2e%2e/mcp"])
def test_nothing_else_is_served(server: Server, path: str) -> None:
    assert server.send("GET", path).status == 404


PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


@pytest.mark.requirement("MCP-45")
@each_row("method", ["GET", "POST", "DELETE", "OPTIONS", "PUT"])
@each_row(
    "headers",
    [{"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Host": "localhost", "Origin": "http://127.0.0.2"}],
)
def test_a_foreign_host_or_origin_is_forbidden(server: Server, method: str, headers: dict[str, str]) -> None:
    sent = {"Accept": BOTH, "Content-Type": "application/json", **headers}
    status, code, identifier = server.send(method, body=PING, headers=sent).error
    assert (status, code, identifier) == (403, -32600, None)


def test_an_allowed_host_and_origin_are_served_and_a_browser_may_look() -> None:
    app, evil = "https://app.example", {"Origin": "https://evil.example"}
    origin = {"Host": "mcp.example.com", "Origin": app}
    options = ["--allowed-host", "mcp.example.com", "--allowed-origin", app]
    with http_serving(FIXTURES, *options) as server, client(server, "legacy", opened=False) as one:
        reply = one.post(one.message("initialize", HELLO), origin)
        assert reply.headers["Access-Control-Allow-Origin"] == app
        assert "Mcp-Session-Id" in reply.headers["Access-Control-Expose-Headers"]
        asking = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "mcp-method"}
        for asked, status, allowed in ((asking, 200, app), (asking | evil, 400, None)):
            reply = server.send("OPTIONS", headers=asked)
            assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (status, allowed)
        for wrong in (evil, {"Host": "other.example.com"}):
            assert one.post(PING.decode(), origin | wrong).status == 403


@pytest.mark.requirement("MCP-46")
def test_it_listens_on_loopback_only(server: Server) -> None:
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()]
    listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{server.port:04X}")]
    assert listening == [f"0100007F:{server.port:04X}"]


@pytest.mark.requirement("MCP-46")
def test_an_address_that_is_not_listened_on_is_told_in_a_line() -> None:
    assert "--allowed-host" in refused(FIXTURES, "--host", "0.0.0.0")
    for host in ("no-such-host.invalid", "a..b", "x" * 70 + ".example", "192.0.2.1"):
        seen = refused(FIXTURES, "--host", host, "--allowed-host", "x", "--port", "0")
        assert f"cannot listen on {host}" in seen and "--host" in seen
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        seen = refused(FIXTURES, "--port", str(port))
    assert f"cannot listen on 127.0.0.1 port {port}" in seen and "in use" in seen and "--port" in seen


@pytest.mark.parametrize("name", ["localhost", "::1"])
def test_it_listens_on_names_of_this_machine(name: str) -> None:
    with http_serving(FIXTURES, "--host", name) as server:
        shown = server.said(r"listening on http://(\S+):\d+/mcp")[1]
        assert shown in {"127.0.0.1", "[::1]"}
        with socket.create_connection((shown.strip("[]"), server.port), DEADLINE) as bare:
            bare.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert bare.recv(100).startswith(b"HTTP/1.1 ")


@pytest.mark.requirement("MCP-37", "MCP-38")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_open_streams_as_the_protocol_says_and_waits_for_nobody(number: signal.Signals) -> None:
    with http_serving(FIXTURES) as server, ExitStack() as stack:
        modern = stack.enter_context(client(server, "modern"))
        listens = {name: modern.listen(name, skillsListChanged=True) for name in ("one", 2, "three")}
        follows = [stack.enter_context(client(server, "legacy")).follow() for _ in range(3)]
        code, took = server.signal(number)
        assert code == 0 and took < SOON
        for name, stream in listens.items():
            (last,) = stream.rest()
            assert (last["id"], last["result"]["resultType"], stream.whole) == (name, "complete", True)
            assert last["result"]["_meta"][META + "subscriptionId"] == name
        for stream in follows:
            assert stream.rest() == [] and stream.whole
        assert "ERROR" not in server.stderr


def test_a_signal_during_the_first_scan_ends_it_too(gate: Path) -> None:
    with http_serving(FIXTURES, command=[sys.executable, "-c", SLOW_LOAD, str(gate)]) as server:
        assert server.send("GET", "/readyz").status == 503
        code, took = server.signal(signal.SIGTERM)
        assert code == 0 and took < SOON
