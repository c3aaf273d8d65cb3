"""Connection limits: fair eviction, request smuggling, and timeouts against slow clients."""

from __future__ import annotations

import hashlib
import json
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_skills_server.access.quota import Owner, owner_to_evict
from mcp_skills_server.web.connections import Slot, Slots, State, Unread
from tables import each_row
from web.http_wire import PROBE, Server, client, exchange, http_serving, patched, token_file
from wire import FIXTURES, write_skill

MIB = 1 << 20


class SlotTable:
    def __init__(self, limit: int, spare: int = 2) -> None:
        self.evicted: list[Slot] = []
        self.slots = Slots(limit, spare)

    def connect(self, owner: str, state: State = State.SILENT) -> Slot:
        """Open a connection in this state. Unless it is silent, a request on it was admitted."""
        slot = Slot(self.slots, Owner(owner), lambda: self.evicted.append(slot))
        self.slots.enter(slot)
        slot.is_admitted = state is not State.SILENT
        self.slots.set_state(slot, state)
        return slot


# `connections` are opened in this order; `evicted` and `spare` are their numbers, from 0.
@each_row(("limit", "connections", "evicted", "spare"), [
    # First a silent one of the largest client, before admitted ones; then one of its own.
    (5, "good-resting good-resting good-resting bad-silent bad-silent new-silent bad-silent", [3, 4], []),
    # When all are busy, a newcomer gets a spare slot.
    (2, "a-busy b-busy c-busy d-silent", [], [2, 3]),
    # On spare slots, too, silent ones are evicted before busy ones.
    (1, "a-busy probe-busy b-silent b-silent b-silent", [2, 3], [1, 2, 3, 4]),
    # Busy ones are not evicted for a newcomer that was not admitted.
    (4, "hog-busy hog-busy hog-busy hog-busy stranger-silent", [], [4]),
])  # fmt: skip
def test_new_connection_evicts_silent_before_resting_and_never_busy(
    limit: int, connections: str, evicted: list[int], spare: list[int]
) -> None:
    table = SlotTable(limit)
    opened: list[Slot] = []
    for each in connections.split():
        owner, state = each.split("-")
        opened.append(table.connect(owner, State[state.upper()]))
    assert [opened.index(slot) for slot in table.evicted] == evicted
    assert [number for number, slot in enumerate(opened) if slot.is_spare] == spare


OWNERS = [Owner(key) for key in "abcde"]
HELD = st.dictionaries(st.sampled_from(OWNERS[:4]), st.integers(1, 9))


@given(HELD, st.sampled_from(OWNERS), st.sets(st.sampled_from(OWNERS[:4])))
def test_only_newcomer_or_larger_client_loses_slot(
    held: dict[Owner, int], newcomer: Owner, evictable: set[Owner]
) -> None:
    evictable &= held.keys()
    evicted = owner_to_evict(held, newcomer, evictable)
    larger = {owner for owner in evictable if held[owner] > held.get(newcomer, 0)}
    candidates = larger | ({newcomer} & evictable)
    if evicted is None:
        assert not candidates
    else:
        assert evicted in candidates
        assert held[evicted] == max(held[owner] for owner in candidates)


def test_longest_idle_connection_is_evicted_rather_than_oldest() -> None:
    table = SlotTable(2)
    first, second = table.connect("a", State.RESTING), table.connect("a", State.RESTING)
    table.slots.set_state(first, State.BUSY)
    table.slots.set_state(first, State.RESTING)
    table.connect("a")
    assert table.evicted == [second]


def test_connection_stays_silent_until_request_is_admitted() -> None:
    table = SlotTable(2)
    refused = table.connect("a")
    table.connect("a", State.RESTING)
    table.slots.set_state(refused, State.BUSY)  # its request gets 401
    table.slots.set_state(refused, State.RESTING)
    table.connect("a")
    assert table.evicted == [refused]


def test_admitted_connection_frees_its_spare_slot() -> None:
    table = SlotTable(1, spare=1)
    leaving, moving = table.connect("a", State.BUSY), table.connect("b", State.BUSY)
    assert moving.is_spare and not moving.admit(None)
    table.slots.leave(leaving)
    assert moving.admit(None) and not moving.is_spare
    third, fourth = table.connect("c"), table.connect("d")
    assert third.is_spare and fourth.is_spare
    assert table.evicted == [third]


# The hog holds more than half of all slots. It must also hold more than the newcomer then will.
@each_row(("limit", "of_hog", "of_newcomer", "is_admitted"), [(5, 3, 2, False), (6, 4, 2, True)])
def test_busy_connection_is_evicted_only_from_larger_client(
    limit: int, of_hog: int, of_newcomer: int, is_admitted: bool
) -> None:
    table = SlotTable(limit, spare=4)
    for owner in ["hog"] * of_hog + ["newcomer"] * of_newcomer:
        table.connect(owner, State.BUSY)
    assert table.connect("newcomer", State.BUSY).admit(None) is is_admitted


def test_authenticated_connection_counts_for_its_token() -> None:
    table = SlotTable(3)
    authenticated = table.connect("address", State.BUSY)
    assert authenticated.admit(Owner("token x"))
    table.slots.set_state(authenticated, State.RESTING)
    table.connect("address", State.BUSY)
    table.connect("address", State.BUSY)
    newcomer = table.connect("address")  # this address holds two slots, the token one
    assert newcomer.is_spare and not table.evicted


ACTIONS = ("stay", "stay", "admit", "leave")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(State), st.sampled_from(ACTIONS)), max_size=60))
def test_slots_never_exceed_limit_and_are_evicted_once(steps: list[tuple[str, State, str]]) -> None:
    table = SlotTable(4, spare=2)
    connected: list[Slot] = []
    for owner, state, action in steps:
        slot = table.connect(owner, state)
        connected.append(slot)
        if action == "admit":
            slot.admit(Owner(f"token {owner}"))
        elif action == "leave":
            connected.remove(slot)
            table.slots.leave(slot)
            table.slots.leave(slot)
        connected = [each for each in connected if each not in table.evicted]
        assert sum(not each.is_spare for each in connected) <= 4
        assert sum(each.is_spare for each in connected) <= 2
        assert len(set(table.evicted)) == len(table.evicted)


def named_slot(closed: list[str], name: str) -> Slot:
    """Return a slot whose owner is the first word of its name. Add the name to `closed` on close."""
    return Slot(Slots(1, 1), Owner(name.partition(" ")[0]), lambda: closed.append(name))


def test_client_with_most_unread_bytes_loses_its_oldest_connection(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []
    unread = Unread(most=10 * MIB)
    greedy = [named_slot(closed, f"greedy {number}") for number in range(5)]
    modest = [named_slot(closed, f"modest-{number}") for number in range(3)]
    unread.add(modest[0], 3 * MIB)
    for slot in greedy[:3]:
        unread.add(slot, 2 * MIB)
    assert closed == []
    unread.add(modest[1], 3 * MIB)
    assert closed == ["greedy 0"]
    unread.add(greedy[3], 2 * MIB)
    assert closed == ["greedy 0", "greedy 1"]
    unread.drop(modest[0])
    unread.drop(modest[0])
    unread.add(greedy[3], 2 * MIB)  # replaces its earlier size
    unread.add(modest[2], 3 * MIB)
    assert closed == ["greedy 0", "greedy 1"]
    unread.add(greedy[4], 11 * MIB)  # alone over the limit
    assert closed == [f"greedy {number}" for number in range(5)]
    message = "cut off a client that did not read its response: more than 10 MiB unread by all clients"
    assert {*caplog.messages} == {message}


def test_default_limit_of_unread_bytes_is_128_mib() -> None:
    closed: list[str] = []
    unread = Unread()
    unread.add(named_slot(closed, "one"), 64 * MIB)
    unread.add(named_slot(closed, "two"), 64 * MIB)
    assert closed == []
    unread.add(named_slot(closed, "three"), 1)
    assert len(closed) == 1


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.integers(1, 9)), max_size=40)
"""Owner, number of the connection, and its unread bytes."""


@given(STEPS, st.integers(1, 12))
def test_unread_quota_closes_oldest_connections_of_same_owner_only(
    steps: list[tuple[str, int, int]], share: int
) -> None:
    closed: list[str] = []
    unread = Unread(most=1 << 30)
    slots: dict[tuple[str, int], Slot] = {}
    for owner in "abc":
        for number in range(5):
            slot = slots[owner, number] = named_slot(closed, f"{owner} {number}")
            slot.admit(Owner(owner, {"unread-bytes": share}))
    sizes: dict[str, dict[int, int]] = {owner: {} for owner in "abc"}
    for owner, number, size in steps:
        unread.add(slots[owner, number], size)
        of_owner = sizes[owner]
        of_owner.pop(number, None)
        of_owner[number] = size
        expected: list[str] = []
        while len(of_owner) > 1 and sum(of_owner.values()) > share:
            oldest = next(iter(of_owner))
            del of_owner[oldest]
            expected.append(f"{owner} {oldest}")
        assert closed == expected
        closed.clear()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with http_serving(FIXTURES) as started:
        yield started


def send_and_read_all(server: Server, data: bytes) -> bytes:
    """Send data on a new connection, and return all that comes until the server closes it."""
    with server.connect() as connection:
        connection.sendall(data)
        return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    received = b""
    while piece := connection.recv(1 << 20):
        received += piece
    return received


BODY = b"0\r\n\r\n" + PROBE[:-2] + b"Connection: close\r\n\r\n"
"""An empty chunked body, and another request."""


@each_row("head", [
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n",
    b"POST /mcp HTTP/1.0\r\nHost: localhost\r\nTRANSFER-ENCODING: chunked\r\nCONTENT-LENGTH: 5\r\n\r\n",
    b"POST /mcp HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5, 5\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: +5\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding : chunked\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n\r\n",
    b"GET /healthz HTTP/2.0\r\nHost: localhost\r\n\r\n",
    b"GET /healthz HTTP/0.9\r\nHost: localhost\r\n\r\n",
    b"GET /healthz HTTP/1.1\nHost: localhost\n\n",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nA: b\r\n folded\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nA: b\0c\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nA b: c\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
    b"GET /healthz?" + b"x" * (1 << 16) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /h\xe9 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x16\x03\x01\x02\r\n\r\n",
])  # fmt: skip
def test_ambiguous_or_malformed_head_gets_one_400_and_is_closed(server: Server, head: bytes) -> None:
    received = send_and_read_all(server, head + BODY)
    assert received.startswith(b"HTTP/1.1 400 ") and received.count(b"HTTP/1.1 ") == 1, received
    assert b"alive" not in received and b"connection: close" in received.lower()
    # After a request that is unanswered there is no answer out of order.
    received = send_and_read_all(server, PROBE + head + BODY)
    assert received.startswith(b"HTTP/1.1 200 ") and received.count(b"HTTP/1.1 ") == 1, received


@each_row("body", [
    b"5\r\n{}   \n0\r\n\r\n", b"5\r\n{}   \r0\r\n\r\n", b"5 ;\r\n{}   \r\n0\r\n\r\n", b"0x5\r\n{}   \r\n0\r\n\r\n",
    b"+5\r\n{}   \r\n0\r\n\r\n",
    b"fffffffffffffffff\r\n{}", b"5\n{}   \r\n0\r\n\r\n", b"\r\n5\r\n{}   \r\n0\r\n\r\n",
])  # fmt: skip
def test_malformed_chunk_ends_the_connection(server: Server, body: bytes) -> None:
    head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nContent-Type: application/json\r\n"
    received = send_and_read_all(server, head + b"Transfer-Encoding: chunked\r\n\r\n" + body + PROBE)
    assert b"alive" not in received and received.count(b"HTTP/1.1 ") <= 1, received


def test_white_space_around_the_value_of_a_header_is_ignored(server: Server) -> None:
    head = b"GET /.well-known/agent-skills/index.json HTTP/1.1\r\nHost: \t localhost \t \r\nConnection: close\r\n\r\n"
    assert send_and_read_all(server, head).startswith(b"HTTP/1.1 200 ")


def test_pipelined_requests_are_answered_in_order_up_to_a_limit(server: Server) -> None:
    last = PROBE[:-2] + b"Connection: close\r\n\r\n"
    received = send_and_read_all(server, PROBE * 16 + last)
    assert received.count(b"HTTP/1.1 200 ") == received.count(b"alive\n") == 17
    received = send_and_read_all(server, PROBE * 1000 + last)
    assert received.count(b"HTTP/1.1 200 ") < 100
    assert server.send("GET", "/healthz").status == 200


@each_row("framing", [b"Content-Length: 2\r\n\r\n{}", b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"])
def test_offer_of_an_upgrade_is_ignored_and_the_body_read(server: Server, framing: bytes) -> None:
    """As Java's HttpClient offers HTTP/2 with the first request of a connection."""
    post = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nContent-Type: application/json\r\n"
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
    last = PROBE[:-2] + offer.replace(b"Upgrade, HTTP2-Settings", b"Upgrade, close") + b"\r\n"
    received = send_and_read_all(server, (post + offer + framing) * 2 + last)
    assert received.count(b'jsonrpc must be \\"2.0\\"') == 2 and received.endswith(b"alive\n"), received
    assert received.count(b"HTTP/1.1 ") == 3


def test_trailers_do_not_replace_headers(server: Server) -> None:
    head = b"POST /mcp HTTP/1.1\r\nHost: evil.example\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    received = send_and_read_all(server, head + b"2\r\n{}\r\n0\r\nHost: localhost\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 403 "), received


@each_row("start", [
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nA: ",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nA: ",
])  # fmt: skip
def test_endless_header_or_trailer_is_cut_off(server: Server, start: bytes) -> None:
    with server.connect() as connection, pytest.raises(ConnectionError):
        connection.sendall(start + b"a" * (20 * MIB))


HEAD = (
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100\r\n\r\n"
)
TOKEN_LINE = "bob=bobs-made-up-token-0123456789"
IMPATIENT = ("--request-timeout", "0.2", "--log-level", "info")


def test_connection_without_complete_request_is_closed_but_stream_stays(tmp_path: Path) -> None:
    with http_serving(tmp_path, *IMPATIENT) as server, client(server, "modern") as listener:
        stream = listener.listen(skillsListChanged=True)
        for data in (b"", PROBE[:10], HEAD[:-2], HEAD, HEAD + b'{"json'):
            assert send_and_read_all(server, data) == b""
        with server.connect() as connection:
            assert exchange(connection) == b"alive\n"
            assert exchange(connection) == b"alive\n"
            connection.sendall(PROBE[:10])
            assert read_all(connection) == b""
        server.wait_for_log("closed a connection that sent no complete request in 0.2 s")
        write_skill(tmp_path / "a")
        assert stream.until("notifications/skills/list_changed")


def test_endless_body_of_refused_request_is_cut_off(tmp_path: Path) -> None:
    head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
    options = ("--token-file", token_file(tmp_path, TOKEN_LINE), "--log-level", "info")
    with http_serving(FIXTURES, *options) as server:
        with server.connect() as connection:
            connection.sendall(head)
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                connection.sendall(chunk * 1_000)
        server.wait_for_log("kept sending a request after its response")
        assert server.send("GET", "/healthz").status == 200


def test_connection_survives_unused_bodies_of_4_mib(tmp_path: Path) -> None:
    body = bytes(4 * MIB)
    head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    options = ("--token-file", token_file(tmp_path, TOKEN_LINE))
    with http_serving(FIXTURES, *options) as server, server.connect() as connection:
        for _ in range(3):
            connection.sendall(head + body)
            reply = b""
            while not reply.endswith(b"}"):
                reply += connection.recv(1 << 16)
            assert reply.startswith(b"HTTP/1.1 401 ")


def write_large_skill(root: Path) -> Path:
    parts = {f"references__part{number}_md": "y" * 900_000 for number in range(9)}
    write_skill(root / "large", body="x" * 900_000, **parts)
    return root


def published(server: Server) -> tuple[str, bytes]:
    """Return the digest of the only skill of a server, and a request for its artifact."""
    (entry,) = json.loads(server.send("GET", "/.well-known/agent-skills/index.json").body)["skills"]
    return entry["digest"], f"GET {entry['url']} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def send_unread(server: Server, request: bytes, window: int = 4096) -> socket.socket:
    """Send a request on a connection whose receive buffer is smaller than the response."""
    connection = server.connect(receive_buffer=window)
    connection.sendall(request)
    return connection


def test_shutdown_aborts_unread_response_without_traceback(tmp_path: Path) -> None:
    root = write_large_skill(tmp_path)
    with http_serving(root) as server, send_unread(server, published(server)[1]) as connection:
        assert connection.recv(12) == b"HTTP/1.1 200"
        assert server.signal(signal.SIGTERM) == 0


def test_slow_reader_gets_whole_response(tmp_path: Path) -> None:
    with http_serving(write_large_skill(tmp_path), *IMPATIENT) as server:
        digest, request = published(server)
        request = request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        raw = b""
        with send_unread(server, request, window=1 << 17) as connection:
            for _ in range(8):
                raw += connection.recv(1 << 17)
                send_and_read_all(server, PROBE[:10])  # waits for one timeout
            raw += read_all(connection)
        body = raw.partition(b"\r\n\r\n")[2]
        assert f"sha256:{hashlib.sha256(body).hexdigest()}" == digest
        assert "cut off" not in server.stderr


UNREAD_32_MIB = """
from mcp_skills_server.web.connections import Unread
Unread.__init__.__defaults__ = (32 << 20,)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and all of 127.0.0.0/8")
def test_unread_responses_take_bounded_memory(tmp_path: Path) -> None:
    """Without a limit, each request of 300 bytes for 12 MiB took 16 MiB for two minutes."""
    write_skill(tmp_path / "big", file_txt="0123456789abcde\n" * (15 << 14))
    uri = "skill://big/file.txt"
    # As the image sets it: without it glibc keeps freed memory.
    environment = {"MALLOC_TRIM_THRESHOLD_": "131072"}
    command = patched(UNREAD_32_MIB)
    with http_serving(tmp_path, command=command, environment=environment) as server, ExitStack() as stack:
        server.wait_for_log("serving 1 skill ")
        before = server.resident()
        other = stack.enter_context(client(server, "modern"))
        request = other.raw(other.message("resources/read", {"uri": uri}))
        for _ in range(30):
            connection = stack.enter_context(send_unread(server, request))
            assert connection.recv(15, socket.MSG_PEEK) in (b"HTTP/1.1 200 OK", b"")
        server.wait_for_log("cut off a client that did not read its response")
        assert server.resident() - before < 90 * MIB
        assert len(other.read(uri)) == 15 * MIB // 4


SMALL_SEND_BUFFER = """
from mcp_skills_server.web import serving
serving._SEND_BUFFER = 4096
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_unread_streams_take_bounded_memory_and_delay_no_other_stream(tmp_path: Path) -> None:
    names = [f"{'x' * 60}-{number}" for number in range(300)]
    uris = [f"skill://many/{name}.md" for name in names]
    write_skill(tmp_path / "many", **{f"{name}_md": "" for name in names})
    subscriptions = {"notifications": {"resourceSubscriptions": uris}}
    with http_serving(tmp_path, command=patched(SMALL_SEND_BUFFER)) as server, ExitStack() as stack:
        reader = stack.enter_context(client(server, "modern"))
        stream = reader.listen(resourceSubscriptions=uris)
        listen = reader.raw(reader.message("subscriptions/listen", subscriptions))
        for _ in range(40):
            connection = stack.enter_context(send_unread(server, listen))
            assert connection.recv(15, socket.MSG_PEEK)
        resident: list[int] = []
        for number in range(6):
            write_skill(tmp_path / "many", **{f"{name}_md": str(number) for name in names})
            missing = set(uris)
            while missing:
                message = stream.next()
                assert message is not None
                missing.discard(message["params"]["uri"])
            resident.append(server.resident())
        assert resident[-1] - resident[0] < 8 * MIB
